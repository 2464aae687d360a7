#include "io/wan_names.h"

#include <array>

#include "base/error.h"

namespace megaslide {
namespace {

// Symbolic extents of a shape.
enum Extent : int8_t { kEnd, kOne, kTwo, kThree, kSix, kD, k6D, kFfn, kIn, kOut4, kText, kFreq, kOffsets, kMotion, kGroups, kHeads };

struct Row {
  const char* name;
  const char* original;  // nullptr: not in foreign checkpoints
  std::array<Extent, 6> shape;
};

constexpr Row kEmbedding[] = {
    {"patch_embedding.weight", "patch_embedding.weight", {kD, kIn, kOne, kTwo, kTwo}},
    {"patch_embedding.bias", "patch_embedding.bias", {kD}},
    {"condition_embedder.time_embedder.linear_1.weight", "time_embedding.0.weight", {kD, kFreq}},
    {"condition_embedder.time_embedder.linear_1.bias", "time_embedding.0.bias", {kD}},
    {"condition_embedder.time_embedder.linear_2.weight", "time_embedding.2.weight", {kD, kD}},
    {"condition_embedder.time_embedder.linear_2.bias", "time_embedding.2.bias", {kD}},
    {"condition_embedder.time_proj.weight", "time_projection.1.weight", {k6D, kD}},
    {"condition_embedder.time_proj.bias", "time_projection.1.bias", {k6D}},
    {"condition_embedder.text_embedder.linear_1.weight", "text_embedding.0.weight", {kD, kText}},
    {"condition_embedder.text_embedder.linear_1.bias", "text_embedding.0.bias", {kD}},
    {"condition_embedder.text_embedder.linear_2.weight", "text_embedding.2.weight", {kD, kD}},
    {"condition_embedder.text_embedder.linear_2.bias", "text_embedding.2.bias", {kD}},
};

// In the order of the parameter slabs (model/wan.h); a test compares.
constexpr Row kBlock[] = {
    {"scale_shift_table", "modulation", {kOne, kSix, kD}},
    {"norm2.weight", "norm3.weight", {kD}},
    {"norm2.bias", "norm3.bias", {kD}},
    {"attn1.norm_q.weight", "self_attn.norm_q.weight", {kD}},
    {"attn1.norm_k.weight", "self_attn.norm_k.weight", {kD}},
    {"attn2.norm_q.weight", "cross_attn.norm_q.weight", {kD}},
    {"attn2.norm_k.weight", "cross_attn.norm_k.weight", {kD}},
    {"attn1.to_q.weight", "self_attn.q.weight", {kD, kD}},
    {"attn1.to_q.bias", "self_attn.q.bias", {kD}},
    {"attn1.to_k.weight", "self_attn.k.weight", {kD, kD}},
    {"attn1.to_k.bias", "self_attn.k.bias", {kD}},
    {"attn1.to_v.weight", "self_attn.v.weight", {kD, kD}},
    {"attn1.to_v.bias", "self_attn.v.bias", {kD}},
    {"attn1.to_out.0.weight", "self_attn.o.weight", {kD, kD}},
    {"attn1.to_out.0.bias", "self_attn.o.bias", {kD}},
    {"attn2.to_q.weight", "cross_attn.q.weight", {kD, kD}},
    {"attn2.to_q.bias", "cross_attn.q.bias", {kD}},
    {"attn2.to_k.weight", "cross_attn.k.weight", {kD, kD}},
    {"attn2.to_k.bias", "cross_attn.k.bias", {kD}},
    {"attn2.to_v.weight", "cross_attn.v.weight", {kD, kD}},
    {"attn2.to_v.bias", "cross_attn.v.bias", {kD}},
    {"attn2.to_out.0.weight", "cross_attn.o.weight", {kD, kD}},
    {"attn2.to_out.0.bias", "cross_attn.o.bias", {kD}},
    {"ffn.net.0.proj.weight", "ffn.0.weight", {kFfn, kD}},
    {"ffn.net.0.proj.bias", "ffn.0.bias", {kFfn}},
    {"ffn.net.2.weight", "ffn.2.weight", {kD, kFfn}},
    {"ffn.net.2.bias", "ffn.2.bias", {kD}},
};

constexpr Row kOffsetNet[] = {
    {"attn1.offset_net.conv.weight", nullptr, {kD, kOne, kThree, kThree, kThree}},
    {"attn1.offset_net.conv.bias", nullptr, {kD}},
    {"attn1.offset_net.norm.weight", nullptr, {kD}},
    {"attn1.offset_net.norm.bias", nullptr, {kD}},
    {"attn1.offset_net.linear.weight", nullptr, {kOffsets, kD}},
    {"attn1.offset_net.linear.bias", nullptr, {kOffsets}},
};

constexpr Row kMotionTerm[] = {
    {"attn1.offset_net.motion_proj.weight", nullptr, {kMotion, kD}},
    {"attn1.offset_net.motion_beta", nullptr, {kOne}},
    {"attn1.offset_net.motion_gain", nullptr, {kGroups}},
};

constexpr Row kPooledBranch[] = {{"attn1.pooled_gate", nullptr, {kHeads}}};

constexpr Row kHead[] = {
    {"scale_shift_table", "head.modulation", {kOne, kTwo, kD}},
    {"proj_out.weight", "head.head.weight", {kOut4, kD}},
    {"proj_out.bias", "head.head.bias", {kOut4}},
};

Shape resolve(const std::array<Extent, 6>& extents, const ModelConfig& c, int64_t layer) {
  Shape shape;
  for (const Extent e : extents) {
    switch (e) {
      case kEnd: return shape;
      case kOne: shape.push_back(1); break;
      case kTwo: shape.push_back(2); break;
      case kThree: shape.push_back(3); break;
      case kSix: shape.push_back(6); break;
      case kD: shape.push_back(c.dim); break;
      case k6D: shape.push_back(6 * c.dim); break;
      case kFfn: shape.push_back(c.ffn_dim); break;
      case kIn: shape.push_back(c.in_channels); break;
      case kOut4: shape.push_back(4 * c.out_channels); break;
      case kText: shape.push_back(c.text_dim); break;
      case kFreq: shape.push_back(c.freq_dim); break;
      case kOffsets: shape.push_back(c.attention.dsa.layer(layer, c.heads).offset_outputs()); break;
      case kMotion: shape.push_back(16); break;
      case kGroups: shape.push_back(c.attention.dsa.layer(layer, c.heads).groups()); break;
      case kHeads: shape.push_back(c.heads); break;
    }
  }
  return shape;
}

template <size_t N>
void append(std::vector<WanTensor>& out, const Row (&rows)[N], const ModelConfig& c, const std::string& prefix, int64_t layer) {
  for (const Row& r : rows)
    out.push_back({prefix + r.name, r.original ? prefix + r.original : "", resolve(r.shape, c, layer), layer});
}

}  // namespace

const char* wan_layout_name(WanLayout l) { return l == WanLayout::kDiffusers ? "diffusers" : "wan"; }

bool is_dsa_tensor(const std::string& name) {
  return name.find(".attn1.offset_net.") != std::string::npos || name.ends_with(".attn1.pooled_gate");
}

std::vector<WanTensor> wan_tensors(const ModelConfig& config, int64_t layer) {
  std::vector<WanTensor> out;
  if (layer < 0) {
    append(out, kEmbedding, config, "", -1);
  } else if (layer == config.layers) {
    append(out, kHead, config, "", layer);
  } else {
    const std::string prefix = fmt::format("blocks.{}.", layer);
    append(out, kBlock, config, prefix, layer);
    if (config.attention.of_layer(layer) == AttentionKind::kDsa) {
      append(out, kOffsetNet, config, prefix, layer);
      if (config.attention.dsa.layer(layer, config.heads).motion) append(out, kMotionTerm, config, prefix, layer);
      if (config.attention.dsa.pooled) append(out, kPooledBranch, config, prefix, layer);
    }
  }
  return out;
}

std::vector<WanTensor> wan_tensors(const ModelConfig& config) {
  std::vector<WanTensor> out;
  for (int64_t i = -1; i <= config.layers; ++i)
    for (WanTensor& t : wan_tensors(config, i)) out.push_back(std::move(t));
  return out;
}

}  // namespace megaslide
