// Where the tokens of cached clips are known to go: for models with dsa.offsets net+given.
#pragma once
#include <string>

#include "config/run_config.h"
#include "data/cache.h"
#include "model/layer.h"
#include "tensor/tensor.h"

namespace megaslide {

// Throws a usage Error unless the run names a folder exactly where the model needs one.
void check_displacement(const RunConfig& run, const ModelConfig& model);

// FOLDER/NAME.safetensors of the clip NAME.mp4, or of the folder of pictures NAME: `displacement`, F32 (T, H, W, T, 2) on
// the token grid of `shape`; for the token at (t, h, w) and each latent frame the way until that frame, (h, w) in tokens.
// Error when it is missing, of another shape, or not finite.
HostTensor read_displacement(const std::string& folder, const CachedClip& clip, const BatchShape& shape);

}  // namespace megaslide
