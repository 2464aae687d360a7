#include "model/wan_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention/window_groups.h"
#include "model/wan_params.h"

namespace megaslide {

namespace {

DsaOffsetMode offset_mode(DsaMode mode) {
  switch (mode) {
    case DsaMode::kFull: return DsaOffsetMode::kFull;
    case DsaMode::kSlice: return DsaOffsetMode::kSlice;
    case DsaMode::kRigid: return DsaOffsetMode::kRigid;
  }
  return DsaOffsetMode::kFull;
}

}  // namespace

WanSelfAttention::WanSelfAttention(const ModelConfig& config, int64_t layer)
    : kind_(config.attention.of_layer(layer)),
      layer_(layer),
      heads_(config.heads),
      head_dim_(config.head_dim()),
      width_(config.dim),
      eps_(static_cast<float>(config.eps)),
      dsa_(config.attention.dsa.layer(layer, config.heads)),
      window_(config.attention.window) {
  int64_t gain = 0;
  for (const DsaHeads& run : dsa_.runs) {
    const bool motion = dsa_.motion && run.mode != DsaMode::kRigid;
    runs_.push_back({run, outputs_, gain, motion_frames_, motion});
    outputs_ += run.offset_outputs();
    gain += run.groups;
    if (motion) motion_frames_ += run.kernel[0];
  }
}

AttentionShape WanSelfAttention::dense_shape(const BatchShape& shape) const {
  return {.batch = shape.batch,
          .queries = shape.tokens(),
          .keys = shape.tokens(),
          .heads = heads_,
          .head_dim = head_dim_,
          .scale = scale()};
}

WindowShape WanSelfAttention::window_shape(const BatchShape& shape) const {
  return {.batch = shape.batch,
          .frames = shape.frames,
          .height = shape.height,
          .width = shape.width,
          .heads = heads_,
          .head_dim = head_dim_,
          .scale = scale(),
          .window = {window_[0], window_[1], window_[2]},
          .layer = layer_,
          .first_frame = shape.first_frame,
          .clip_frames = shape.clip_frames};
}

DsaShape WanSelfAttention::dsa_shape(const BatchShape& shape, const DsaHeads& run) const {
  DsaShape s{.batch = shape.batch,
             .frames = shape.frames,
             .height = shape.height,
             .width = shape.width,
             .heads = run.count,
             .head_dim = head_dim_,
             .row_heads = heads_,
             .row_offsets = outputs_,
             .scale = scale(),
             .mode = offset_mode(run.mode),
             .groups = run.groups,
             .query_begin = shape.own_begin,
             .query_frames = shape.own_frames};
  for (size_t a = 0; a < 3; ++a) {
    s.kernel[a] = run.kernel[a];
    s.reach[a] = static_cast<float>(run.reach[a]);
  }
  return s;
}

template <class F>
void WanSelfAttention::for_runs(const WanCall& c, F&& body) const {
  for (const Run& run : runs_) {
    DsaShape s = dsa_shape(c.shape, run.heads);
    const int64_t samples = c.t_lo == nullptr ? 1 : s.batch;
    if (c.t_lo != nullptr) s.batch = 1;
    for (int64_t sample = 0; sample < samples; ++sample) {
      if (c.t_lo != nullptr) s.t_lo = c.t_lo + sample * s.frames, s.t_hi = c.t_hi + sample * s.frames;
      const WorkspaceScope scope(c.workspace);
      body(s, run, sample * s.tokens());
    }
  }
}

OffsetNetShape WanSelfAttention::net_shape(const BatchShape& shape, DType dtype) const {
  return {.batch = shape.batch,
          .frames = shape.frames,
          .height = shape.height,
          .width = shape.width,
          .channels = width_,
          .eps = eps_,
          .x_dtype = dtype,
          .weight_dtype = dtype,
          .out_dtype = dtype};
}

PooledShape WanSelfAttention::pooled_shape(const BatchShape& shape, DType dtype) const {
  return {.batch = shape.batch,
          .frames = shape.frames,
          .height = shape.height,
          .width = shape.width,
          .heads = heads_,
          .head_dim = head_dim_,
          .scale = scale(),
          .gate_dtype = dtype};
}

float WanSelfAttention::scale() const { return 1 / std::sqrt(static_cast<float>(head_dim_)); }

int64_t WanSelfAttention::offset_elements(const BatchShape& shape) const {
  return kind_ == AttentionKind::kDsa ? shape.rows() * outputs_ : 0;
}

std::optional<FrameRange> WanSelfAttention::sees(int64_t clip_frames, FrameRange own) const {
  switch (kind_) {
    case AttentionKind::kDense:
    case AttentionKind::kDenseMaterialised: return std::nullopt;
    case AttentionKind::kWindow: {
      const WindowAxis axis(clip_frames, window_[0], layer_);
      return FrameRange{axis.begin(axis.group(own.begin)), axis.end(axis.group(own.end - 1))};
    }
    case AttentionKind::kDsa: break;
  }
  // The pooled branch averages over the clip; a given displacement has as many entries a token as the clip has frames.
  if (dsa_.pooled || dsa_.given) return std::nullopt;
  // A window that is shifted at an end of a shot lies k_t − 1 frames to one side, and its samples up to R_t further. The
  // offset net's convolution reads the next frame.
  int64_t halo = 1;
  for (const Run& run : runs_)
    halo = std::max(halo, run.heads.kernel[0] - 1 + static_cast<int64_t>(std::ceil(run.heads.reach[0])));
  return FrameRange{std::max<int64_t>(0, own.begin - halo), std::min(clip_frames, own.end + halo)};
}

WanDeformable WanSelfAttention::carve(Workspace& w, const BatchShape& shape, DType dtype, bool keep) const {
  WanDeformable x;
  if (kind_ != AttentionKind::kDsa) return x;
  const int64_t rows = shape.rows(), n = rows * width_;
  x.raw = w.take<float>(offset_elements(shape));
  x.features = w.take_bytes(n * dtype_bytes(dtype));
  if (keep) x.conv_out = w.take<float>(n);
  if (dsa_.motion) x.motion = w.take<float>(rows * motion_frames_ * 2);
  if (dsa_.motion && !dsa_.given) {
    x.projected = w.take<float>(rows * kMotionChannels);
    x.motion_lse = w.take<float>(rows * motion_frames_);
    x.patch_norm = w.take<float>(rows);
  }
  if (dsa_.pooled) {
    x.pooled = w.take<float>(pooled_saved_count(pooled_shape(shape, dtype)));
    if (keep) x.local_out = w.take<float>(n);
  }
  return x;
}

// The offset net's output, and the motion term on it.
void WanSelfAttention::make_offsets(const WanCall& c, const void* z, const WanDeformable& kept) const {
  const int64_t rows = c.shape.rows();
  offset_net_forward(c.stream, kept.features, kept.conv_out, z, c.weight(kOffsetConv), c.weight(kOffsetConvBias),
                     c.weight(kOffsetNormWeight), c.weight(kOffsetNormBias), net_shape(c.shape, c.dtype));
  const int64_t first = c.shape.own_first_row(), own = c.shape.own().rows();
  c.linear(kMatOffset, kept.raw + first * outputs_, c.at(static_cast<const void*>(kept.features), first * width_), own);
  if (!dsa_.motion) return;
  if (dsa_.given) {
    for_runs(c, [&](const DsaShape& s, const Run& run, int64_t row) {
      if (!run.motion) return;
      motion_given_forward(c.stream, kept.raw + row * outputs_ + run.offsets, kept.motion + 2 * (rows * run.motion_frames + row * s.kernel[0]),
                           c.displacement + 2 * row * s.frames, c.at(c.weight(kMotionGain), run.gain), s, c.dtype);
    });
    return;
  }
  const WorkspaceScope scope(c.workspace);
  c.linear(kMatMotion, kept.projected, z, rows);
  for_runs(c, [&](const DsaShape& s, const Run& run, int64_t row) {
    if (!run.motion) return;
    void* space = c.workspace.take_bytes(motion_forward_workspace(c.stream, s));
    const int64_t frame = rows * run.motion_frames + row * s.kernel[0];
    motion_forward(c.stream, kept.raw + row * outputs_ + run.offsets, kept.motion + 2 * frame, kept.motion_lse + frame,
                   kept.patch_norm + row, kept.projected + row * kMotionChannels, c.weight(kMotionBeta),
                   c.at(c.weight(kMotionGain), run.gain), space, s, c.dtype);
  });
}

void WanSelfAttention::dsa_with_branch(const WanCall& c, float* out, float* lse, const void* q, const void* k,
                                       const void* v, const WanDeformable& kept) const {
  float* local = kept.local_out != nullptr ? kept.local_out : out;
  {
    const WorkspaceScope scope(c.workspace);
    for_runs(c, [&](const DsaShape& s, const Run& run, int64_t row) {
      void* space = c.workspace.take_bytes(dsa_forward_workspace(c.stream, s, c.dtype));
      const int64_t n = row * width_ + run.heads.first * head_dim_;
      dsa_forward(c.stream, local + n, lse + row * heads_ + run.heads.first, c.at(q, n), c.at(k, n), c.at(v, n),
                  kept.raw + row * outputs_ + run.offsets, space, s, c.dtype);
    });
  }
  if (!dsa_.pooled) return;
  const WorkspaceScope scope(c.workspace);
  const PooledShape s = pooled_shape(c.shape, c.dtype);
  if (local != out) copy_memory(c.stream, out, local, c.shape.rows() * width_ * static_cast<int64_t>(sizeof(float)));
  void* space = c.workspace.take_bytes(pooled_workspace(c.stream, s));
  pooled_forward(c.stream, out, kept.pooled, q, k, v, c.weight(pooled_gate_param(dsa_)), space, s, c.dtype);
}

void WanSelfAttention::forward(const WanCall& c, float* out, float* lse, const void* z, const void* q, const void* k,
                               const void* v, const WanDeformable& kept) const {
  const WorkspaceScope scope(c.workspace);
  switch (kind_) {
    case AttentionKind::kDense: {
      const AttentionShape s = dense_shape(c.shape);
      void* space = c.workspace.take_bytes(dense_attention_forward_workspace(c.stream, s, c.dtype));
      dense_attention_forward(c.stream, out, lse, q, k, v, space, s, c.dtype);
      break;
    }
    case AttentionKind::kDenseMaterialised: {
      const AttentionShape s = dense_shape(c.shape);
      void* space = c.workspace.take_bytes(dense_materialised_forward_workspace(c.stream, s, c.dtype));
      dense_materialised_forward(c.stream, out, lse, q, k, v, space, s, c.dtype);
      break;
    }
    case AttentionKind::kWindow: {
      const WindowShape s = window_shape(c.shape);
      void* space = c.workspace.take_bytes(window_attention_forward_workspace(c.stream, s, c.dtype));
      window_attention_forward(c.stream, out, lse, q, k, v, space, s, c.dtype);
      break;
    }
    case AttentionKind::kDsa:
      make_offsets(c, z, kept);
      dsa_with_branch(c, out, lse, q, k, v, kept);
      break;
  }
}

void WanSelfAttention::backward(const WanCall& c, float* dq, float* dk, float* dv, float* doffsets, const float* dout,
                                const float* out, const float* lse, const void* q, const void* k, const void* v,
                                const WanDeformable& kept) const {
  const WorkspaceScope scope(c.workspace);
  switch (kind_) {
    case AttentionKind::kDense: {
      const AttentionShape s = dense_shape(c.shape);
      void* space = c.workspace.take_bytes(dense_attention_backward_workspace(c.stream, s, c.dtype));
      dense_attention_backward(c.stream, dq, dk, dv, q, k, v, out, lse, dout, space, s, c.dtype);
      break;
    }
    case AttentionKind::kDenseMaterialised: {
      const AttentionShape s = dense_shape(c.shape);
      void* space = c.workspace.take_bytes(dense_materialised_backward_workspace(c.stream, s, c.dtype));
      dense_materialised_backward(c.stream, dq, dk, dv, q, k, v, out, lse, dout, space, s, c.dtype);
      break;
    }
    case AttentionKind::kWindow: {
      const WindowShape s = window_shape(c.shape);
      void* space = c.workspace.take_bytes(window_attention_backward_workspace(c.stream, s, c.dtype));
      window_attention_backward(c.stream, dq, dk, dv, q, k, v, out, lse, dout, space, s, c.dtype);
      break;
    }
    case AttentionKind::kDsa: {
      for_runs(c, [&](const DsaShape& s, const Run& run, int64_t row) {
        void* space = c.workspace.take_bytes(dsa_backward_workspace(c.stream, s, c.dtype));
        const int64_t n = row * width_ + run.heads.first * head_dim_, offsets = row * outputs_ + run.offsets;
        dsa_backward(c.stream, dq + n, dk + n, dv + n, doffsets + offsets, c.at(q, n), c.at(k, n), c.at(v, n),
                     kept.raw + offsets, (dsa_.pooled ? kept.local_out : out) + n, lse + row * heads_ + run.heads.first,
                     dout + n, space, s, c.dtype);
      });
      if (!dsa_.pooled) break;
      const size_t gate = pooled_gate_param(dsa_);
      const PooledShape pooled = pooled_shape(c.shape, c.dtype);
      pooled_backward(c.stream, dq, dk, dv, c.gradient(gate), kept.pooled, c.weight(gate), dout,
                      c.workspace.take_bytes(pooled_workspace(c.stream, pooled)), pooled);
      break;
    }
  }
}

void WanSelfAttention::offsets_backward(const WanCall& c, float* dz, const float* doffsets, const void* z,
                                        const WanDeformable& kept) const {
  if (kind_ != AttentionKind::kDsa) return;
  if (dsa_.motion) motion_term_backward(c, dz, doffsets, z, kept);
  const WorkspaceScope scope(c.workspace);
  const int64_t rows = c.shape.rows();
  const int64_t first = c.shape.own_first_row(), own = c.shape.own().rows();
  const float* own_offsets = doffsets + first * outputs_;
  const void* operand = c.operand(own_offsets, own * outputs_);
  c.bias_sum(kMatOffset, own_offsets, own);
  c.weight_gradient(kMatOffset, operand, c.at(static_cast<const void*>(kept.features), first * width_), own);
  float* dfeatures = c.workspace.take<float>(rows * width_);
  c.clear_beside_own(dfeatures, width_ * static_cast<int64_t>(sizeof(float)));
  c.input_gradient(kMatOffset, dfeatures + first * width_, operand, own);
  const OffsetNetShape s = net_shape(c.shape, c.dtype);
  void* space = c.workspace.take_bytes(offset_net_backward_workspace(c.stream, s));
  offset_net_backward(c.stream, dz, c.gradient(kOffsetConv), c.gradient(kOffsetConvBias), c.gradient(kOffsetNormWeight),
                      c.gradient(kOffsetNormBias), dfeatures, kept.conv_out, z, c.weight(kOffsetConv),
                      c.weight(kOffsetNormWeight), c.weight(kOffsetNormBias), space, s);
}

void WanSelfAttention::motion_term_backward(const WanCall& c, float* dz, const float* doffsets, const void* z,
                                            const WanDeformable& kept) const {
  const int64_t rows = c.shape.rows();
  if (dsa_.given) {  // the projection and the scale of the scores take no part
    for_runs(c, [&](const DsaShape& s, const Run& run, int64_t row) {
      if (!run.motion) return;
      motion_given_backward(c.stream, c.gradient(kMotionGain) + run.gain, doffsets + row * outputs_ + run.offsets,
                            kept.motion + 2 * (rows * run.motion_frames + row * s.kernel[0]), s);
    });
    return;
  }
  const WorkspaceScope scope(c.workspace);
  float* dprojected = c.workspace.take<float>(rows * kMotionChannels);
  bool first = true;  // of the runs: it overwrites, the others add
  for_runs(c, [&](const DsaShape& s, const Run& run, int64_t row) {
    if (!run.motion) return;
    const int64_t values = s.batch * s.tokens() * kMotionChannels, frame = rows * run.motion_frames + row * s.kernel[0];
    float* sum = dprojected + row * kMotionChannels;
    float* own = first ? sum : c.workspace.take<float>(values);
    void* space = c.workspace.take_bytes(motion_backward_workspace(c.stream, s));
    motion_backward(c.stream, own, c.gradient(kMotionBeta), c.gradient(kMotionGain) + run.gain,
                    doffsets + row * outputs_ + run.offsets, kept.motion + 2 * frame, kept.motion_lse + frame,
                    kept.patch_norm + row, kept.projected + row * kMotionChannels, c.weight(kMotionBeta),
                    c.at(c.weight(kMotionGain), run.gain), space, s, c.dtype);
    if (!first) add_in_place(c.stream, sum, own, values);
    if (row + s.batch * s.tokens() == rows) first = false;
  });
  const void* operand = c.operand(dprojected, rows * kMotionChannels);
  c.weight_gradient(kMatMotion, operand, z, rows);
  c.input_gradient(kMatMotion, dz, operand, rows, true);
}

}  // namespace megaslide
