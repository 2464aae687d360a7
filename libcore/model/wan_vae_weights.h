// The weights of a Wan video autoencoder: found, checked and re-laid for the convolutions.
#pragma once
#include <vector>

#include "io/safetensors.h"
#include "kernels/conv3d/conv3d.h"
#include "model/model_memory.h"
#include "model/wan_vae_plan.h"

namespace megaslide {

struct PackedConv {
  ConvShape shape;
  ModelBuffer packed;  // conv_pack's
  ModelBuffer bias;    // fp32, padded with zeros to whole panels
};

struct WanVaeStepWeights {
  ModelBuffer gamma1, gamma2;  // padded likewise
  std::vector<PackedConv> convolutions;  // in the order of wan_vae_convolutions()
};

// kConv, kHead: one. kResidual: two and the shortcut. kAttention: qkv, projection. kDown: space, time.
// kUp: the four phases, then the earlier and the later frame of the convolution along time.
std::vector<ConvShape> wan_vae_convolutions(const WanVaeStep& step);

// A usage Error that lists all that is missing, misshapen, of another type or unknown.
void check_wan_vae_tensors(const SafetensorsSource& source, const WanVaeConfig& config);

// One side's weights, in the order of `steps`, in `memory`, whose stream it then is, or the processor's. The pages of the
// file are dropped again.
std::vector<WanVaeStepWeights> load_wan_vae_side(Stream& stream, ModelMemory* memory, const SafetensorsSource& source,
                                                 const std::vector<WanVaeStep>& steps, DType dtype);

// Bytes of a device's memory that they take there, and that loading them takes besides for a while.
struct WanVaeWeightBytes {
  int64_t held = 0, passing = 0;
};
WanVaeWeightBytes wan_vae_weight_bytes(const std::vector<WanVaeStep>& steps, DType dtype);

}  // namespace megaslide
