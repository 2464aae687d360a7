#include "kernels/dsa/motion_pieces.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dsa/motion_pieces.cc"
#include "kernels/simd_targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

constexpr int kSpan = 2 * kMotionSearch + 1;  // δ_w of one δ_h, handled together
constexpr float kFar = 1e6f;                  // column of what is no token
constexpr float kLow = -1e30f;                // below every score

using V = hn::Vec<FloatTag>;

// Whole vectors from `begin` until `end` is covered: arrays and planes have room for the last one.
template <class F>
HWY_INLINE void Sweep(int64_t begin, int64_t end, F body) {
  for (int64_t l = begin; l < end; l += static_cast<int64_t>(hn::Lanes(FloatTag()))) body(l);
}

// x[k][l] = Σ_i self_i[l] · other_i[l + shift + k − 4]
void Products(float* HWY_RESTRICT x, int64_t pitch, const float* HWY_RESTRICT self, const float* HWY_RESTRICT other,
              int64_t plane, int64_t shift, int64_t begin, int64_t end) {
  const FloatTag d;
  Sweep(begin, end, [&](int64_t l) {
    V sum[kSpan];
    for (auto& v : sum) v = hn::Zero(d);
    for (int64_t i = 0; i < kMotionChannels; ++i) {
      const V own = hn::LoadU(d, self + i * plane + l);
      const float* row = other + i * plane + l + shift - kMotionSearch;
      for (int k = 0; k < kSpan; ++k) sum[k] = hn::MulAdd(own, hn::LoadU(d, row + k), sum[k]);
    }
    for (int k = 0; k < kSpan; ++k) hn::StoreU(sum[k], d, x + k * pitch + l);
  });
}

// Sums over three rows, in place: that of l goes to l − stride, which nothing reads any more.
void SumRows(float* x, int64_t pitch, int64_t stride, int64_t begin, int64_t end) {
  const FloatTag d;
  for (int k = 0; k < kSpan; ++k) {
    float* row = x + k * pitch;
    Sweep(begin, end, [&](int64_t l) {
      const V sum = hn::Add(hn::Add(hn::LoadU(d, row + l - stride), hn::LoadU(d, row + l)), hn::LoadU(d, row + l + stride));
      hn::StoreU(sum, d, row + l - stride);
    });
  }
}

// The 3×3 sum about l after SumRows.
HWY_INLINE V Box(const float* x, int64_t stride, int64_t l) {
  const FloatTag d;
  const float* at = x + l - stride;
  return hn::Add(hn::Add(hn::LoadU(d, at - 1), hn::LoadU(d, at)), hn::LoadU(d, at + 1));
}

// Column of each index, kFar in the gaps.
void FillColumns(float* column, const MotionPair& p) {
  const int64_t stride = p.grid->stride;
  for (int64_t l = 0; l < p.pitch(); ++l) {
    const int64_t w = (l + 16 * stride - p.lead()) % stride;
    column[l] = w < p.grid->width ? static_cast<float>(w) : kFar;
  }
}

// Columns of the tokens at l …, kFar from `end` on.
HWY_INLINE V ColumnsUntil(const float* column, int64_t l, int64_t end) {
  const FloatTag d;
  return hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(end - l)), hn::LoadU(d, column + l), hn::Set(d, kFar));
}

// Whether the column δ_w away from `column` is one of the grid's.
HWY_INLINE hn::Mask<FloatTag> Inside(V column, int64_t dw, int64_t width) {
  const FloatTag d;
  const V there = hn::Add(column, hn::Set(d, static_cast<float>(dw)));
  return hn::And(hn::Ge(there, hn::Zero(d)), hn::Lt(there, hn::Set(d, static_cast<float>(width))));
}

// One δ_h of the online softmax, over the indices [begin, end).
struct SearchState {
  float *sum, *sum_h, *sum_w, *top;
};
void SearchRow(const SearchState& s, const MotionPair& p, const float* x, const float* column, int64_t dh,
               int64_t begin, int64_t end) {
  const FloatTag d;
  const int64_t pitch = p.pitch(), stride = p.grid->stride;
  const float *self = p.self_inverse + p.origin(), *other = p.other_inverse + p.origin() + dh * stride;
  const V beta = hn::Set(d, p.beta), low = hn::Set(d, kLow);
  Sweep(begin, end, [&](int64_t l) {
    const V inverse = hn::LoadU(d, self + l), at = ColumnsUntil(column, l, end), before = hn::LoadU(d, s.top + l);
    V score[kSpan], top = before;
    for (int k = 0; k < kSpan; ++k) {
      const V scale = hn::Mul(inverse, hn::LoadU(d, other + l + k - kMotionSearch));
      score[k] = hn::Mul(hn::Mul(Box(x + k * pitch, stride, l), scale), beta);
      top = hn::Max(top, hn::IfThenElse(Inside(at, k - kMotionSearch, p.grid->width), score[k], low));
    }
    V sum = hn::Zero(d), sum_w = hn::Zero(d);
    for (int k = 0; k < kSpan; ++k) {
      const V e = hn::IfThenElseZero(Inside(at, k - kMotionSearch, p.grid->width), hn::Exp(d, hn::Sub(score[k], top)));
      sum = hn::Add(sum, e);
      sum_w = hn::MulAdd(e, hn::Set(d, static_cast<float>(k - kMotionSearch)), sum_w);
    }
    const V keep = hn::Exp(d, hn::Sub(before, top));
    hn::StoreU(top, d, s.top + l);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, s.sum + l), keep, sum), d, s.sum + l);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, s.sum_w + l), keep, sum_w), d, s.sum_w + l);
    const V sum_h = hn::Mul(sum, hn::Set(d, static_cast<float>(dh)));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, s.sum_h + l), keep, sum_h), d, s.sum_h + l);
  });
}

MotionFound SearchPiece(const MotionPair& p, float* arrays) {
  const int64_t pitch = p.pitch(), stride = p.grid->stride;
  float* column = arrays + kSpan * pitch;
  const SearchState s{column + pitch, column + 2 * pitch, column + 3 * pitch, column + 4 * pitch};
  FillColumns(column, p);
  std::fill(s.sum, s.sum + 3 * pitch, 0.0f);
  std::fill(s.top, s.top + pitch, kLow);
  for (int64_t dh = -kMotionSearch; dh <= kMotionSearch; ++dh) {
    const int64_t first = std::max(p.first, -dh), end = std::min(p.end, p.grid->height - dh);
    if (first >= end) continue;
    const int64_t begin_at = p.lead() + (first - p.first) * stride, end_at = p.lead() + (end - p.first) * stride;
    Products(arrays, pitch, p.self + p.origin(), p.other + p.origin(), p.grid->size, dh * stride, begin_at - stride - 1,
             end_at + stride + 1);
    SumRows(arrays, pitch, stride, begin_at - 1, end_at + 1);
    SearchRow(s, p, arrays, column, dh, begin_at, end_at);
  }
  return {s.sum, s.sum_h, s.sum_w, s.top};
}

// Over the indices [begin, end): y[k] = β·dS/(‖z‖‖z′‖), and the sums of dS·cos.
struct GradientSums {
  float *pull, *asked;
};
void GradientRow(float* HWY_RESTRICT y, const GradientSums& g, const MotionPair& p, const MotionSlot& slot,
                 const float* x, const float* column, int64_t dh, int64_t begin, int64_t end) {
  const FloatTag d;
  const int64_t pitch = p.pitch(), stride = p.grid->stride, there = p.origin() + dh * stride - kMotionSearch;
  const int64_t asks = slot.other_asks ? there : p.origin(), step = slot.other_asks ? 1 : 0;
  const float sign = slot.other_asks ? -1.0f : 1.0f;  // δ is seen from the query
  const V beta = hn::Set(d, p.beta), delta_h = hn::Set(d, sign * static_cast<float>(dh));
  Sweep(begin, end, [&](int64_t l) {
    const V inverse = hn::LoadU(d, p.self_inverse + p.origin() + l), at = ColumnsUntil(column, l, end);
    V sum = hn::Zero(d);
    for (int k = 0; k < kSpan; ++k) {
      const int64_t q = asks + l + step * k;
      const V scale = hn::Mul(inverse, hn::LoadU(d, p.other_inverse + there + l + k));
      const V cosine = hn::Mul(Box(x + k * pitch, stride, l), scale);
      const V weight = hn::Exp(d, hn::Sub(hn::Mul(cosine, beta), hn::LoadU(d, slot.lse + q)));
      const V delta_w = hn::Set(d, sign * static_cast<float>(k - kMotionSearch));
      const V slope = hn::MulAdd(hn::LoadU(d, slot.slope_w + q), delta_w,
                                 hn::MulAdd(hn::LoadU(d, slot.slope_h + q), delta_h, hn::LoadU(d, slot.level + q)));
      const auto inside = Inside(at, k - kMotionSearch, p.grid->width);
      const V ds = hn::IfThenElseZero(inside, hn::Mul(weight, slope));
      sum = hn::Add(sum, hn::IfThenElseZero(inside, hn::Mul(ds, cosine)));
      hn::StoreU(hn::Mul(hn::Mul(ds, beta), scale), d, y + k * pitch + l);
    }
    hn::StoreU(hn::Add(hn::LoadU(d, g.pull + l), sum), d, g.pull + l);
    if (!slot.other_asks) hn::StoreU(hn::Add(hn::LoadU(d, g.asked + l), sum), d, g.asked + l);
  });
}

// dc_i[l] += Σ_k box(y[k])[l] · other_i[l + shift + k − 4]
void GatherRow(float* HWY_RESTRICT dc, const float* HWY_RESTRICT y, const MotionPair& p, int64_t shift, int64_t begin,
               int64_t end) {
  const FloatTag d;
  const int64_t pitch = p.pitch(), stride = p.grid->stride;
  const float* other = p.other + p.origin() + shift - kMotionSearch;
  Sweep(begin, end, [&](int64_t l) {
    V box[kSpan];
    for (int k = 0; k < kSpan; ++k) box[k] = Box(y + k * pitch, stride, l);
    for (int64_t i = 0; i < kMotionChannels; ++i) {
      V sum = hn::LoadU(d, dc + i * pitch + l);
      for (int k = 0; k < kSpan; ++k) sum = hn::MulAdd(box[k], hn::LoadU(d, other + i * p.grid->size + l + k), sum);
      hn::StoreU(sum, d, dc + i * pitch + l);
    }
  });
}

void GradientPiece(const MotionPair& p, const MotionSlot& slot, float* dc, float* pull, float* asked, float* arrays) {
  const int64_t pitch = p.pitch(), stride = p.grid->stride;
  float *x = arrays, *y = arrays + kSpan * pitch, *column = arrays + 2 * kSpan * pitch;
  FillColumns(column, p);
  const int64_t begin_at = p.lead(), end_at = p.lead() + (p.end - p.first) * stride;
  for (int64_t dh = -kMotionSearch; dh <= kMotionSearch; ++dh) {
    // A row beyond the piece on either side: their patches hold its tokens.
    const int64_t first = std::max({p.first - 1, int64_t{0}, -dh});
    const int64_t end = std::min({p.end + 1, p.grid->height, p.grid->height - dh});
    if (first >= end) continue;
    const int64_t from = p.lead() + (first - p.first) * stride, to = p.lead() + (end - p.first) * stride;
    Products(x, pitch, p.self + p.origin(), p.other + p.origin(), p.grid->size, dh * stride, from - stride - 1, to + stride + 1);
    SumRows(x, pitch, stride, from - 1, to + 1);
    GradientRow(y, {pull, asked}, p, slot, x, column, dh, from, to);
    for (int k = 0; k < kSpan; ++k) {  // no patch of this δ_h lies in the rows around, nor does what the last vector left
      std::fill(y + k * pitch, y + k * pitch + from, 0.0f);
      std::fill(y + k * pitch + to, y + (k + 1) * pitch, 0.0f);
    }
    SumRows(y, pitch, stride, begin_at - 1, end_at + 1);
    GatherRow(dc, y, p, dh * stride, begin_at, end_at);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(SearchPiece);
HWY_EXPORT(GradientPiece);

MotionFound motion_search_piece(const MotionPair& pair, float* arrays) {
  return HWY_DYNAMIC_DISPATCH(SearchPiece)(pair, arrays);
}
void motion_gradient_piece(const MotionPair& pair, const MotionSlot& slot, float* dc, float* pull, float* asked,
                           float* arrays) {
  HWY_DYNAMIC_DISPATCH(GradientPiece)(pair, slot, dc, pull, asked, arrays);
}

}  // namespace megaslide
#endif  // HWY_ONCE
