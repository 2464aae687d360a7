// The networks of a Wan video autoencoder as lists of steps, each a step of frames (wan_vae_network.h), and the tensors
// that they need under diffusers' names (spec wan.md C.3, C.7).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "model/wan_vae_config.h"
#include "tensor/tensor.h"

namespace megaslide {

enum class WanVaeSide { kEncoder, kDecoder };

struct WanVaeStep {
  enum class Kind {
    kConv,       // causal 3×3×3, or 1×1×1 where `pointwise`
    kResidual,   // norm, SiLU, convolution, twice, and a shortcut
    kAttention,  // over the cells of a frame
    kDown,       // halves the frame, and the frames where `temporal`
    kUp,         // doubles it, likewise
    kHead,       // norm, SiLU, convolution
  };
  Kind kind;
  std::string name;  // of its tensors, without the last part; a head's norm and convolution are norm_out and conv_out
  int64_t in, out;   // channels
  bool pointwise = false, temporal = false;
  std::string stage = {};  // what observers call this step's output; empty: nothing

  // The last step of a 2.2 stage adds a shortcut from the input of step `from` (C.7); its factors along time and space.
  int from = -1;
  int64_t stage_in = 0, time_factor = 1, space_factor = 1;
};

std::vector<WanVaeStep> wan_vae_steps(const WanVaeConfig& config, WanVaeSide side);

// Every tensor of the file and its shape.
std::map<std::string, Shape> wan_vae_tensors(const WanVaeConfig& config);

}  // namespace megaslide
