#include <algorithm>

#include "kernels/modulate/modulate.h"
#include "kernels/norm/norm.h"
#include "model/wan.h"
#include "model/wan_ends.h"
#include "model/wan_params.h"

namespace megaslide {

namespace {
enum HeadSlot : int64_t { kShift, kScale, kHeadSlots };
}

WanHead::WanHead(const ModelConfig& config)
    : WanModule(wan_head_params(config), wan_head_matrices(config)),
      width_(config.dim),
      channels_(config.out_channels),
      eps_(static_cast<float>(config.eps)) {}

PatchShape WanHead::patch_shape(const BatchShape& shape) const {
  return {.batch = shape.batch,
          .channels = channels_,
          .frames = shape.frames,
          .height = shape.height,
          .width = shape.width};
}

WanHead::Saved WanHead::carve(Workspace& w, const BatchShape& shape, DType dtype) const {
  Saved s{};
  s.modulation = w.take<float>(shape.timesteps() * kHeadSlots * width_);
  s.z = w.take_bytes(shape.rows() * width_ * dtype_bytes(dtype));
  return s;
}

int64_t WanHead::saved_bytes(const BatchShape& shape, DType compute_dtype) const {
  Workspace measure;
  carve(measure, shape, compute_dtype);
  return measure.high_water();
}

void WanHead::forward(const LayerCall& call, const float* tokens, const float* time, float* out, void* saved) const {
  const WorkspaceScope scope(call.workspace);
  const WanCall c(call, layout(), packing());
  Workspace store(saved, saved_bytes(c.shape, c.dtype));
  const Saved s = carve(saved != nullptr ? store : c.workspace, c.shape, c.dtype);
  const PatchShape shape = patch_shape(c.shape);
  const int64_t rows = shape.rows();
  modulation_forward(c.stream, s.modulation, c.weight(kHeadTable), time, c.shape.timesteps(), kHeadSlots, 1, width_,
                     1u << kScale, c.dtype);
  layer_norm_forward(c.stream, s.z, tokens, s.modulation + kScale * width_, s.modulation + kShift * width_, rows,
                     width_, c.shape.rows_a_timestep(), kHeadSlots * width_, eps_, c.dtype);
  float* y = c.workspace.take<float>(shape.elements());
  c.linear(kMatHead, y, s.z, rows);
  unpatchify(c.stream, out, y, shape);
}

void WanHead::backward(const LayerCall& call, const float* tokens, const float* time, const void* saved,
                       const float* dout, float* dtokens, float* dtime, float* dweights) const {
  (void)time;
  const WorkspaceScope scope(call.workspace);
  const WanCall c(call, layout(), packing(), dweights);
  Workspace store(const_cast<void*>(saved), saved_bytes(c.shape, c.dtype));
  const Saved s = carve(store, c.shape, c.dtype);
  const PatchShape shape = patch_shape(c.shape);
  const int64_t rows = shape.rows(), group = c.shape.rows_a_timestep(),
                modulation = c.shape.timesteps() * kHeadSlots * width_;
  float* dy = c.workspace.take<float>(shape.elements());
  unpatchify_backward(c.stream, dy, dout, shape);
  const void* doperand = c.operand(dy, shape.elements());
  c.bias_sum(kMatHead, dy, rows);
  c.weight_gradient(kMatHead, doperand, s.z, rows);
  float* dz = c.workspace.take<float>(rows * width_);
  c.input_gradient(kMatHead, dz, doperand, rows);
  float* dmodulation = c.workspace.take<float>(modulation);
  float* scratch = c.workspace.take<float>(layer_norm_scratch(rows, group, width_));
  fill_zero(c.stream, dmodulation, modulation * static_cast<int64_t>(sizeof(float)));
  layer_norm_backward(c.stream, dtokens, dmodulation + kScale * width_, dmodulation + kShift * width_, scratch, dz,
                      nullptr, tokens, s.modulation + kScale * width_, rows, width_, group,
                      kHeadSlots * width_, eps_);
  modulation_backward(c.stream, c.gradient(kHeadTable), dtime, dmodulation, c.shape.timesteps(), kHeadSlots, 1, width_);
}

}  // namespace megaslide
