// A block of the UMT5 encoder (spec wan.md B.2): self-attention with a bias by relative position, gated FFN, no biases.
//   x ← x + Wo·attention(RMS(x; w1)),   x ← x + Wout·(gelu(Wgate h) ⊙ Wup h),  h = RMS(x; w2)
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/layer.h"
#include "model/umt5_config.h"

namespace megaslide {

class Umt5Block final : public ForwardLayer {
 public:
  explicit Umt5Block(const Umt5Config& config);

  // Names as transformers has them below "encoder.block.N.".
  const std::vector<ParamSpec>& params() const override { return params_; }
  const ParamLayout& layout() const override { return layout_; }
  int64_t packed_bytes(DType compute_dtype, bool training) const override;
  void pack(Stream& stream, DType compute_dtype, bool training, const void* weights, void* packed) const override;

  // shape: batch prompts of tokens() rows each, without padding. There is no conditioning, and nothing is saved.
  void forward(const LayerCall& call, const Conditioning& conditioning, const float* x, float* y, void* saved) const override;
  // The same for texts of different lengths, one after the other; call.shape has the rows of all.
  void forward_texts(const LayerCall& call, std::span<const int64_t> lengths, const float* x, float* y) const;

 private:
  struct Call;
  void attention(const Call& c, std::span<const int64_t> lengths, const float* x, float* y) const;
  void ffn(const Call& c, float* y) const;

  Umt5Config config_;
  std::vector<ParamSpec> params_;
  ParamLayout layout_;
};

}  // namespace megaslide
