// Floating point operations that a model needs, for MFU: no padding, no recompute (spec engine.md §5).
#pragma once
#include "config/model_config.h"
#include "model/layer.h"

namespace megaslide {

// Forward pass of one microbatch: matrix products of all layers, embedding and head, and attention (multiply and add
// are two).
double forward_flops(const ModelConfig& config, const BatchShape& shape);
// Forward and backward: three times the forward (6·N·T + 3·attention).
inline double training_flops(const ModelConfig& config, const BatchShape& shape) { return 3 * forward_flops(config, shape); }

}  // namespace megaslide
