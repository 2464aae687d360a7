// One forward and backward on stored tensors, through the same streaming path as training, for comparison with another
// stack.
#pragma once
#include <string>

#include "io/model_directory.h"
#include "kernels/stream.h"
#include "tensor/dtype.h"

namespace megaslide {

// Reads `latent` (B,Cin,T,h,w), `timesteps` (B) or one a latent frame (B,T), `text` (B,S,text_dim) and `target` (B,Cout,T,h,w); without a target
// only the forward pass runs. Writes `out`, `loss`, `grad.latent`, `grad.text` and `grad.<diffusers parameter name>`, all
// F32; loss = mean((out − target)²). Returns the loss, NaN without a target.
double probe(const ModelDirectory& model, const std::string& batch_path, const std::string& out_path, DType compute_dtype, int threads,
             Backend backend = Backend::kCpu);

}  // namespace megaslide
