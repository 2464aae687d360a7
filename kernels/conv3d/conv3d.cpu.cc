// Pieces of a frame's results: their sums in a thread's scratch (here in fp32; bf16 in amx.cc and dot.cc, fp32 by parts in
// split.cc), then bias, residuals and norm while they are in the cache.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv3d/conv3d.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/conv3d/conv3d.h"
#include "kernels/conv3d/pieces.h"
#include "kernels/conv3d/split.h"
#include "kernels/gemm/onednn.h"
#include "kernels/simd-inl.h"
#include "kernels/tile/unit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {
using conv3d::kBlock;
using conv3d::Piece;

// A panel of 16 channels in vectors of this target, and the cells by panels that fit its registers.
using PanelTag = hn::CappedTag<float, kConvPanel>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(PanelTag()));
constexpr int kVectors = static_cast<int>(kConvPanel) / kLanes;
constexpr int kPanels = kLanes == 16 ? 2 : 1;
constexpr int kCells = kLanes == 16 ? 14 : kLanes == 8 ? 6 : kLanes == 4 ? 3 : 1;

// sums[cell][channel] (+)= Σ_k a[cell][k] · b[k][channel], sums in registers.
template <int kM, int kP>
void Product(const float* HWY_RESTRICT a, int64_t cell, const float* HWY_RESTRICT b, int64_t panel, int64_t k,
             float* HWY_RESTRICT sums, bool first) {
  const PanelTag d;
  constexpr int kN = kP * kVectors;
  hn::Vec<PanelTag> acc[kM][kN];
#pragma GCC unroll 16
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < kN; ++n) acc[m][n] = first ? hn::Zero(d) : hn::LoadU(d, sums + m * kBlock + n * kLanes);
  // Few pointers and multiples of one stride reach all cells.
  const float* at[(kM + 3) / 4];
#pragma GCC unroll 16
  for (int i = 0; i < (kM + 3) / 4; ++i) at[i] = a + 4 * i * cell;
  const int64_t thrice = 3 * cell;
  for (int64_t i = 0; i < k; ++i) {
    hn::Vec<PanelTag> w[kN];
#pragma GCC unroll 16
    for (int n = 0; n < kN; ++n) w[n] = hn::LoadU(d, b + n / kVectors * panel + n % kVectors * kLanes);
    b += kConvPanel;
#pragma GCC unroll 16
    for (int m = 0; m < kM; ++m) {
      const float* p = at[m / 4];
      const auto x = hn::Set(d, m % 4 == 0 ? *p : m % 4 == 1 ? p[cell] : m % 4 == 2 ? p[2 * cell] : p[thrice]);
#pragma GCC unroll 16
      for (int n = 0; n < kN; ++n) acc[m][n] = hn::MulAdd(x, w[n], acc[m][n]);
    }
#pragma GCC unroll 16
    for (int j = 0; j < (kM + 3) / 4; ++j) ++at[j];
  }
#pragma GCC unroll 16
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < kN; ++n) hn::StoreU(acc[m][n], d, sums + m * kBlock + n * kLanes);
}

using ProductFunction = void (*)(const float*, int64_t, const float*, int64_t, int64_t, float*, bool);
template <int kP, size_t... kI>
constexpr std::array<ProductFunction, sizeof...(kI)> Table(std::index_sequence<kI...>) {
  return {&Product<static_cast<int>(kI) + 1, kP>...};
}
constexpr auto kOnePanel = Table<1>(std::make_index_sequence<kCells>());
constexpr auto kAllPanels = Table<kPanels>(std::make_index_sequence<kCells>());

// Longest run of input elements whose weights stay in the second-level cache while the piece passes by.
constexpr int64_t kRun = 1536;

// A row of results in equal parts that fit the registers: one call's overhead is that of any other.
HWY_INLINE void ProductRow(ProductFunction const* table, const float* a, int64_t cell, int64_t columns, const float* b,
                           int64_t panel, int64_t k, float* sums, bool first) {
  const int64_t parts = (columns + kCells - 1) / kCells;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t begin = columns * i / parts, end = columns * (i + 1) / parts;
    table[end - begin - 1](a + begin * cell, cell, b, panel, k, sums + begin * kBlock, first);
  }
}

void SumPiece(const Piece<float>& p) {
  const auto* weights = static_cast<const float*>(p.packed);
  const int64_t panel = p.run * kConvPanel;
  for (int64_t n = 0; n < p.panels; n += 2) {
    float* sums = p.sums + n / 2 * p.block_elements();
    const int64_t panels = std::min<int64_t>(2, p.panels - n);
    bool first = true;
    for (int64_t r = 0; r < p.kt * p.kh; ++r) {
      const float* frame = p.frames[r / p.kh];
      if (!frame) continue;
      const float* input = frame + r % p.kh * p.row;
      for (int64_t k = 0; k < p.run; k += kRun, first = false) {
        const float* b = weights + (r * p.panels + n) * panel + k * kConvPanel;
        const int64_t depth = std::min(kRun, p.run - k);
        for (int64_t y = 0; y < p.rows; ++y) {
          const float* a = input + k + y * p.result_row;
          float* to = sums + y * p.pitch * kBlock;
          if (panels == kPanels) {
            ProductRow(kAllPanels.data(), a, p.result_cell, p.columns, b, panel, depth, to, first);
          } else {
            for (int64_t i = 0; i < panels; ++i)
              ProductRow(kOnePanel.data(), a, p.result_cell, p.columns, b + i * panel, panel, depth,
                         to + i * kConvPanel, first);
          }
        }
      }
    }
  }
}

template <class D>
HWY_INLINE hn::Vec<D> Silu(D d, hn::Vec<D> v) {
  // The exponent is kept where e^x is a normal number; the factor v brings NaN and infinities back.
  const auto bounded = hn::Min(hn::Max(hn::Neg(v), hn::Set(d, -87.0f)), hn::Set(d, 87.0f));
  return hn::Div(v, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, bounded)));
}

// `columns` cells whose sums of `panels` panels start at `sums` and whose place in the frames, that of the first panel, is `offset`, `step`
// elements apart. A norm is of all panels.
template <class T>
void FinishCells(const FrameFinish& f, float* sums, int64_t block_elements, int64_t first, int64_t panels, int64_t columns, int64_t offset,
                 int64_t step) {
  const PanelTag d;
  const float *bias = f.bias ? f.bias + first * kConvPanel : nullptr, *slope = f.slope ? f.slope + first * kConvPanel : nullptr;
  const auto *residual = static_cast<const T*>(f.residual), *residual2 = static_cast<const T*>(f.residual2);
  auto *raw = static_cast<T*>(f.raw), *normed = static_cast<T*>(f.normed);
  const float root = std::sqrt(static_cast<float>(f.out.channels));
  for (int64_t x = 0; x < columns; ++x, offset += step) {
    float* cell = sums + x * kBlock;
    auto squares = hn::Zero(d);
    for (int64_t n = 0; n < panels; ++n) {
      float* s = cell + n / 2 * block_elements + n % 2 * kConvPanel;
      for (int64_t j = 0; j < kConvPanel; j += kLanes) {
        const int64_t c = n * kConvPanel + j;
        auto v = hn::LoadU(d, s + j);
        if (bias) v = hn::Add(v, hn::LoadU(d, bias + c));
        if (residual) v = hn::Add(v, LoadFloat(d, residual + offset + c));
        if (residual2) v = hn::Add(v, LoadFloat(d, residual2 + offset + c));
        if (slope) v = hn::IfThenElse(hn::Lt(v, hn::Zero(d)), hn::Mul(v, hn::LoadU(d, slope + c)), v);
        if (raw) StoreFloat(v, d, raw + offset + c);
        squares = hn::MulAdd(v, v, squares);
        hn::StoreU(v, d, s + j);
      }
    }
    if (!normed) continue;
    const float norm = std::sqrt(hn::GetLane(hn::SumOfLanes(d, squares)));
    // Not std::max: a NaN must come through.
    const auto scale = hn::Set(d, root / (norm < 1e-12f ? 1e-12f : norm));
    for (int64_t n = 0; n < panels; ++n) {
      const float* s = cell + n / 2 * block_elements + n % 2 * kConvPanel;
      for (int64_t j = 0; j < kConvPanel; j += kLanes) {
        const int64_t c = n * kConvPanel + j;
        const auto v = hn::Mul(hn::Mul(hn::LoadU(d, s + j), scale), hn::LoadU(d, f.gamma + c));
        StoreFloat(f.silu ? Silu(d, v) : v, d, normed + offset + c);
      }
    }
  }
}

void FinishRow(const FrameFinish& f, float* sums, int64_t block_elements, int64_t first, int64_t panels, int64_t columns, int64_t offset,
               int64_t step) {
  if (f.out.dtype == DType::kBF16)
    FinishCells<bf16>(f, sums, block_elements, first, panels, columns, offset, step);
  else
    FinishCells<float>(f, sums, block_elements, first, panels, columns, offset, step);
}

void Widen(float* out, const bf16* in, int64_t n) {
  ForEach(n, [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(LoadFloat(d, in + i), d, out + i); });
}

// Sums of a row from a frame that is there already.
void LoadRow(const void* in, DType dtype, float* sums, int64_t block_elements, int64_t panels, int64_t columns,
             int64_t offset, int64_t step) {
  const PanelTag d;
  for (int64_t x = 0; x < columns; ++x, offset += step)
    for (int64_t n = 0; n < panels; ++n)
      for (int64_t j = 0; j < kConvPanel; j += kLanes) {
        const int64_t c = offset + n * kConvPanel + j;
        const auto v = dtype == DType::kBF16 ? LoadFloat(d, static_cast<const bf16*>(in) + c)
                                             : LoadFloat(d, static_cast<const float*>(in) + c);
        hn::StoreU(v, d, sums + x * kBlock + n / 2 * block_elements + n % 2 * kConvPanel + j);
      }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(SumPiece);
HWY_EXPORT(FinishRow);
HWY_EXPORT(Widen);
HWY_EXPORT(LoadRow);

namespace conv3d {
namespace {
// Whether bf16 weights stay bf16, in pairs of input channels; elsewhere they and the inputs are widened to fp32.
bool pairs() { return tile_unit() != TileUnit::kNone; }
// Whether fp32 weights are packed as bf16 parts.
bool in_parts() { return tile_unit() == TileUnit::kAmx; }

// Cells of a piece. Its sums (C · 4 bytes a cell) and the weights of one row of taps share the second-level cache.
constexpr int64_t kPieceCells = 512;
constexpr int64_t kMinPieces = 4;

// The piece at rows from y, columns from x. T: what the products read.
template <class T>
Piece<T> piece_at(const FrameConv& c, const Bands& b, int64_t index, float* sums) {
  const int64_t y = index / b.across * b.rows, x = index % b.across * b.columns;
  Piece<T> p{};
  p.rows = std::min(b.rows, c.rows - y);
  p.columns = std::min(b.columns, c.columns - x);
  p.kt = c.shape.kt;
  p.kh = c.shape.kh;
  const int64_t cell = c.in.stored();
  const int64_t origin = c.in.cell(c.stride * y + c.dy, c.stride * x + c.dx);
  for (int64_t t = 0; t < p.kt; ++t) p.frames[t] = c.frames[t] ? static_cast<const T*>(c.frames[t]) + origin : nullptr;
  p.row = c.in.row();
  p.result_row = c.stride * p.row;
  p.result_cell = c.stride * cell;
  p.run = c.shape.kw * cell;
  p.packed = c.packed;
  p.panels = (c.shape.out + kConvPanel - 1) / kConvPanel;
  p.sums = sums;
  p.pitch = (p.columns + kTile - 1) / kTile * kTile;
  return p;
}

// The same piece with its inputs in fp32, in the thread's scratch.
Piece<float> widened(const Piece<bf16>& p, const FrameConv& c) {
  const int64_t cell = c.in.stored();
  const int64_t rows = (p.rows - 1) * c.stride + p.kh, row = ((p.columns - 1) * c.stride + c.shape.kw) * cell;
  Piece<float> q{p.rows,        p.columns, p.kt,     p.kh,     {},     row,    c.stride * row,
                 p.result_cell, p.run,     p.packed, p.panels, p.sums, p.pitch};
  auto* to = static_cast<float*>(
      onednn::thread_scratch(onednn::ScratchSlot::kA, static_cast<size_t>(p.kt * rows * row) * sizeof(float)));
  for (int64_t t = 0; t < p.kt; ++t, to += rows * row) {
    if (!p.frames[t]) continue;
    for (int64_t y = 0; y < rows; ++y) HWY_DYNAMIC_DISPATCH(Widen)(to + y * row, p.frames[t] + y * p.row, row);
    q.frames[t] = to;
  }
  return q;
}

float* thread_sums(const Bands& b, int64_t panels) {
  return static_cast<float*>(
      onednn::thread_scratch(onednn::ScratchSlot::kB, static_cast<size_t>(sums_elements(b, panels)) * sizeof(float)));
}

template <class T>
void finish_piece(const FrameConv& c, const Bands& b, int64_t index, const Piece<T>& p, int64_t block_elements) {
  const FrameFinish& f = c.finish;
  const int64_t y0 = index / b.across * b.rows, x0 = index % b.across * b.columns;
  for (int64_t y = 0; y < p.rows; ++y) {
    const int64_t offset = f.out.cell(f.step * (y0 + y) + f.y, f.step * x0 + f.x);
    HWY_DYNAMIC_DISPATCH(FinishRow)(f, p.sums + y * p.pitch * kBlock, block_elements, 0, p.panels, p.columns, offset, f.step * f.out.stored());
  }
}

SplitShape split_shape(const ConvShape& s, int64_t stride = 1) { return {s.in, s.out, s.kt, s.kh, s.kw, stride}; }

// A piece of fp32 on AMX.
class SplitRun {
 public:
  SplitRun(const FrameConv& c, const Bands& b, int64_t index)
      : c_(c), b_(b), index_(index), shape_(split_shape(c.shape, c.stride)), p_(piece_at<float>(c, b, index, nullptr)),
        plan_(split_plan(shape_, p_.rows, p_.columns)) {
    p_.pitch = plan_.pitch;
  }
  void run() {
    // A norm is of all channels of a cell.
    const bool kept = c_.finish.normed || plan_.group < plan_.steps;
    const int64_t tiles = kept ? (p_.panels + 1) / 2 * plan_.tiles : kSplitBlockTiles;
    p_.sums = static_cast<float*>(onednn::thread_scratch(onednn::ScratchSlot::kB, static_cast<size_t>(tiles * kTile * kBlock) * sizeof(float)));
    SplitPiece s{};
    s.shape = shape_;
    s.rows = p_.rows, s.columns = p_.columns;
    static_assert(std::size(s.frames) == kConvMaxFrames);
    std::copy_n(p_.frames, kConvMaxFrames, s.frames);
    s.row = p_.row, s.cell = c_.in.stored();
    s.packed = c_.packed;
    s.scratch = onednn::thread_scratch(onednn::ScratchSlot::kA, static_cast<size_t>(plan_.bytes));
    s.sums = p_.sums, s.kept = kept;
    s.done = [](void* context, float* sums, int64_t pair, int64_t first, int64_t cells) {
      static_cast<const SplitRun*>(context)->finish(sums, pair, first, cells);
    };
    s.context = this;
    if (!c_.finish.normed) s.touched = touched();
    split_sums(s, plan_);
    if (c_.finish.normed) finish_piece(c_, b_, index_, p_, plan_.tiles * kTile * kBlock);
  }

 private:
  int64_t place(int64_t y, int64_t x) const {
    const FrameFinish& f = c_.finish;
    return f.out.cell(f.step * (index_ / b_.across * b_.rows + y) + f.y, f.step * (index_ % b_.across * b_.columns + x) + f.x);
  }
  SplitTouched touched() const {
    const FrameFinish& f = c_.finish;
    const int64_t element = dtype_bytes(f.out.dtype), first = place(0, 0) * element;
    const auto at = [&](const void* frame) { return frame ? static_cast<const char*>(frame) + first : nullptr; };
    return {{at(f.raw), at(f.residual), at(f.residual2)}, f.step * f.out.row() * element, f.step * f.out.stored() * element, kSplitSide * element};
  }
  // Cells [first, first + cells) of the piece, 32 channels.
  void finish(float* sums, int64_t pair, int64_t first, int64_t cells) const {
    const FrameFinish& f = c_.finish;
    if (f.normed) return;
    const int64_t panels = std::min<int64_t>(2, p_.panels - 2 * pair);
    for (int64_t at = first; at < first + cells;) {
      const int64_t y = at / p_.pitch, x = at % p_.pitch, end = std::min(first + cells, (y + 1) * p_.pitch);
      const int64_t columns = std::min(p_.columns - x, end - at);
      if (y < p_.rows && columns > 0)
        HWY_DYNAMIC_DISPATCH(FinishRow)(f, sums + (at - first) * kBlock, 0, 2 * pair, panels, columns, place(y, x) + pair * kSplitSide,
                                        f.step * f.out.stored());
      at = end;
    }
  }

  const FrameConv& c_;
  const Bands& b_;
  int64_t index_;
  SplitShape shape_;
  Piece<float> p_;
  SplitPlan plan_;
};

void run_piece(const FrameConv& c, const Bands& b, int64_t index) {
  float* sums = thread_sums(b, (c.shape.out + kConvPanel - 1) / kConvPanel);
  if (c.in.dtype == DType::kF32) {
    const auto p = piece_at<float>(c, b, index, sums);
    HWY_DYNAMIC_DISPATCH(SumPiece)(p);
    return finish_piece(c, b, index, p, p.block_elements());
  }
  const auto p = piece_at<bf16>(c, b, index, sums);
  switch (tile_unit()) {
    case TileUnit::kAmx: amx_piece(p); break;
    case TileUnit::kAvx512: dot_piece(p); break;
    case TileUnit::kNone: HWY_DYNAMIC_DISPATCH(SumPiece)(widened(p, c)); break;
  }
  finish_piece(c, b, index, p, p.block_elements());
}

// One panel of one row of taps of (out,in,kt,kh,kw): [kw·stored][16], in pairs [kw·stored/2][16][2].
template <class T>
void pack_panel(T* to, const float* w, const ConvShape& s, int64_t stored, int64_t r, int64_t panel) {
  const int64_t taps = s.taps();
  for (int64_t j = 0; j < s.kw; ++j)
    for (int64_t c = 0; c < stored; ++c)
      for (int64_t n = 0; n < kConvPanel; ++n) {
        const int64_t k = j * stored + c, o = panel * kConvPanel + n;
        const float v = o < s.out && c < s.in ? w[(o * s.in + c) * taps + r * s.kw + j] : 0.0F;
        if constexpr (std::is_same_v<T, bf16>)
          to[k / 2 * 2 * kConvPanel + n * 2 + k % 2] = to_bf16(v);
        else
          to[k * kConvPanel + n] = v;
      }
}
}  // namespace

Bands bands(int64_t rows, int64_t columns) {
  Bands b{};
  const int64_t target = std::clamp(rows * columns / kMinPieces, kPieceCells / 4, kPieceCells);
  b.across = (columns + target - 1) / target;
  b.columns = b.across == 1 ? columns : ((columns + b.across - 1) / b.across + kTile - 1) / kTile * kTile;
  b.across = (columns + b.columns - 1) / b.columns;
  const int64_t most = std::max<int64_t>(1, target / b.columns);
  b.down = (rows + most - 1) / most;
  b.rows = (rows + b.down - 1) / b.down;
  b.down = (rows + b.rows - 1) / b.rows;
  return b;
}

namespace {
Bands split_bands(const FrameConv& c) {
  Bands b{};
  split_piece_sides(split_shape(c.shape, c.stride), c.rows, c.columns, &b.rows, &b.columns);
  b.down = (c.rows + b.rows - 1) / b.rows;
  b.across = (c.columns + b.columns - 1) / b.columns;
  return b;
}
}  // namespace
}  // namespace conv3d

int64_t conv_packed_bytes(const ConvShape& s, DType dtype, Backend target) {
  if (dtype == DType::kF32 && target == Backend::kCpu && conv3d::in_parts()) return conv3d::split_weight_bytes(conv3d::split_shape(s));
  FrameLayout in;
  in.channels = s.in;
  in.dtype = dtype;
  const int64_t panels = (s.out + kConvPanel - 1) / kConvPanel;
  const int64_t element = dtype == DType::kBF16 && (target == Backend::kCuda || conv3d::pairs()) ? 2 : 4;
  return s.taps() * panels * in.stored() * kConvPanel * element;
}

void fold_upsample(float* folded, const float* w, int64_t out, int64_t in) {
  // Phase 0 sees tap 0, then taps 1 and 2 together; phase 1 taps 0 and 1 together, then tap 2.
  const auto tap = [](int64_t phase, int64_t k) { return phase == 0 ? (k == 0 ? 0 : 1) : (k == 2 ? 1 : 0); };
  std::memset(folded, 0, static_cast<size_t>(16 * out * in) * sizeof(float));
  for (int64_t phase = 0; phase < 4; ++phase)
    for (int64_t i = 0; i < out * in; ++i)
      for (int64_t y = 0; y < 3; ++y)
        for (int64_t x = 0; x < 3; ++x)
          folded[(phase * out * in + i) * 4 + 2 * tap(phase / 2, y) + tap(phase % 2, x)] += w[i * 9 + 3 * y + x];
}

namespace cpu {

void conv_pack(Stream& stream, void* packed, const float* w, ConvShape s, DType dtype) {
  if (dtype == DType::kF32 && conv3d::in_parts()) {
    const conv3d::SplitShape shape = conv3d::split_shape(s);
    return stream.parallel_for((s.out + conv3d::kSplitSide - 1) / conv3d::kSplitSide, 1,
                               [&](int64_t begin, int64_t end) { conv3d::split_pack_weights(packed, w, shape, begin, end); });
  }
  FrameLayout in;
  in.channels = s.in;
  in.dtype = dtype;
  const int64_t stored = in.stored(), panels = (s.out + kConvPanel - 1) / kConvPanel;
  const int64_t elements = s.kw * stored * kConvPanel;  // of a panel of one row of taps
  const bool in_pairs = dtype == DType::kBF16 && conv3d::pairs();
  stream.parallel_for(s.kt * s.kh * panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i / panels, panel = i % panels;
      if (in_pairs) {
        conv3d::pack_panel(static_cast<bf16*>(packed) + i * elements, w, s, stored, r, panel);
        continue;
      }
      float* to = static_cast<float*>(packed) + i * elements;
      conv3d::pack_panel(to, w, s, stored, r, panel);
      if (dtype == DType::kBF16)
        for (int64_t k = 0; k < elements; ++k) to[k] = to_float(to_bf16(to[k]));
    }
  });
}

void frame_conv(Stream& stream, FrameConv c) {
  MS_CHECK(c.in.dtype == DType::kBF16 || c.in.dtype == DType::kF32, "{}", dtype_name(c.in.dtype));
  MS_CHECK(c.shape.kt <= kConvMaxFrames && c.in.channels == c.shape.in && c.finish.out.channels == c.shape.out);
  MS_CHECK(c.frames[c.shape.kt - 1] != nullptr);
  const bool split = c.in.dtype == DType::kF32 && conv3d::in_parts();
  const conv3d::Bands b = split ? conv3d::split_bands(c) : conv3d::bands(c.rows, c.columns);
  stream.parallel_for(b.down * b.across, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) split ? conv3d::SplitRun(c, b, i).run() : conv3d::run_piece(c, b, i);
  });
}

void frame_finish(Stream& stream, const void* in, FrameFinish f) {
  MS_CHECK(f.slope == nullptr);
  const conv3d::Bands b = conv3d::bands(f.out.height, f.out.width);
  const int64_t panels = (f.out.channels + kConvPanel - 1) / kConvPanel;
  stream.parallel_for(b.down * b.across, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* sums = conv3d::thread_sums(b, panels);
      const int64_t y0 = i / b.across * b.rows, x0 = i % b.across * b.columns;
      const int64_t rows = std::min(b.rows, f.out.height - y0), columns = std::min(b.columns, f.out.width - x0);
      const int64_t block = columns * conv3d::kBlock;
      for (int64_t y = y0; y < y0 + rows; ++y) {
        const int64_t offset = f.out.cell(y, x0);
        HWY_DYNAMIC_DISPATCH(LoadRow)(in, f.out.dtype, sums, block, panels, columns, offset, f.out.stored());
        HWY_DYNAMIC_DISPATCH(FinishRow)(f, sums, block, 0, panels, columns, offset, f.out.stored());
      }
    }
  });
}

}  // namespace cpu
}  // namespace megaslide
#endif
