// The Wan 2.1 text-to-video transformer (spec wan.md A), forward and backward, with dense, window or 3D deformable
// slide attention (spec dsa.md). Parameter names are the diffusers names: relative to "blocks.i." for a block, global
// for the embedding and the head.
//
// Precision: the residual stream, norms, RoPE, softmax, modulation and the time path are fp32; operands of the matrix
// products have the call's compute dtype and are summed in fp32. All device memory comes from the call's workspace, and
// no device pointer is read outside queued kernels.
#pragma once
#include <memory>
#include <vector>

#include "config/model_config.h"
#include "model/layer.h"

namespace megaslide {

// Embedding, config.layers blocks (attention of block i: config.attention.of_layer(i)), head. `config` is validated by
// the caller.
Network make_wan_network(const ModelConfig& config);

// The parameters alone, in slab order.
std::vector<ParamSpec> wan_block_params(const ModelConfig& config, int64_t layer);
std::vector<ParamSpec> wan_embedding_params(const ModelConfig& config);
std::vector<ParamSpec> wan_head_params(const ModelConfig& config);

}  // namespace megaslide
