#include "model/umt5_block.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/gated_gelu/gated_gelu.h"
#include "kernels/gemm/gemm.h"
#include "kernels/memory/memory.h"
#include "kernels/relative_attention/relative_attention.h"
#include "kernels/rms_norm/rms_norm.h"

namespace megaslide {
namespace {

// Slab order: what is read in fp32 first and together, then the matrices.
enum Param : size_t { kNorm1, kNorm2, kBias, kQ, kK, kV, kO, kGate, kUp, kOut, kParams };
constexpr size_t kFirstMatrix = kQ;

std::vector<ParamSpec> block_params(const Umt5Config& c) {
  return {{.name = "layer.0.layer_norm.weight", .shape = {c.width}, .init = ParamInit::kOnes, .decay = false},
          {.name = "layer.1.layer_norm.weight", .shape = {c.width}, .init = ParamInit::kOnes, .decay = false},
          {.name = "layer.0.SelfAttention.relative_attention_bias.weight", .shape = {kRelativeBuckets, c.heads}},
          {.name = "layer.0.SelfAttention.q.weight", .shape = {c.inner(), c.width}},
          {.name = "layer.0.SelfAttention.k.weight", .shape = {c.inner(), c.width}},
          {.name = "layer.0.SelfAttention.v.weight", .shape = {c.inner(), c.width}},
          {.name = "layer.0.SelfAttention.o.weight", .shape = {c.width, c.inner()}},
          {.name = "layer.1.DenseReluDense.wi_0.weight", .shape = {c.ffn_width, c.width}},
          {.name = "layer.1.DenseReluDense.wi_1.weight", .shape = {c.ffn_width, c.width}},
          {.name = "layer.1.DenseReluDense.wo.weight", .shape = {c.width, c.ffn_width}}};
}

}  // namespace

// One call: where weights lie, and products with operands in the compute dtype.
struct Umt5Block::Call {
  const LayerCall& call;
  const std::vector<ParamSpec>& params;
  const ParamLayout& layout;

  const void* weight(size_t p) const { return static_cast<const std::byte*>(call.weights) + layout.offset[p] * dtype_bytes(call.compute_dtype); }
  // The vectors and the bias table in fp32: in place, or widened.
  const float* vectors() const {
    if (call.compute_dtype == DType::kF32) return static_cast<const float*>(weight(0));
    float* copy = call.workspace.take<float>(layout.offset[kFirstMatrix]);
    widen_float(call.stream, copy, weight(0), layout.offset[kFirstMatrix], call.compute_dtype);
    return copy;
  }
  void* take_operand(int64_t n) const { return call.workspace.take_bytes(n * dtype_bytes(call.compute_dtype)); }
  const void* packed(size_t matrix) const {
    int64_t at = 0;
    for (size_t p = kFirstMatrix; p < matrix; ++p)
      at += linear_packed_bytes(params[p].shape[0], params[p].shape[1], call.compute_dtype, PackFor::kForward);
    return static_cast<const std::byte*>(call.packed) + at;
  }
  // y (rows, outputs) fp32 = x·Wᵀ.
  void linear(size_t matrix, float* y, const void* x) const {
    linear_forward(call.stream, y, x, packed(matrix), nullptr, call.shape.rows(), params[matrix].shape[0], params[matrix].shape[1],
                   call.compute_dtype);
  }
  // The same as an operand.
  void* operand(size_t matrix, const void* x) const {
    void* y = take_operand(call.shape.rows() * params[matrix].shape[0]);
    linear_operand(call.stream, y, x, packed(matrix), nullptr, call.shape.rows(), params[matrix].shape[0], params[matrix].shape[1],
                   call.compute_dtype);
    return y;
  }
};

Umt5Block::Umt5Block(const Umt5Config& config) : config_(config), params_(block_params(config)), layout_(params_) {}

int64_t Umt5Block::packed_bytes(DType dtype, bool training) const {
  MS_CHECK(!training, "the text encoder is not trained");
  int64_t bytes = 0;
  for (size_t p = kFirstMatrix; p < kParams; ++p) bytes += linear_packed_bytes(params_[p].shape[0], params_[p].shape[1], dtype, PackFor::kForward);
  return bytes;
}

void Umt5Block::pack(Stream& stream, DType dtype, bool training, const void* weights, void* packed) const {
  MS_CHECK(!training, "the text encoder is not trained");
  for (size_t p = kFirstMatrix; p < kParams; ++p) {
    const Shape& s = params_[p].shape;
    linear_pack(stream, packed, static_cast<const std::byte*>(weights) + layout_.offset[p] * dtype_bytes(dtype), s[0], s[1], dtype, PackFor::kForward);
    packed = static_cast<std::byte*>(packed) + linear_packed_bytes(s[0], s[1], dtype, PackFor::kForward);
  }
}

void Umt5Block::forward(const LayerCall& call, const Conditioning&, const float* x, float* y, void* saved) const {
  MS_CHECK(saved == nullptr, "nothing is kept for a backward pass");
  const std::vector<int64_t> lengths(static_cast<size_t>(call.shape.batch), call.shape.tokens());
  forward_texts(call, lengths, x, y);
}

void Umt5Block::forward_texts(const LayerCall& call, std::span<const int64_t> lengths, const float* x, float* y) const {
  const Call c{call, params_, layout_};
  const WorkspaceScope scope(call.workspace);
  attention(c, lengths, x, y);
  ffn(c, y);
}

void Umt5Block::attention(const Call& c, std::span<const int64_t> lengths, const float* x, float* y) const {
  const LayerCall& call = c.call;
  const int64_t rows = call.shape.rows(), inner = config_.inner();
  const WorkspaceScope scope(call.workspace);
  const float* vectors = c.vectors();
  void* h = c.take_operand(rows * std::max(config_.width, inner));
  rms_norm_forward(call.stream, h, x, vectors + layout_.offset[kNorm1], rows, config_.width, static_cast<float>(config_.eps), call.compute_dtype);
  const void* q = c.operand(kQ, h);
  const void* k = c.operand(kK, h);
  const void* v = c.operand(kV, h);
  int64_t first = 0;
  for (const int64_t length : lengths) {
    const auto text = [at = first * inner * dtype_bytes(call.compute_dtype)](const void* p) { return static_cast<const std::byte*>(p) + at; };
    // The norm's rows have been read: their place takes the result.
    relative_attention_forward(call.stream, const_cast<std::byte*>(text(h)), text(q), text(k), text(v), vectors + layout_.offset[kBias],
                               length, config_.heads, config_.head_dim, call.compute_dtype);
    first += length;
  }
  MS_CHECK(first == rows, "{} rows in texts of {}", rows, first);
  c.linear(kO, y, h);
  add_in_place(call.stream, y, x, rows * config_.width);
}

void Umt5Block::ffn(const Call& c, float* y) const {
  const LayerCall& call = c.call;
  const int64_t rows = call.shape.rows();
  const WorkspaceScope scope(call.workspace);
  const float* vectors = c.vectors();
  void* h = c.take_operand(rows * config_.width);
  rms_norm_forward(call.stream, h, y, vectors + layout_.offset[kNorm2], rows, config_.width, static_cast<float>(config_.eps), call.compute_dtype);
  float* gate = call.workspace.take<float>(rows * config_.ffn_width);
  float* up = call.workspace.take<float>(rows * config_.ffn_width);
  c.linear(kGate, gate, h);
  c.linear(kUp, up, h);
  void* gated = c.take_operand(rows * config_.ffn_width);
  gated_gelu_forward(call.stream, gated, gate, up, rows * config_.ffn_width, call.compute_dtype);
  float* out = call.workspace.take<float>(rows * config_.width);
  c.linear(kOut, out, gated);
  add_in_place(call.stream, y, out, rows * config_.width);
}

}  // namespace megaslide
