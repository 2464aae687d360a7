// The weights of a Wan video autoencoder: found, checked and re-laid for the convolutions.
#pragma once
#include <vector>

#include "io/safetensors.h"
#include "kernels/conv3d/conv3d.h"
#include "model/wan_vae_plan.h"

namespace megaslide {

struct PackedConv {
  ConvShape shape;
  HostTensor packed;  // conv_pack's
  HostTensor bias;    // padded with zeros to whole panels
};

struct WanVaeStepWeights {
  HostTensor gamma1, gamma2;  // padded likewise
  // kConv, kHead: one. kResidual: two and the shortcut. kAttention: qkv, projection. kDown: space, time.
  // kUp: the four phases, then the earlier and the later frame of the convolution along time.
  std::vector<PackedConv> convolutions;
};

// A usage Error that lists all that is missing, misshapen, of another type or unknown.
void check_wan_vae_tensors(const SafetensorsSource& source, const WanVaeConfig& config);

// One side's weights, in the order of `steps`. The pages of the file are dropped again.
std::vector<WanVaeStepWeights> load_wan_vae_side(Stream& stream, const SafetensorsSource& source,
                                                 const std::vector<WanVaeStep>& steps, DType dtype);

}  // namespace megaslide
