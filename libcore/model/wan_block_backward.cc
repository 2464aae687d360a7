// The block backwards (spec wan.md A.14), stage by stage in reverse. A stage reads what forward saved, accumulates into
// the gradient slab, and turns the gradient at its result into that at its input.
#include <algorithm>

#include "kernels/activation/activation.h"
#include "kernels/modulate/modulate.h"
#include "kernels/norm/norm.h"
#include "model/wan_block.h"

namespace megaslide {

int64_t WanBlock::scratch_elements(const BatchShape& shape) const {
  const int64_t rows = shape.rows(), keys = shape.batch * shape.context_rows;
  return std::max({layer_norm_scratch(rows, shape.rows_a_timestep(), width_), layer_norm_scratch(rows, rows, width_),
                   gated_add_scratch(rows, shape.rows_a_timestep(), width_), rms_rope_scratch(std::max(rows, keys), width_),
                   gelu_scratch(ffn_chunk(shape), ffn_width_)});
}

void WanBlock::backward(const LayerCall& call, const Conditioning& conditioning, const float* x, const void* saved,
                        const float* dy, float* dx, float* dweights) const {
  const WorkspaceScope scope(call.workspace);
  const WanCall c(call, layout(), packing(), dweights);
  LayerCall own_call = call;
  own_call.shape = call.shape.own();
  const WanCall own(own_call, layout(), packing(), dweights);
  Workspace store(const_cast<void*>(saved), saved_bytes(c.shape, c.dtype));
  const Saved s = carve(store, c.shape, c.dtype);
  const int64_t modulation_elements = c.shape.timesteps() * kSlots * width_;
  Frame f{.seen = c, .own = own, .modulation = s.modulation, .vectors = c.vectors(kNorm2Weight, kSelfQ), .rope = make_rope_table(c)};
  f.dmodulation = c.workspace.take<float>(modulation_elements);
  f.scratch = c.workspace.take<float>(scratch_elements(c.shape));
  fill_zero(c.stream, f.dmodulation, modulation_elements * static_cast<int64_t>(sizeof(float)));
  // Of the rows that a slab only sees, nothing comes from the stages after self-attention.
  const int64_t first = c.shape.own_first_row() * width_;
  c.clear_beside_own(dx, width_ * static_cast<int64_t>(sizeof(float)));
  {
    const WorkspaceScope stage(c.workspace);
    ffn_backward(f, s.ffn, s.x2, dy, dx + first);
  }
  {
    const WorkspaceScope stage(c.workspace);
    cross_backward(f, s.cross, s.x1, conditioning.dcontext, dx + first);
  }
  {
    const WorkspaceScope stage(c.workspace);
    self_backward(f, s.self, x, dx);
  }
  modulation_backward(c.stream, c.gradient(kTable), conditioning.dmodulation, f.dmodulation, c.shape.timesteps(), kSlots,
                      kSlots, width_);
}

void WanBlock::ffn_backward(const Frame& f, const FfnTensors& s, const float* x2, const float* dy, float* dx) const {
  const WanCall& c = f.own;
  const int64_t rows = c.shape.rows(), group = c.shape.rows_a_timestep(), stride = kSlots * width_, chunk = ffn_chunk(c.shape);
  void* dincrement = c.take_operand(rows * width_);
  gated_add_backward(c.stream, dincrement, f.dmodulation + f.own_slot(kGate2, width_), c.gradient(kFfnDownBias), f.scratch, dy,
                     s.increment, f.modulation + f.own_slot(kGate2, width_), rows, width_, group, stride, c.dtype);
  float* dz = c.workspace.take<float>(rows * width_);
  void* dhidden = c.take_operand(chunk * ffn_width_);
  void* activation = c.take_operand(chunk * ffn_width_);
  for (int64_t at = 0; at < rows; at += chunk) {
    const int64_t n = std::min(chunk, rows - at);
    const void* z = c.at(static_cast<const void*>(s.z), at * width_);
    const void* dpart = c.at(static_cast<const void*>(dincrement), at * width_);
    const void* hidden = s.hidden;
    if (hidden == nullptr) {
      c.linear_operand(kMatFfnUp, activation, z, n);
      hidden = activation;
    }
    c.gelu_gradient(kMatFfnDown, dhidden, activation, c.gradient(kFfnUpBias), f.scratch, dpart, hidden, n);
    c.weight_gradient(kMatFfnDown, dpart, activation, n);
    c.weight_gradient(kMatFfnUp, dhidden, z, n);
    c.input_gradient(kMatFfnUp, dz + at * width_, dhidden, n);
  }
  layer_norm_backward(c.stream, dx, f.dmodulation + f.own_slot(kScale2, width_), f.dmodulation + f.own_slot(kShift2, width_), f.scratch, dz,
                      dy, x2, f.modulation + f.own_slot(kScale2, width_), rows, width_, group, stride, eps_);
}

void WanBlock::cross_backward(const Frame& f, const CrossTensors& s, const float* x1, float* dcontext,
                              float* dx) const {
  const WanCall& c = f.own;
  const int64_t rows = c.shape.rows(), keys = c.shape.batch * c.shape.context_rows, n = rows * width_;
  const RopeGrid grid = rope_grid(c.shape);
  float* dq = c.workspace.take<float>(n);
  float* dk = c.workspace.take<float>(keys * width_);
  float* dv = c.workspace.take<float>(keys * width_);
  float* dout = c.workspace.take<float>(n);
  {
    const WorkspaceScope scope(c.workspace);
    const void* dincrement = c.operand(dx, n);
    c.bias_sum(kMatCrossOut, dx, rows);
    c.weight_gradient(kMatCrossOut, dincrement, c.operand(s.out, n), rows);
    c.input_gradient(kMatCrossOut, dout, dincrement, rows);
  }
  {
    const WorkspaceScope scope(c.workspace);
    const AttentionShape shape = cross_shape(c.shape);
    void* space = c.workspace.take_bytes(dense_attention_backward_workspace(c.stream, shape, c.dtype));
    dense_attention_backward(c.stream, dq, dk, dv, s.q, s.k, s.v, s.out, s.lse, dout, space, shape, c.dtype);
  }
  void* draw = c.take_operand(std::max(rows, keys) * width_);
  rms_rope_backward(c.stream, draw, c.gradient(kCrossNormK), c.gradient(kCrossKBias), f.scratch, dk, s.k_raw, s.k_rstd,
                    f.vector(kCrossNormK), nullptr, grid, keys, c.dtype);
  c.weight_gradient(kMatCrossK, draw, s.context, keys);
  c.input_gradient(kMatCrossK, dcontext, draw, keys, true);
  const void* dvalue = c.operand(dv, keys * width_);
  c.bias_sum(kMatCrossV, dv, keys);
  c.weight_gradient(kMatCrossV, dvalue, s.context, keys);
  c.input_gradient(kMatCrossV, dcontext, dvalue, keys, true);
  rms_rope_backward(c.stream, draw, c.gradient(kCrossNormQ), c.gradient(kCrossQBias), f.scratch, dq, s.q_raw, s.q_rstd,
                    f.vector(kCrossNormQ), nullptr, grid, rows, c.dtype);
  c.weight_gradient(kMatCrossQ, draw, s.u, rows);
  float* du = dout;
  c.input_gradient(kMatCrossQ, du, draw, rows);
  layer_norm_backward(c.stream, dx, c.gradient(kNorm2Weight), c.gradient(kNorm2Bias), f.scratch, du, dx, x1,
                      f.vector(kNorm2Weight), rows, width_, rows, 0, eps_);
}

void WanBlock::self_backward(const Frame& f, const SelfTensors& s, const float* x, float* dx) const {
  const WanCall &c = f.seen, &own = f.own;
  const int64_t rows = c.shape.rows(), group = c.shape.rows_a_timestep(), stride = kSlots * width_, n = rows * width_;
  const RopeGrid grid = rope_grid(c.shape);
  float* dq = c.workspace.take<float>(n);
  float* dk = c.workspace.take<float>(n);
  float* dv = c.workspace.take<float>(n);
  float* doffsets = c.workspace.take<float>(attention_.offset_elements(c.shape));
  float* dout = c.workspace.take<float>(n);
  const int64_t first_row = c.shape.own_first_row(), first = first_row * width_, own_rows = own.shape.rows();
  {
    const WorkspaceScope scope(c.workspace);
    void* dincrement = c.take_operand(own_rows * width_);
    gated_add_backward(c.stream, dincrement, f.dmodulation + f.own_slot(kGate1, width_), c.gradient(kSelfOutBias), f.scratch,
                       dx + first, s.increment, f.modulation + f.own_slot(kGate1, width_), own_rows, width_,
                       own.shape.rows_a_timestep(), stride, c.dtype);
    own.weight_gradient(kMatSelfOut, dincrement, own.operand(s.out + first, own_rows * width_), own_rows);
    c.clear_beside_own(dout, width_ * static_cast<int64_t>(sizeof(float)));
    own.input_gradient(kMatSelfOut, dout + first, dincrement, own_rows);
  }
  attention_.backward(c, dq, dk, dv, doffsets, dout, s.out, s.lse, s.q, s.k, s.v, s.deformable);
  float* dz = dout;
  void* draw = c.take_operand(n);
  const auto [own_table, own_grid] = own_rope(f);
  rms_rope_backward(c.stream, draw, c.gradient(kSelfNormQ), c.gradient(kSelfQBias), f.scratch, dq + first,
                    c.at(static_cast<const void*>(s.q_raw), first), s.q_rstd + first_row, f.vector(kSelfNormQ), own_table, own_grid,
                    own_rows, c.dtype);
  own.weight_gradient(kMatSelfQ, draw, c.at(static_cast<const void*>(s.z), first), own_rows);
  c.clear_beside_own(dz, width_ * static_cast<int64_t>(sizeof(float)));
  own.input_gradient(kMatSelfQ, dz + first, draw, own_rows);
  rms_rope_backward(c.stream, draw, c.gradient(kSelfNormK), c.gradient(kSelfKBias), f.scratch, dk, s.k_raw, s.k_rstd,
                    f.vector(kSelfNormK), f.rope, grid, rows, c.dtype);
  c.weight_gradient(kMatSelfK, draw, s.z, rows);
  c.input_gradient(kMatSelfK, dz, draw, rows, true);
  cast_operand(c.stream, draw, dv, n, c.dtype);
  c.bias_sum(kMatSelfV, dv, rows);
  c.weight_gradient(kMatSelfV, draw, s.z, rows);
  c.input_gradient(kMatSelfV, dz, draw, rows, true);
  attention_.offsets_backward(c, dz, doffsets, s.z, s.deformable);
  layer_norm_backward(c.stream, dx, f.dmodulation + kScale1 * width_, f.dmodulation + kShift1 * width_, f.scratch, dz,
                      dx, x, f.modulation + kScale1 * width_, rows, width_, group, stride, eps_);
}

}  // namespace megaslide
