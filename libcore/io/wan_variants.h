// The published members of the Wan family, told by their sizes: names, sampling defaults (spec wan.md D.6), and those that
// need inputs which are not supported.
#pragma once
#include <string>

#include "config/model_config.h"
#include "io/tensor_source.h"

namespace megaslide {

// Name and defaults of sampling. `two_networks`: Wan 2.2 A14B, whose first network has the size of Wan 2.1's.
void apply_wan_defaults(ModelConfig& config, bool two_networks);

// True where the network takes more channels than it gives: conditioning (an image, a mask) beside the noisy latent.
bool is_conditioned(const ModelConfig& config);

// Throws Error that names the variant: LoRA, image-to-video with CLIP, VACE, …
void reject_wan_variants(const TensorSource& source, const std::string& prefix);
// Throws Error saying what it is when it is no Wan transformer at all.
[[noreturn]] void reject_foreign_network(const TensorSource& source);

}  // namespace megaslide
