// The pre-norm transformer that DINO, CLIP and ViCLIP have in common (spec vbench.md, vbench-networks.md §1):
//   x ← x + Wo·attention(q, k, v of LN(x; 1)),   x ← x + W2·f(W1·LN(x; 2))
// with biases everywhere, heads of 64, scale 1/√64, f GELU or QuickGELU. Only one row of each sample is wanted in the end (the
// class token, the end of a text): the last block computes nothing else.
#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/activation/mlp_activation.h"
#include "vision/network_weights.h"
#include "vision/packed_linear.h"

namespace megaslide {

// Of all these networks as published; files do not hold it.
constexpr int64_t kVisionHeadDim = 64;

struct TransformerShape {
  int64_t width = 0, depth = 0;
  int64_t mlp_width = 0;
  double eps = 0;  // of the norms
  MlpActivation activation = MlpActivation::kGelu;
  bool causal = false;
  int64_t head_dim = kVisionHeadDim;
  int64_t heads() const { return width / head_dim; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
};

// Names of a block's tensors below `blocks` + "N.": of norms and layers without ".weight" and ".bias". With q alone the three
// projections are one tensor, rows q, k, v in this order, whose names end in `qkv_weight`, `qkv_bias`.
struct TransformerNames {
  std::string blocks;
  std::string norm1, q, k, v, out, norm2, fc1, fc2;
  std::string qkv_weight = ".weight", qkv_bias = ".bias";
  bool fused() const { return k.empty(); }
};
// The naming of OpenAI's CLIP below `blocks`: attn.in_proj_weight, mlp.c_fc …
TransformerNames openai_names(const std::string& blocks);

// The shape that the tensors of `file` give. Throws Error where there is no block, or a width that heads of 64 (`heads` of them, where
// it is not 0) do not divide.
TransformerShape transformer_shape(const NetworkWeights& file, const TransformerNames& names, double eps, MlpActivation activation, bool causal,
                                   int64_t heads = 0);
// For NetworkWeights::require.
void add_transformer_tensors(std::map<std::string, Shape>& expected, const TransformerShape& shape, const TransformerNames& names);

// Weight and bias of a layer norm.
struct AffineNorm {
  PlacedTensor weight, bias;
  double eps = 0;
  AffineNorm() = default;
  AffineNorm(const Place& place, const NetworkWeights& file, const std::string& name, double eps);
  // y of `dtype`; may be x where it is fp32.
  void forward(const Place& place, void* y, const float* x, int64_t rows, DType dtype) const;
};

class Transformer {
 public:
  Transformer() = default;
  // Reads the tensors, which have been required. compute: kF32, or kBF16 for the operands of products.
  Transformer(const Place& place, const NetworkWeights& file, const TransformerShape& shape, const TransformerNames& names, DType compute);

  const TransformerShape& shape() const { return shape_; }

  // For tests: called after each block but the last with x, after the last with the wanted rows; on the processor alone.
  using Observer = std::function<void(int64_t block, const float* rows)>;

  // Takes x (batch, tokens, width) through the blocks, in place, and gives row `wanted` of every sample, F32 (batch, width). A causal
  // network wants the last row. Memory beside x: 5 rows of the width a token (6.5 where products are made by parts), and the hidden
  // rows of the MLP in pieces.
  PlacedTensor forward(const Place& place, float* x, int64_t batch, int64_t tokens, int64_t wanted, const Observer& observer = {}) const;

 private:
  struct Block;
  struct Scratch;
  void attention(const Place& place, const Block& b, const Scratch& s, float* x, int64_t batch, int64_t tokens) const;
  void wanted_attention(const Place& place, const Block& b, const Scratch& s, float* rows, const float* x, int64_t batch, int64_t tokens, int64_t wanted) const;
  const void* attended(const Place& place, const Scratch& s, int64_t batch, int64_t queries, int64_t tokens) const;
  void mlp(const Place& place, const Block& b, const Scratch& s, float* x, int64_t rows) const;

  TransformerShape shape_;
  Products products_ = Products::kFloat;
  std::vector<Block> blocks_;
};

struct Transformer::Block {
  AffineNorm norm1, norm2;
  PackedLinear q, k, v, out, fc1, fc2;
};

}  // namespace megaslide
