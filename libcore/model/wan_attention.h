// Self-attention of a Wan block in its kinds: dense, dense-materialised, window, dsa with its offset net, and with the
// motion term and the pooled branch where the model has them.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "config/model_config.h"
#include "kernels/attention/attention.h"
#include "kernels/dsa/dsa.h"
#include "kernels/dsa/motion.h"
#include "kernels/dsa/offset_net.h"
#include "kernels/dsa/pooled.h"
#include "model/wan_module.h"

namespace megaslide {

// What deformable attention leaves; all nullptr in other kinds.
struct WanDeformable {
  float* raw = nullptr;       // (R, offsets a token)
  float* conv_out = nullptr;  // (R, D), kept for backward alone
  void* features = nullptr;   // operand (R, D): input of the offset net's last linear, kept for backward alone
  // Motion term; m and lse of the runs of heads, one behind the other
  float* projected = nullptr;   // (R, 16)
  float* motion = nullptr;      // (R, k_t, 2) each
  float* motion_lse = nullptr;  // (R, k_t) each
  float* patch_norm = nullptr;  // (R)
  // Pooled branch
  float* pooled = nullptr;     // pooled_saved_count
  float* local_out = nullptr;  // (R, D): the operator's result without the branch, kept for backward alone
};

class WanSelfAttention {
 public:
  WanSelfAttention(const ModelConfig& config, int64_t layer);

  WanDeformable carve(Workspace& w, const BatchShape& shape, DType dtype, bool keep) const;

  // z: the block's modulated norm (operand), which the offset net reads. out (R, D), lse (R, heads) are overwritten.
  void forward(const WanCall& c, float* out, float* lse, const void* z, const void* q, const void* k, const void* v,
               const WanDeformable& kept) const;
  // dq, dk, dv (R, D) and doffsets (offset_elements; unused by other kinds) are overwritten.
  void backward(const WanCall& c, float* dq, float* dk, float* dv, float* doffsets, const float* dout, const float* out,
                const float* lse, const void* q, const void* k, const void* v, const WanDeformable& kept) const;
  // Through what makes the offsets: dz (R, D) and its parameters' gradients are accumulated. Does nothing for other kinds.
  void offsets_backward(const WanCall& c, float* dz, const float* doffsets, const void* z, const WanDeformable& kept) const;
  int64_t offset_elements(const BatchShape& shape) const;
  // As Layer::sees().
  std::optional<FrameRange> sees(int64_t clip_frames, FrameRange own) const;

 private:
  AttentionShape dense_shape(const BatchShape& shape) const;
  WindowShape window_shape(const BatchShape& shape) const;
  // A run of heads that deformable attention treats alike, and where its parts lie within those of all.
  struct Run {
    DsaHeads heads;
    int64_t offsets, gain;   // its first raw offset of a token, its first gain
    int64_t motion_frames;   // slots of frames of the runs before it that have the motion term
    bool motion;
  };
  DsaShape dsa_shape(const BatchShape& shape, const DsaHeads& run) const;
  // body(shape, run, first row): of the whole batch at once, or sample by sample where each has its own shots.
  template <class F>
  void for_runs(const WanCall& c, F&& body) const;
  OffsetNetShape net_shape(const BatchShape& shape, DType dtype) const;
  PooledShape pooled_shape(const BatchShape& shape, DType dtype) const;
  void make_offsets(const WanCall& c, const void* z, const WanDeformable& kept) const;
  void dsa_with_branch(const WanCall& c, float* out, float* lse, const void* q, const void* k, const void* v,
                       const WanDeformable& kept) const;
  void motion_term_backward(const WanCall& c, float* dz, const float* doffsets, const void* z, const WanDeformable& kept) const;
  float scale() const;

  AttentionKind kind_;
  int64_t layer_, heads_, head_dim_, width_;
  float eps_;
  DsaLayer dsa_;
  std::vector<Run> runs_;
  int64_t outputs_ = 0, motion_frames_ = 0;  // raw offsets of a token, slots of frames of all runs
  std::array<int64_t, 3> window_;
};

}  // namespace megaslide
