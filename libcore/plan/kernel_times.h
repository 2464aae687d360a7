// How long a device takes for products, attention and blocks of given sizes, by its own clock: what benchmarks show.
#pragma once
#include <cstdint>

#include "config/model_config.h"
#include "device/device.h"
#include "kernels/dsa/dsa.h"
#include "model/layer.h"

namespace megaslide {

// All of these take a device that traces, at rest, and operands in bf16; the shortest of `repeats` after one not counted.

// Seconds of y = x·Wᵀ + b, W (n,k), x of m rows.
double measure_linear(Device& device, int64_t m, int64_t n, int64_t k, int repeats);

// Seconds and floating point operations (of the operator as defined: no interpolation, no recomputation).
struct PassTimes {
  double forward = 0, backward = 0;
  double forward_flops = 0, backward_flops = 0;
};
// Attention of a clip; dense takes its grid and heads alone, window its kernel too.
PassTimes measure_attention(Device& device, AttentionKind kind, const DsaShape& shape, int repeats);
// A block; backward includes the forward pass that is done again, and packing in both directions.
PassTimes measure_layer(Device& device, const ModelConfig& model, const BatchShape& shape, int repeats);

}  // namespace megaslide
