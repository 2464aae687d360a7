// FP8 repacks: which tensor holds the scale of which. The value of a weight is its FP8 number times the scale, one a tensor
// or one a row; without the scale the numbers mean nothing (they use the format's whole range, up to 448).
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "io/tensor_source.h"

namespace megaslide {

struct Fp8Scales {
  std::map<std::string, std::string> scale_of;  // name of an FP8 tensor → name of its scale
  std::set<std::string> beside;                 // scales, scales of inputs, markers: no tensors of the network
  std::vector<std::string> problems;            // an FP8 tensor without a scale, a scale of another shape, …
  bool any() const { return !scale_of.empty() || !problems.empty(); }
};

bool is_fp8(DType t);

// Conventions: BASE.weight beside BASE.scale_weight, BASE.weight_scale or BASE.weight_scale_inv, NAME beside NAME_scale.
// Scales of inputs and outputs, the marker "scaled_fp8" and the "comfy_quant" notes are beside the point.
Fp8Scales find_fp8_scales(const TensorSource& source);

// Throws Error with all problems; or, where `allowed` is false and there is any FP8 tensor, says how to allow it.
// Otherwise warns that values were quantised.
void check_fp8(const Fp8Scales& scales, const std::string& path, bool allowed);

}  // namespace megaslide
