// A Wan transformer block (spec wan.md A.6, backward A.14): self-attention, cross-attention to the text, FFN.
#pragma once
#include <cstdint>

#include "config/model_config.h"
#include "kernels/rope/rope.h"
#include "model/wan_attention.h"
#include "model/wan_module.h"
#include "model/wan_params.h"

namespace megaslide {

// Slots of a block's modulation (B·times, 6, D); scales are held as 1 + scale.
enum WanSlot : int64_t { kShift1, kScale1, kGate1, kShift2, kScale2, kGate2, kSlots };

class WanBlock final : public WanModule<Layer> {
 public:
  WanBlock(const ModelConfig& config, int64_t layer, bool fp8_forward = false);

  int64_t saved_bytes(const BatchShape& shape, DType compute_dtype) const override;
  void forward(const LayerCall& call, const Conditioning& conditioning, const float* x, float* y,
               void* saved) const override;
  void backward(const LayerCall& call, const Conditioning& conditioning, const float* x, const void* saved,
                const float* dy, float* dx, float* dweights) const override;
  std::optional<FrameRange> sees(int64_t clip_frames, FrameRange own) const override { return attention_.sees(clip_frames, own); }

 private:
  // Intermediates, R rows of D, of a slab those that it sees in self-attention, and its own after it:
  // "operand" is the compute dtype, the rest fp32. What only backward reads is nullptr when
  // nothing is kept.
  struct SelfTensors {
    void* z;                 // operand: modulated norm of x
    void *q_raw, *k_raw;     // operand: projections before their norm
    float *q_rstd, *k_rstd;  // (R)
    void *q, *k, *v;         // operand: what attention reads
    float* out;              // attention's result
    float* lse;              // (R, heads)
    void* increment;         // operand, own rows: what the gate multiplies
    WanDeformable deformable;  // of `dsa` blocks
  };
  struct CrossTensors {
    void* u;              // operand: affine norm of x1
    void* context;        // operand (B·S, D)
    void *q_raw, *k_raw;  // operand; k (B·S, D)
    float *q_rstd, *k_rstd;
    void *q, *k, *v;
    float* out;
    float* lse;
  };
  struct FfnTensors {
    void* z;       // operand: modulated norm of x2
    void* hidden;  // operand (R, F) before GELU, kept only where all rows are one chunk
    void* increment;
  };
  struct Saved {
    float* modulation;  // (B·times, 6, D), scales as 1 + scale
    SelfTensors self;
    float* x1;
    CrossTensors cross;
    float* x2;
    FfnTensors ffn;
  };
  // What every stage of a call reads.
  struct Frame {
    const WanCall& seen;  // by self-attention
    const WanCall& own;   // the stages after it: no token sees another
    const float* modulation;
    const float* vectors;  // kNorm2Weight … kCrossNormK in fp32
    const float* rope;
    float* dmodulation = nullptr;  // (B·times, 6, D) of this block
    float* scratch = nullptr;
    const float* vector(size_t param) const { return vectors + (seen.offset(param) - seen.offset(kNorm2Weight)); }
    // A slot of the first row that is computed.
    int64_t own_slot(int64_t slot, int64_t width) const { return (seen.shape.own_first_timestep() * kSlots + slot) * width; }
  };

  SelfTensors carve_self(Workspace& w, const BatchShape& shape, DType dtype, bool keep) const;
  CrossTensors carve_cross(Workspace& w, const BatchShape& shape, DType dtype, bool keep) const;
  FfnTensors carve_ffn(Workspace& w, const BatchShape& shape, DType dtype, bool keep) const;
  Saved carve(Workspace& w, const BatchShape& shape, DType dtype) const;

  const float* make_rope_table(const WanCall& c) const;
  RopeGrid rope_grid(const BatchShape& shape) const;
  // The table and grid of what a slab computes, from those of what it sees.
  std::pair<const float*, RopeGrid> own_rope(const Frame& f) const;
  AttentionShape cross_shape(const BatchShape& shape) const;
  int64_t ffn_chunk(const BatchShape& shape) const;
  int64_t scratch_elements(const BatchShape& shape) const;

  void self_forward(const Frame& f, const SelfTensors& s, const float* x, float* x1) const;
  void cross_forward(const Frame& f, const CrossTensors& s, const float* context, const float* x1, float* x2) const;
  void ffn_forward(const Frame& f, const FfnTensors& s, const float* x2, float* y) const;
  // dx holds the gradient at the stage's result and then that at its input; ffn_backward reads dy instead.
  void self_backward(const Frame& f, const SelfTensors& s, const float* x, float* dx) const;
  void cross_backward(const Frame& f, const CrossTensors& s, const float* x1, float* dcontext, float* dx) const;
  void ffn_backward(const Frame& f, const FfnTensors& s, const float* x2, const float* dy, float* dx) const;

  int64_t width_, heads_, ffn_width_, rope_positions_;
  float eps_;
  WanSelfAttention attention_;
};

}  // namespace megaslide
