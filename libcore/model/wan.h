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
// the caller. fp8_forward: with bf16 operands, the forward products of blocks are of E4M3 with a scale a tensor
// (kernels/gemm_fp8), but for those of offsets; a call's rows share a scale. Backward is the same with and without.
Network make_wan_network(const ModelConfig& config, bool fp8_forward = false);

// The parameters alone, in slab order.
std::vector<ParamSpec> wan_block_params(const ModelConfig& config, int64_t layer);
std::vector<ParamSpec> wan_embedding_params(const ModelConfig& config);
std::vector<ParamSpec> wan_head_params(const ModelConfig& config);

}  // namespace megaslide
