#include "model/wan_params.h"

#include <cmath>
#include <string>

#include "kernels/dsa/motion.h"
#include "model/wan.h"

namespace megaslide {

namespace {

// Patches are 1×2×2, so a token has four times the channels.
constexpr int64_t kPatchElements = 4;

void add_linear(std::vector<ParamSpec>& params, const std::string& name, Shape shape,
                ParamInit init = ParamInit::kXavierUniform, double scale = 1) {
  const int64_t outputs = shape[0];
  params.push_back({.name = name + ".weight", .shape = std::move(shape), .init = init, .init_scale = scale});
  params.push_back({.name = name + ".bias", .shape = {outputs}, .init = ParamInit::kZeros});
}

void add_vector(std::vector<ParamSpec>& params, const std::string& name, int64_t width, ParamInit init) {
  params.push_back({.name = name, .shape = {width}, .init = init});
}

void add_offset_net(std::vector<ParamSpec>& params, const ModelConfig& c, const DsaLayer& dsa) {
  // The norm behind the convolution takes its scale away; one over the root of its 27 inputs keeps it near 1. The last
  // linear is zero: at the start the operator is plain neighbourhood attention.
  add_linear(params, "attn1.offset_net.conv", {c.dim, 1, 3, 3, 3}, ParamInit::kNormal, 1 / std::sqrt(27.0));
  add_vector(params, "attn1.offset_net.norm.weight", c.dim, ParamInit::kOnes);
  add_vector(params, "attn1.offset_net.norm.bias", c.dim, ParamInit::kZeros);
  add_linear(params, "attn1.offset_net.linear", {dsa.offset_outputs(), c.dim}, ParamInit::kZeros);
}

void add_motion_term(std::vector<ParamSpec>& params, const ModelConfig& c, const DsaLayer& dsa) {
  // Patches are brought to length 1: the projection's scale is of no account.
  params.push_back({.name = "attn1.offset_net.motion_proj.weight",
                    .shape = {kMotionChannels, c.dim},
                    .init = ParamInit::kNormal,
                    .init_scale = 1 / std::sqrt(static_cast<double>(c.dim))});
  add_vector(params, "attn1.offset_net.motion_beta", 1, ParamInit::kOnes);
  params.push_back({.name = "attn1.offset_net.motion_gain",
                    .shape = {dsa.groups()},
                    .init = ParamInit::kLastOnes,
                    .init_scale = c.attention.dsa.motion_share});
}

}  // namespace

std::vector<ParamSpec> wan_block_params(const ModelConfig& c, int64_t layer) {
  const int64_t d = c.dim;
  std::vector<ParamSpec> params;
  params.push_back({.name = "scale_shift_table",
                    .shape = {1, 6, d},
                    .init = ParamInit::kNormal,
                    .init_scale = 1 / std::sqrt(static_cast<double>(d))});
  add_vector(params, "norm2.weight", d, ParamInit::kOnes);
  add_vector(params, "norm2.bias", d, ParamInit::kZeros);
  for (const char* name : {"attn1.norm_q.weight", "attn1.norm_k.weight", "attn2.norm_q.weight", "attn2.norm_k.weight"})
    add_vector(params, name, d, ParamInit::kOnes);
  for (const char* attention : {"attn1.", "attn2."})
    for (const char* name : {"to_q", "to_k", "to_v", "to_out.0"})
      add_linear(params, std::string(attention) + name, {d, d});
  add_linear(params, "ffn.net.0.proj", {c.ffn_dim, d});
  add_linear(params, "ffn.net.2", {d, c.ffn_dim});
  if (c.attention.of_layer(layer) == AttentionKind::kDsa) {
    const DsaLayer dsa = c.attention.dsa.layer(layer, c.heads);
    add_offset_net(params, c, dsa);
    if (dsa.motion) add_motion_term(params, c, dsa);
    if (dsa.pooled) add_vector(params, "attn1.pooled_gate", c.heads, ParamInit::kZeros);
  }
  return params;
}

std::vector<WanMatrix> wan_block_matrices(const ModelConfig& c, int64_t layer) {
  const int64_t d = c.dim;
  std::vector<WanMatrix> matrices;
  for (size_t weight = kSelfQ; weight <= kCrossOut; weight += 2) matrices.push_back({weight, weight + 1, d, d});
  matrices.push_back({kFfnUp, kFfnUpBias, c.ffn_dim, d});
  matrices.push_back({kFfnDown, kFfnDownBias, d, c.ffn_dim});
  if (c.attention.of_layer(layer) == AttentionKind::kDsa) {
    const DsaLayer dsa = c.attention.dsa.layer(layer, c.heads);
    matrices.push_back({kOffsetLinear, kOffsetLinearBias, dsa.offset_outputs(), d});
    if (dsa.motion) matrices.push_back({kMotionProjection, kNoBias, kMotionChannels, d});
  }
  return matrices;
}

std::vector<ParamSpec> wan_embedding_params(const ModelConfig& c) {
  const int64_t d = c.dim;
  std::vector<ParamSpec> params;
  add_linear(params, "patch_embedding", {d, c.in_channels, 1, 2, 2});
  add_linear(params, "condition_embedder.time_embedder.linear_1", {d, c.freq_dim});
  add_linear(params, "condition_embedder.time_embedder.linear_2", {d, d});
  add_linear(params, "condition_embedder.time_proj", {6 * d, d});
  add_linear(params, "condition_embedder.text_embedder.linear_1", {d, c.text_dim});
  add_linear(params, "condition_embedder.text_embedder.linear_2", {d, d});
  return params;
}

std::vector<WanMatrix> wan_embedding_matrices(const ModelConfig& c) {
  return {{kPatch, kPatchBias, c.dim, kPatchElements * c.in_channels},
          {kText1, kText1Bias, c.dim, c.text_dim},
          {kText2, kText2Bias, c.dim, c.dim}};
}

std::vector<ParamSpec> wan_head_params(const ModelConfig& c) {
  std::vector<ParamSpec> params;
  params.push_back({.name = "scale_shift_table",
                    .shape = {1, 2, c.dim},
                    .init = ParamInit::kNormal,
                    .init_scale = 1 / std::sqrt(static_cast<double>(c.dim))});
  // Zero: an untrained network predicts velocity 0.
  add_linear(params, "proj_out", {kPatchElements * c.out_channels, c.dim}, ParamInit::kZeros);
  return params;
}

std::vector<WanMatrix> wan_head_matrices(const ModelConfig& c) {
  return {{kHeadWeight, kHeadBias, kPatchElements * c.out_channels, c.dim}};
}

}  // namespace megaslide
