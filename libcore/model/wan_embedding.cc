#include <algorithm>

#include "kernels/activation/activation.h"
#include "kernels/vector_linear/vector_linear.h"
#include "model/wan.h"
#include "model/wan_ends.h"
#include "model/wan_params.h"

namespace megaslide {

WanEmbedding::WanEmbedding(const ModelConfig& config)
    : WanModule(wan_embedding_params(config), wan_embedding_matrices(config)),
      width_(config.dim),
      channels_(config.in_channels),
      text_width_(config.text_dim),
      frequencies_(config.freq_dim) {}

PatchShape WanEmbedding::patch_shape(const BatchShape& shape) const {
  return {.batch = shape.batch,
          .channels = channels_,
          .frames = shape.frames,
          .height = shape.height,
          .width = shape.width};
}

WanEmbedding::Saved WanEmbedding::carve(Workspace& w, const BatchShape& shape, DType dtype) const {
  Saved s{};
  s.features = w.take<float>(shape.timesteps() * frequencies_);
  s.time_hidden = w.take<float>(shape.timesteps() * width_);
  s.time = w.take<float>(shape.timesteps() * width_);
  s.text_hidden = w.take_bytes(shape.batch * shape.context_rows * width_ * dtype_bytes(dtype));
  return s;
}

int64_t WanEmbedding::saved_bytes(const BatchShape& shape, DType compute_dtype) const {
  Workspace measure;
  carve(measure, shape, compute_dtype);
  return measure.high_water();
}

void WanEmbedding::conditioning_forward(const LayerCall& call, const float* timesteps, const float* text, float* context, float* time,
                                        float* modulation, void* saved) const {
  const WorkspaceScope scope(call.workspace);
  const WanCall c(call, layout(), packing());
  Workspace store(saved, saved_bytes(c.shape, c.dtype));
  const Saved s = carve(saved != nullptr ? store : c.workspace, c.shape, c.dtype);
  {
    const WorkspaceScope stage(c.workspace);
    text_forward(c, text, context, s.text_hidden);
  }
  const WorkspaceScope stage(c.workspace);
  time_forward(c, s, timesteps, time, modulation);
}

void WanEmbedding::tokens_forward(const LayerCall& call, const float* latent, float* tokens) const {
  const WorkspaceScope scope(call.workspace);
  const WanCall c(call, layout(), packing());
  const PatchShape shape = patch_shape(c.shape);
  void* patches = c.take_operand(shape.elements());
  patch_gather(c.stream, patches, latent, shape, c.dtype);
  c.linear(kMatPatch, tokens, patches, shape.rows());
}

void WanEmbedding::text_forward(const WanCall& c, const float* text, float* context, void* text_hidden) const {
  const int64_t rows = c.shape.batch * c.shape.context_rows;
  const void* operand = c.operand(text, rows * text_width_);
  float* hidden = c.workspace.take<float>(rows * width_);
  void* activation = c.take_operand(rows * width_);
  c.linear(kMatText1, hidden, operand, rows);
  gelu_forward(c.stream, activation, text_hidden, hidden, rows * width_, c.dtype);
  c.linear(kMatText2, context, activation, rows);
}

void WanEmbedding::time_forward(const WanCall& c, const Saved& s, const float* timesteps, float* time,
                                float* modulation) const {
  const int64_t times = c.shape.timesteps(), n = times * width_;
  float* silu = c.workspace.take<float>(n);
  time_features(c.stream, s.features, timesteps, times, frequencies_);
  vector_linear_forward(c.stream, s.time_hidden, s.features, c.weight(kTime1), c.weight(kTime1Bias), times, width_,
                        frequencies_, c.dtype);
  silu_forward(c.stream, silu, s.time_hidden, n);
  vector_linear_forward(c.stream, s.time, silu, c.weight(kTime2), c.weight(kTime2Bias), times, width_, width_, c.dtype);
  copy_memory(c.stream, time, s.time, n * static_cast<int64_t>(sizeof(float)));
  silu_forward(c.stream, silu, s.time, n);
  vector_linear_forward(c.stream, modulation, silu, c.weight(kTimeProjection), c.weight(kTimeProjectionBias), times,
                        6 * width_, width_, c.dtype);
}

void WanEmbedding::conditioning_backward(const LayerCall& call, const float* text, const void* saved, float* dcontext, float* dtime,
                                         float* dmodulation, float* dtext, float* dweights) const {
  const WorkspaceScope scope(call.workspace);
  const WanCall c(call, layout(), packing(), dweights);
  Workspace store(const_cast<void*>(saved), saved_bytes(c.shape, c.dtype));
  const Saved s = carve(store, c.shape, c.dtype);
  {
    const WorkspaceScope stage(c.workspace);
    time_backward(c, s, dtime, dmodulation);
  }
  const WorkspaceScope stage(c.workspace);
  text_backward(c, s, text, dcontext, dtext);
}

void WanEmbedding::time_backward(const WanCall& c, const Saved& s, float* dtime, const float* dmodulation) const {
  const int64_t times = c.shape.timesteps(), n = times * width_;
  float* silu = c.workspace.take<float>(n);
  float* dsilu = c.workspace.take<float>(n);
  silu_forward(c.stream, silu, s.time, n);
  vector_linear_weight_gradient(c.stream, c.gradient(kTimeProjection), c.gradient(kTimeProjectionBias), dmodulation,
                                silu, times, 6 * width_, width_);
  vector_linear_input_gradient(c.stream, dsilu, dmodulation, c.weight(kTimeProjection), times, 6 * width_, width_,
                               c.dtype);
  silu_backward(c.stream, dtime, dsilu, s.time, n, true);
  silu_forward(c.stream, silu, s.time_hidden, n);
  vector_linear_weight_gradient(c.stream, c.gradient(kTime2), c.gradient(kTime2Bias), dtime, silu, times, width_,
                                width_);
  vector_linear_input_gradient(c.stream, dsilu, dtime, c.weight(kTime2), times, width_, width_, c.dtype);
  silu_backward(c.stream, dsilu, dsilu, s.time_hidden, n, false);
  vector_linear_weight_gradient(c.stream, c.gradient(kTime1), c.gradient(kTime1Bias), dsilu, s.features, times, width_,
                                frequencies_);
}

void WanEmbedding::text_backward(const WanCall& c, const Saved& s, const float* text, const float* dcontext,
                                 float* dtext) const {
  const int64_t rows = c.shape.batch * c.shape.context_rows, n = rows * width_;
  const void* doperand = c.operand(dcontext, n);
  float* dactivation = c.workspace.take<float>(n);
  void* activation = c.take_operand(n);
  void* dhidden = c.take_operand(n);
  float* scratch = c.workspace.take<float>(gelu_scratch(rows, width_));
  c.bias_sum(kMatText2, dcontext, rows);
  c.input_gradient(kMatText2, dactivation, doperand, rows);
  gelu_backward(c.stream, dhidden, activation, c.gradient(kText1Bias), scratch, dactivation, s.text_hidden, rows,
                width_, c.dtype);
  c.weight_gradient(kMatText2, doperand, activation, rows);
  c.weight_gradient(kMatText1, dhidden, c.operand(text, rows * text_width_), rows);
  if (dtext != nullptr) c.input_gradient(kMatText1, dtext, dhidden, rows);
}

void WanEmbedding::tokens_backward(const LayerCall& call, const float* latent, const float* dtokens, float* dlatent,
                                   float* dweights) const {
  const WorkspaceScope scope(call.workspace);
  const WanCall c(call, layout(), packing(), dweights);
  const PatchShape shape = patch_shape(c.shape);
  const int64_t rows = shape.rows();
  void* patches = c.take_operand(shape.elements());
  patch_gather(c.stream, patches, latent, shape, c.dtype);
  const void* doperand = c.operand(dtokens, rows * width_);
  c.bias_sum(kMatPatch, dtokens, rows);
  c.weight_gradient(kMatPatch, doperand, patches, rows);
  if (dlatent == nullptr) return;
  float* dpatches = c.workspace.take<float>(shape.elements());
  c.input_gradient(kMatPatch, dpatches, doperand, rows);
  patch_scatter(c.stream, dlatent, dpatches, shape);
}

}  // namespace megaslide
