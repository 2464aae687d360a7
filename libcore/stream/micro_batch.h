// One microbatch as the caller holds it.
#pragma once
#include <cstdint>

#include "model/layer.h"

namespace megaslide {

// Host tensors of one microbatch, fp32. They must stay until the event that the call returns has passed, also where a
// stream fails (Device::synchronize throws once it has passed).
struct MicroBatch {
  BatchShape shape;
  const float* latent = nullptr;     // (B, Cin, T, h, w), what the network is given (noisy)
  const float* timesteps = nullptr;  // (B, times), 0..1000
  const float* text = nullptr;       // (B, S, text_dim), zero rows past the prompt
  const float* target = nullptr;     // (B, Cout, T, h, w), the velocity; training only
  const float* loss_weights = nullptr;  // (B, T), factors of the latent frames' loss; nullptr: all 1
  const int32_t* shots = nullptr;       // (2, B, T), first and last latent frame of each one's shot; nullptr: one shot each
  const float* displacement = nullptr;  // (B, N, T, 2), of networks that need it (model/layer.h)
};

}  // namespace megaslide
