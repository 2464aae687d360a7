// What one microbatch keeps on the device beside its layers' inputs (stream/activation_stash.h): inputs, conditioning and its
// gradients, output, token gradient. Each is sized for the largest shape.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "model/layer.h"

namespace megaslide {

// Device addresses; nullptr where there is no use for one.
struct MicroBuffers {
  float *latent = nullptr, *timesteps = nullptr, *text = nullptr, *target = nullptr, *loss_weights = nullptr;
  float *context = nullptr, *time = nullptr, *modulation = nullptr;
  float *dcontext = nullptr, *dtime = nullptr, *dmodulation = nullptr;
  float *output = nullptr, *dlatent = nullptr, *dtext = nullptr;
  float* dtokens = nullptr;
  int32_t* shots = nullptr;
  float* displacement = nullptr;
  void* embedding_saved = nullptr;
};

struct MicroBufferNeeds {
  std::span<const BatchShape> trained, passed;  // shapes with a backward, and those of passes alone
  DType compute_dtype = DType::kBF16;
  bool gradients = false, input_gradients = false;
  bool clips = true;  // with what is as long as a clip; without, only what all layers and the loss read beside it
};

MicroBuffers make_micro_buffers(const Network& network, const MicroBufferNeeds& needs,
                                const std::function<void*(int64_t bytes, std::string_view name)>& allocate);

// Elements of a latent of so many channels: (B, channels, T, h, w).
int64_t latent_elements(const Network& network, const BatchShape& shape, int64_t channels);

}  // namespace megaslide
