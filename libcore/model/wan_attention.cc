#include "model/wan_attention.h"

#include <cmath>

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
      dsa_(config.attention.dsa),
      window_(config.attention.window) {}

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
          .layer = layer_};
}

DsaShape WanSelfAttention::dsa_shape(const BatchShape& shape) const {
  DsaShape s{.batch = shape.batch,
             .frames = shape.frames,
             .height = shape.height,
             .width = shape.width,
             .heads = heads_,
             .head_dim = head_dim_,
             .scale = scale(),
             .mode = offset_mode(dsa_.mode),
             .groups = dsa_.groups};
  for (size_t a = 0; a < 3; ++a) {
    s.kernel[a] = dsa_.kernel[a];
    s.reach[a] = static_cast<float>(dsa_.reach[a]);
  }
  return s;
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

float WanSelfAttention::scale() const { return 1 / std::sqrt(static_cast<float>(head_dim_)); }

int64_t WanSelfAttention::offset_elements(const BatchShape& shape) const {
  return kind_ == AttentionKind::kDsa ? shape.rows() * dsa_.offset_outputs() : 0;
}

WanOffsets WanSelfAttention::carve_offsets(Workspace& w, const BatchShape& shape, DType dtype, bool keep) const {
  WanOffsets o;
  if (kind_ != AttentionKind::kDsa) return o;
  const int64_t n = shape.rows() * width_;
  o.raw = w.take<float>(offset_elements(shape));
  o.features = w.take_bytes(n * dtype_bytes(dtype));
  if (keep) o.conv_out = w.take<float>(n);
  return o;
}

void WanSelfAttention::forward(const WanCall& c, float* out, float* lse, const void* z, const void* q, const void* k,
                               const void* v, const WanOffsets& offsets) const {
  const WorkspaceScope scope(c.workspace);
  switch (kind_) {
    case AttentionKind::kDense: {
      const AttentionShape s = dense_shape(c.shape);
      void* space = c.workspace.take_bytes(dense_attention_forward_workspace_bytes(s, c.dtype));
      dense_attention_forward(c.stream, out, lse, q, k, v, space, s, c.dtype);
      break;
    }
    case AttentionKind::kDenseMaterialised: {
      const AttentionShape s = dense_shape(c.shape);
      void* space = c.workspace.take_bytes(dense_materialised_forward_workspace_bytes(s, c.dtype));
      dense_materialised_forward(c.stream, out, lse, q, k, v, space, s, c.dtype);
      break;
    }
    case AttentionKind::kWindow: {
      const WindowShape s = window_shape(c.shape);
      void* space = c.workspace.take_bytes(window_attention_forward_workspace_bytes(s, c.dtype));
      window_attention_forward(c.stream, out, lse, q, k, v, space, s, c.dtype);
      break;
    }
    case AttentionKind::kDsa: {
      offset_net_forward(c.stream, offsets.features, offsets.conv_out, z, c.weight(kOffsetConv),
                         c.weight(kOffsetConvBias), c.weight(kOffsetNormWeight), c.weight(kOffsetNormBias),
                         net_shape(c.shape, c.dtype));
      c.linear(kMatOffset, offsets.raw, offsets.features, c.shape.rows());
      const DsaShape s = dsa_shape(c.shape);
      void* space = c.workspace.take_bytes(dsa_forward_workspace_bytes(s, c.dtype));
      dsa_forward(c.stream, out, lse, q, k, v, offsets.raw, space, s, c.dtype);
      break;
    }
  }
}

void WanSelfAttention::backward(const WanCall& c, float* dq, float* dk, float* dv, float* doffsets, const float* dout,
                                const float* out, const float* lse, const void* q, const void* k, const void* v,
                                const WanOffsets& offsets) const {
  const WorkspaceScope scope(c.workspace);
  switch (kind_) {
    case AttentionKind::kDense: {
      const AttentionShape s = dense_shape(c.shape);
      void* space = c.workspace.take_bytes(dense_attention_backward_workspace_bytes(s, c.dtype));
      dense_attention_backward(c.stream, dq, dk, dv, q, k, v, out, lse, dout, space, s, c.dtype);
      break;
    }
    case AttentionKind::kDenseMaterialised: {
      const AttentionShape s = dense_shape(c.shape);
      void* space = c.workspace.take_bytes(dense_materialised_backward_workspace_bytes(s, c.dtype));
      dense_materialised_backward(c.stream, dq, dk, dv, q, k, v, out, lse, dout, space, s, c.dtype);
      break;
    }
    case AttentionKind::kWindow: {
      const WindowShape s = window_shape(c.shape);
      void* space = c.workspace.take_bytes(window_attention_backward_workspace_bytes(s, c.dtype));
      window_attention_backward(c.stream, dq, dk, dv, q, k, v, out, lse, dout, space, s, c.dtype);
      break;
    }
    case AttentionKind::kDsa: {
      const DsaShape s = dsa_shape(c.shape);
      void* space = c.workspace.take_bytes(dsa_backward_workspace_bytes(s, c.dtype));
      dsa_backward(c.stream, dq, dk, dv, doffsets, q, k, v, offsets.raw, out, lse, dout, space, s, c.dtype);
      break;
    }
  }
}

void WanSelfAttention::offsets_backward(const WanCall& c, float* dz, const float* doffsets, const void* z,
                                        const WanOffsets& offsets) const {
  if (kind_ != AttentionKind::kDsa) return;
  const WorkspaceScope scope(c.workspace);
  const int64_t rows = c.shape.rows();
  const void* operand = c.operand(doffsets, offset_elements(c.shape));
  c.bias_sum(kMatOffset, doffsets, rows);
  c.weight_gradient(kMatOffset, operand, offsets.features, rows);
  float* dfeatures = c.workspace.take<float>(rows * width_);
  c.input_gradient(kMatOffset, dfeatures, operand, rows);
  const OffsetNetShape s = net_shape(c.shape, c.dtype);
  void* space = c.workspace.take_bytes(offset_net_backward_workspace_bytes(s));
  offset_net_backward(c.stream, dz, c.gradient(kOffsetConv), c.gradient(kOffsetConvBias), c.gradient(kOffsetNormWeight),
                      c.gradient(kOffsetNormBias), dfeatures, offsets.conv_out, z, c.weight(kOffsetConv),
                      c.weight(kOffsetNormWeight), c.weight(kOffsetNormBias), space, s);
}

}  // namespace megaslide
