#include "model/wan_block.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/modulate/modulate.h"
#include "kernels/norm/norm.h"
#include "model/wan.h"

namespace megaslide {

namespace {

// Rows of the FFN at a time: its hidden activations do not grow with the clip.
constexpr int64_t kFfnRows = 4096;
constexpr uint32_t kScales = 1u << kScale1 | 1u << kScale2;

}  // namespace

// In 8 bits: all but what makes offsets, whose outputs are few.
WanBlock::WanBlock(const ModelConfig& config, int64_t layer, bool fp8_forward)
    : WanModule(wan_block_params(config, layer), wan_block_matrices(config, layer), fp8_forward ? size_t{kMatOffset} : 0),
      width_(config.dim),
      heads_(config.heads),
      ffn_width_(config.ffn_dim),
      rope_positions_(config.rope_max_seq_len),
      eps_(static_cast<float>(config.eps)),
      attention_(config, layer) {}

RopeGrid WanBlock::rope_grid(const BatchShape& shape) const {
  return {.frames = shape.frames,
          .height = shape.height,
          .width = shape.width,
          .heads = heads_,
          .head_dim = width_ / heads_,
          .first_frame = shape.first_frame};
}

std::pair<const float*, RopeGrid> WanBlock::own_rope(const Frame& f) const {
  RopeGrid grid = rope_grid(f.seen.shape);
  const int64_t begin = f.seen.shape.own_begin;
  grid.frames -= begin;  // the tables of lines and columns lie behind those of all frames
  grid.first_frame += begin;
  return {f.rope + 2 * begin * grid.time_channels(), grid};
}

AttentionShape WanBlock::cross_shape(const BatchShape& shape) const {
  const int64_t head_dim = width_ / heads_;
  return {.batch = shape.batch,
          .queries = shape.tokens(),
          .keys = shape.context_rows,
          .heads = heads_,
          .head_dim = head_dim,
          .scale = 1 / std::sqrt(static_cast<float>(head_dim))};
}

int64_t WanBlock::ffn_chunk(const BatchShape& shape) const { return std::min(shape.rows(), kFfnRows); }

WanBlock::SelfTensors WanBlock::carve_self(Workspace& w, const BatchShape& shape, DType dtype, bool keep) const {
  const int64_t rows = shape.rows();
  const auto operand = [&] { return w.take_bytes(rows * width_ * dtype_bytes(dtype)); };
  SelfTensors s{};
  s.z = operand();
  s.q = operand();
  s.k = operand();
  s.v = operand();
  s.out = w.take<float>(rows * width_);
  s.lse = w.take<float>(rows * heads_);
  s.deformable = attention_.carve(w, shape, dtype, keep);
  if (!keep) return s;
  s.q_raw = operand();
  s.k_raw = operand();
  s.q_rstd = w.take<float>(rows);
  s.k_rstd = w.take<float>(rows);
  s.increment = w.take_bytes(shape.own().rows() * width_ * dtype_bytes(dtype));
  return s;
}

WanBlock::CrossTensors WanBlock::carve_cross(Workspace& w, const BatchShape& shape, DType dtype, bool keep) const {
  const int64_t rows = shape.rows(), keys = shape.batch * shape.context_rows;
  const auto operand = [&](int64_t n) { return w.take_bytes(n * width_ * dtype_bytes(dtype)); };
  CrossTensors s{};
  s.u = operand(rows);
  s.context = operand(keys);
  s.q = operand(rows);
  s.k = operand(keys);
  s.v = operand(keys);
  s.out = w.take<float>(rows * width_);
  s.lse = w.take<float>(rows * heads_);
  if (!keep) return s;
  s.q_raw = operand(rows);
  s.k_raw = operand(keys);
  s.q_rstd = w.take<float>(rows);
  s.k_rstd = w.take<float>(keys);
  return s;
}

WanBlock::FfnTensors WanBlock::carve_ffn(Workspace& w, const BatchShape& shape, DType dtype, bool keep) const {
  const int64_t rows = shape.rows(), element = dtype_bytes(dtype);
  FfnTensors s{};
  s.z = w.take_bytes(rows * width_ * element);
  if (!keep) return s;
  s.increment = w.take_bytes(rows * width_ * element);
  if (rows <= kFfnRows) s.hidden = w.take_bytes(rows * ffn_width_ * element);
  return s;
}

WanBlock::Saved WanBlock::carve(Workspace& w, const BatchShape& shape, DType dtype) const {
  const BatchShape own = shape.own();
  Saved s{};
  s.modulation = w.take<float>(shape.timesteps() * kSlots * width_);
  s.self = carve_self(w, shape, dtype, true);
  s.x1 = w.take<float>(own.rows() * width_);
  s.cross = carve_cross(w, own, dtype, true);
  s.x2 = w.take<float>(own.rows() * width_);
  s.ffn = carve_ffn(w, own, dtype, true);
  return s;
}

int64_t WanBlock::saved_bytes(const BatchShape& shape, DType compute_dtype) const {
  Workspace measure;
  carve(measure, shape, compute_dtype);
  return measure.high_water();
}

const float* WanBlock::make_rope_table(const WanCall& c) const {
  const RopeGrid grid = rope_grid(c.shape);
  const int64_t frames = std::max(grid.frames, c.shape.clip_frames);
  if (std::max({frames, grid.height, grid.width}) > rope_positions_)
    throw usage_error(fmt::format("a token grid of {}x{}x{} exceeds the model's {} positions an axis", frames, grid.height, grid.width,
                                  rope_positions_),
                      "use fewer frames or a smaller picture, or raise rope_max_seq_len");
  float* table = c.workspace.take<float>(rope_table_elements(grid));
  rope_table(c.stream, table, grid);
  return table;
}

void WanBlock::forward(const LayerCall& call, const Conditioning& conditioning, const float* x, float* y,
                       void* saved) const {
  const WorkspaceScope scope(call.workspace);
  const WanCall c(call, layout(), packing());
  LayerCall own_call = call;
  own_call.shape = call.shape.own();
  const WanCall own(own_call, layout(), packing());
  const bool keep = saved != nullptr;
  Saved s{};
  if (keep) {
    Workspace store(saved, saved_bytes(c.shape, c.dtype));
    s = carve(store, c.shape, c.dtype);
  } else {
    s.modulation = c.workspace.take<float>(c.shape.timesteps() * kSlots * width_);
    s.x1 = s.x2 = y;
  }
  modulation_forward(c.stream, s.modulation, c.weight(kTable), conditioning.modulation, c.shape.timesteps(), kSlots, kSlots,
                     width_, kScales, c.dtype);
  const Frame f{
      .seen = c, .own = own, .modulation = s.modulation, .vectors = c.vectors(kNorm2Weight, kSelfQ), .rope = make_rope_table(c)};
  {
    const WorkspaceScope stage(c.workspace);
    if (!keep) s.self = carve_self(c.workspace, c.shape, c.dtype, false);
    self_forward(f, s.self, x, s.x1);
  }
  {
    const WorkspaceScope stage(c.workspace);
    if (!keep) s.cross = carve_cross(c.workspace, own.shape, c.dtype, false);
    cross_forward(f, s.cross, conditioning.context, s.x1, s.x2);
  }
  {
    const WorkspaceScope stage(c.workspace);
    if (!keep) s.ffn = carve_ffn(c.workspace, own.shape, c.dtype, false);
    ffn_forward(f, s.ffn, s.x2, y);
  }
}

void WanBlock::self_forward(const Frame& f, const SelfTensors& s, const float* x, float* x1) const {
  const WanCall &c = f.seen, &own = f.own;
  const int64_t rows = c.shape.rows(), group = c.shape.rows_a_timestep(), stride = kSlots * width_;
  const RopeGrid grid = rope_grid(c.shape);
  layer_norm_forward(c.stream, s.z, x, f.modulation + kScale1 * width_, f.modulation + kShift1 * width_, rows, width_,
                     group, stride, eps_, c.dtype);
  // Where nothing is kept the norm works in place.
  void *q_raw = s.q_raw ? s.q_raw : s.q, *k_raw = s.k_raw ? s.k_raw : s.k;
  const int64_t first_row = c.shape.own_first_row(), first = first_row * width_, n = own.shape.rows();
  const auto [own_table, own_grid] = own_rope(f);
  c.linear_operand(kMatSelfQ, c.at(q_raw, first), c.at(static_cast<const void*>(s.z), first), n);
  // Window attention reads these queries too; of zeros and of no gradient at them nothing comes into its keys.
  c.clear_beside_own(s.q, width_ * dtype_bytes(c.dtype));
  rms_rope_forward(c.stream, c.at(s.q, first), s.q_rstd ? s.q_rstd + first_row : nullptr, c.at(q_raw, first), f.vector(kSelfNormQ),
                   own_table, own_grid, n, eps_, c.dtype);
  c.linear_operand(kMatSelfK, k_raw, s.z, rows);
  rms_rope_forward(c.stream, s.k, s.k_rstd, k_raw, f.vector(kSelfNormK), f.rope, grid, rows, eps_, c.dtype);
  c.linear_operand(kMatSelfV, s.v, s.z, rows);
  attention_.forward(c, s.out, s.lse, s.z, s.q, s.k, s.v, s.deformable);
  own.linear_gated_add(kMatSelfOut, x1, s.increment, x + first, f.modulation + f.own_slot(kGate1, width_),
                       own.operand(s.out + first, n * width_), n, 0, own.shape.rows_a_timestep(), stride);
}

void WanBlock::cross_forward(const Frame& f, const CrossTensors& s, const float* context, const float* x1,
                             float* x2) const {
  const WanCall& c = f.own;
  const int64_t rows = c.shape.rows(), keys = c.shape.batch * c.shape.context_rows;
  const RopeGrid grid = rope_grid(c.shape);
  layer_norm_forward(c.stream, s.u, x1, f.vector(kNorm2Weight), f.vector(kNorm2Bias), rows, width_, rows, 0, eps_,
                     c.dtype);
  cast_operand(c.stream, s.context, context, keys * width_, c.dtype);
  void *q_raw = s.q_raw ? s.q_raw : s.q, *k_raw = s.k_raw ? s.k_raw : s.k;
  c.linear_operand(kMatCrossQ, q_raw, s.u, rows);
  rms_rope_forward(c.stream, s.q, s.q_rstd, q_raw, f.vector(kCrossNormQ), nullptr, grid, rows, eps_, c.dtype);
  c.linear_operand(kMatCrossK, k_raw, s.context, keys);
  rms_rope_forward(c.stream, s.k, s.k_rstd, k_raw, f.vector(kCrossNormK), nullptr, grid, keys, eps_, c.dtype);
  c.linear_operand(kMatCrossV, s.v, s.context, keys);
  {
    const WorkspaceScope scope(c.workspace);
    const AttentionShape shape = cross_shape(c.shape);
    void* space = c.workspace.take_bytes(dense_attention_forward_workspace(c.stream, shape, c.dtype));
    dense_attention_forward(c.stream, s.out, s.lse, s.q, s.k, s.v, space, shape, c.dtype);
  }
  c.linear_gated_add(kMatCrossOut, x2, nullptr, x1, nullptr, c.operand(s.out, rows * width_), rows, 0, rows, 0);
}

void WanBlock::ffn_forward(const Frame& f, const FfnTensors& s, const float* x2, float* y) const {
  const WanCall& c = f.own;
  const int64_t rows = c.shape.rows(), group = c.shape.rows_a_timestep(), stride = kSlots * width_, chunk = ffn_chunk(c.shape);
  layer_norm_forward(c.stream, s.z, x2, f.modulation + f.own_slot(kScale2, width_), f.modulation + f.own_slot(kShift2, width_), rows, width_,
                     group, stride, eps_, c.dtype);
  void* activation = c.take_operand(chunk * ffn_width_);
  for (int64_t at = 0; at < rows; at += chunk) {
    const int64_t n = std::min(chunk, rows - at);
    c.linear_gelu(kMatFfnUp, activation, s.hidden, c.at(static_cast<const void*>(s.z), at * width_), n);
    c.linear_gated_add(kMatFfnDown, y + at * width_, s.increment ? c.at(s.increment, at * width_) : nullptr,
                       x2 + at * width_, f.modulation + f.own_slot(kGate2, width_), activation, n, at, group, stride);
  }
}

}  // namespace megaslide
