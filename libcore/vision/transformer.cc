#include "vision/transformer.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "kernels/attention/attention.h"
#include "kernels/causal_attention/causal_attention.h"
#include "kernels/gemm/gemm.h"
#include "kernels/memory/memory.h"
#include "kernels/norm/norm.h"

namespace megaslide {
namespace {

// Rows of the MLP at a time: the hidden ones of the largest network then take 16 MiB, and pieces for threads are many.
constexpr int64_t kMlpRows = 1024;

std::string block_prefix(const TransformerNames& names, int64_t block) { return fmt::format("{}{}.", names.blocks, block); }

struct LinearNames {
  std::string weight, bias;
};
LinearNames linear_names(const std::string& name) { return {name + ".weight", name + ".bias"}; }
LinearNames qkv_names(const std::string& prefix, const TransformerNames& n) {
  return {prefix + n.q + n.qkv_weight, prefix + n.q + n.qkv_bias};
}

PackedLinear read_linear(const Place& place, const NetworkWeights& file, const LinearNames& names, Products products) {
  return {place, file.read(names.weight), file.read(names.bias), products};
}

}  // namespace

TransformerNames openai_names(const std::string& blocks) {
  return {.blocks = blocks,
          .norm1 = "ln_1",
          .q = "attn.in_proj",
          .k = {},
          .v = {},
          .out = "attn.out_proj",
          .norm2 = "ln_2",
          .fc1 = "mlp.c_fc",
          .fc2 = "mlp.c_proj",
          .qkv_weight = "_weight",
          .qkv_bias = "_bias"};
}

TransformerShape transformer_shape(const NetworkWeights& file, const TransformerNames& names, double eps, MlpActivation activation, bool causal,
                                   int64_t heads) {
  TransformerShape s{.eps = eps, .activation = activation, .causal = causal};
  const auto first = [&](int64_t block) { return block_prefix(names, block) + names.norm1 + ".weight"; };
  while (file.has(first(s.depth))) ++s.depth;
  const std::string fc1 = block_prefix(names, 0) + names.fc1 + ".weight";
  const Shape& mlp = file.shape(fc1);
  if (s.depth == 0) file.shape(first(0));  // says what is missing
  if (mlp.size() != 2 || mlp[0] < 1 || mlp[1] < 1) throw Error(fmt::format("{}: {} is {}, not a matrix", file.path(), quote_for_message(fc1), to_string(mlp)));
  s.mlp_width = mlp[0];
  s.width = mlp[1];
  if (s.width % (heads == 0 ? kVisionHeadDim : heads) != 0)
    throw Error(fmt::format("{}: {} has {} columns, which {} do not divide", file.path(), quote_for_message(fc1), s.width,
                            heads == 0 ? fmt::format("heads of {}", kVisionHeadDim) : fmt::format("{} heads", heads)),
                "use the published file");
  s.head_dim = heads == 0 ? kVisionHeadDim : s.width / heads;
  return s;
}

void add_transformer_tensors(std::map<std::string, Shape>& expected, const TransformerShape& s, const TransformerNames& n) {
  for (int64_t i = 0; i < s.depth; ++i) {
    const std::string prefix = block_prefix(n, i);
    const auto add = [&](const LinearNames& names, int64_t rows, int64_t columns) {
      expected[names.weight] = columns == 0 ? Shape{rows} : Shape{rows, columns};
      expected[names.bias] = {rows};
    };
    for (const std::string& norm : {n.norm1, n.norm2}) add(linear_names(prefix + norm), s.width, 0);
    if (n.fused()) {
      add(qkv_names(prefix, n), 3 * s.width, s.width);
    } else {
      for (const std::string& each : {n.q, n.k, n.v}) add(linear_names(prefix + each), s.width, s.width);
    }
    add(linear_names(prefix + n.out), s.width, s.width);
    add(linear_names(prefix + n.fc1), s.mlp_width, s.width);
    add(linear_names(prefix + n.fc2), s.width, s.mlp_width);
  }
}

AffineNorm::AffineNorm(const Place& place, const NetworkWeights& file, const std::string& name, double eps_)
    : weight(place, file.read(name + ".weight")), bias(place, file.read(name + ".bias")), eps(eps_) {}

void AffineNorm::forward(const Place& place, void* y, const float* x, int64_t rows, DType dtype) const {
  layer_norm_forward(place.stream(), y, x, weight.f32(), bias.f32(), rows, weight.elements(), rows, 0, static_cast<float>(eps), dtype);
}

Transformer::Transformer(const Place& place, const NetworkWeights& file, const TransformerShape& shape, const TransformerNames& n, DType compute)
    : shape_(shape), products_(products_for(place, compute)) {
  const int64_t w = shape.width;
  for (int64_t i = 0; i < shape.depth; ++i) {
    const std::string prefix = block_prefix(n, i);
    Block b;
    b.norm1 = AffineNorm(place, file, prefix + n.norm1, shape.eps);
    b.norm2 = AffineNorm(place, file, prefix + n.norm2, shape.eps);
    if (n.fused()) {
      const LinearNames names = qkv_names(prefix, n);
      const HostTensor weight = file.read(names.weight), bias = file.read(names.bias);
      b.q = {place, rows_of(weight, 0, w), rows_of(bias, 0, w), products_};
      b.k = {place, rows_of(weight, w, 2 * w), rows_of(bias, w, 2 * w), products_};
      b.v = {place, rows_of(weight, 2 * w, 3 * w), rows_of(bias, 2 * w, 3 * w), products_};
    } else {
      b.q = read_linear(place, file, linear_names(prefix + n.q), products_);
      b.k = read_linear(place, file, linear_names(prefix + n.k), products_);
      b.v = read_linear(place, file, linear_names(prefix + n.v), products_);
    }
    b.out = read_linear(place, file, linear_names(prefix + n.out), products_);
    b.fc1 = read_linear(place, file, linear_names(prefix + n.fc1), products_);
    b.fc2 = read_linear(place, file, linear_names(prefix + n.fc2), products_);
    blocks_.push_back(std::move(b));
  }
}

// Buffers of a forward pass; h, q, k, v and with fp32 `attended` are in the dtype of the products. `hidden`: fp32 and what products
// read, which are one where that is fp32 too.
struct Transformer::Scratch {
  Scratch(const Place& place, const TransformerShape& s, Products products, int64_t rows)
      : h(place, dtype_of(products), {rows * s.width}), q(place, h.dtype(), {rows * s.width}), k(place, h.dtype(), {rows * s.width}),
        v(place, h.dtype(), {rows * s.width}), lse(place, DType::kF32, {rows * s.heads()}), attended(place, DType::kF32, {rows * s.width}),
        parts(place, DType::kU8, {parts_bytes(products, rows, s.width)}),
        hidden(place, DType::kU8, {products == Products::kSplit ? parts_bytes(products, std::min(rows, kMlpRows), s.mlp_width) : 4 * std::min(rows, kMlpRows) * s.mlp_width}),
        narrow(place, h.dtype(), {products == Products::kBf16 ? std::min(rows, kMlpRows) * s.mlp_width : 0}) {}
  float* hidden_f32() const { return reinterpret_cast<float*>(hidden.data()); }
  mutable PlacedTensor h, q, k, v, lse, attended, parts, hidden, narrow;
};

PlacedTensor Transformer::forward(const Place& place, float* x, int64_t batch, int64_t tokens, int64_t wanted, const Observer& observer) const {
  MS_CHECK(!blocks_.empty() && batch > 0 && wanted >= 0 && wanted < tokens && (!shape_.causal || wanted == tokens - 1), "{} {} {}", batch, tokens, wanted);
  const int64_t rows = batch * tokens, width = shape_.width;
  MS_CHECK(!observer || !place.device(), "observers read where they are called");
  const Scratch s(place, shape_, products_, rows);
  PlacedTensor out(place, DType::kF32, {batch, width});
  for (int64_t i = 0; i < shape_.depth; ++i) {
    const Block& b = blocks_[static_cast<size_t>(i)];
    if (i + 1 < shape_.depth) {
      attention(place, b, s, x, batch, tokens);
      mlp(place, b, s, x, rows);
      if (observer) observer(i, x);
    } else {
      wanted_attention(place, b, s, out.f32(), x, batch, tokens, wanted);
      mlp(place, b, s, out.f32(), batch);
      if (observer) observer(i, out.f32());
    }
  }
  return out;
}

void Transformer::attention(const Place& place, const Block& b, const Scratch& s, float* x, int64_t batch, int64_t tokens) const {
  const int64_t rows = batch * tokens, width = shape_.width;
  const DType dtype = dtype_of(products_);
  b.norm1.forward(place, s.h.data(), x, rows, dtype);
  const void* h = operand_of(place, products_, s.h.data(), rows, width, s.parts.data());
  b.q.narrow_forward(place, s.q.data(), h, rows);
  b.k.narrow_forward(place, s.k.data(), h, rows);
  b.v.narrow_forward(place, s.v.data(), h, rows);
  if (shape_.causal) {
    for (int64_t i = 0; i < batch; ++i) {
      const int64_t at = i * tokens * width * dtype_bytes(dtype);
      causal_attention_forward(place.stream(), s.h.data() + at, s.q.data() + at, s.k.data() + at, s.v.data() + at, tokens, shape_.heads(), shape_.head_dim, shape_.scale(), dtype);
    }
    return b.out.add(place, x, operand_of(place, products_, s.h.data(), rows, width, s.parts.data()), rows);
  }
  b.out.add(place, x, attended(place, s, batch, tokens, tokens), rows);
}

// What `queries` rows of q a sample see of its `tokens` rows of k and v, as an operand.
const void* Transformer::attended(const Place& place, const Scratch& s, int64_t batch, int64_t queries, int64_t tokens) const {
  const int64_t rows = batch * queries;
  const DType dtype = dtype_of(products_);
  dense_attention_forward(place.stream(), s.attended.f32(), s.lse.f32(), s.q.data(), s.k.data(), s.v.data(), nullptr,
                          {.batch = batch, .queries = queries, .keys = tokens, .heads = shape_.heads(), .head_dim = shape_.head_dim, .scale = shape_.scale()}, dtype);
  if (dtype == DType::kF32) return operand_of(place, products_, s.attended.data(), rows, shape_.width, s.parts.data());
  cast_operand(place.stream(), s.h.data(), s.attended.f32(), rows * shape_.width, dtype);
  return s.h.data();
}

// rows (batch, width) = the wanted rows of x + what they attend to. A causal network's wanted row sees all keys.
void Transformer::wanted_attention(const Place& place, const Block& b, const Scratch& s, float* rows, const float* x, int64_t batch, int64_t tokens,
                                   int64_t wanted) const {
  const int64_t width = shape_.width, row_bytes = width * dtype_bytes(dtype_of(products_));
  b.norm1.forward(place, s.h.data(), x, batch * tokens, dtype_of(products_));
  const void* h = operand_of(place, products_, s.h.data(), batch * tokens, width, s.parts.data());
  b.k.narrow_forward(place, s.k.data(), h, batch * tokens);
  b.v.narrow_forward(place, s.v.data(), h, batch * tokens);
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t from = i * tokens + wanted;
    copy_memory(place.stream(), rows + i * width, x + from * width, width * 4);
    if (from != i) copy_memory(place.stream(), s.h.data() + i * row_bytes, s.h.data() + from * row_bytes, row_bytes);
  }
  b.q.narrow_forward(place, s.q.data(), operand_of(place, products_, s.h.data(), batch, width, s.parts.data()), batch);
  b.out.add(place, rows, attended(place, s, batch, 1, tokens), batch);
}

void Transformer::mlp(const Place& place, const Block& b, const Scratch& s, float* x, int64_t rows) const {
  const DType dtype = dtype_of(products_);
  b.norm2.forward(place, s.h.data(), x, rows, dtype);
  for (int64_t begin = 0; begin < rows; begin += kMlpRows) {
    const int64_t n = std::min(kMlpRows, rows - begin), at = begin * shape_.width;
    const void* h = operand_of(place, products_, s.h.data() + at * dtype_bytes(dtype), n, shape_.width, s.parts.data());
    void* active = dtype == DType::kF32 ? s.hidden.data() : s.narrow.data();
    if (products_ == Products::kSplit) {
      b.fc1.activated_parts(place, active, h, n, shape_.activation);
    } else {
      b.fc1.forward(place, s.hidden_f32(), h, n);
      mlp_activation_forward(place.stream(), active, s.hidden_f32(), n * shape_.mlp_width, shape_.activation, dtype);
    }
    b.fc2.add(place, x + at, active, n);
  }
}

}  // namespace megaslide
