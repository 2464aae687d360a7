#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/norm.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/norm/norm.h"
#include "kernels/simd-inl.h"

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

struct Statistics {
  float mean, rstd;
};

HWY_INLINE Statistics RowStatistics(const float* x, int64_t width, float eps) {
  RowSum sum;
  ForEach(width, [&](auto d, int64_t c) HWY_ATTR { sum.at(d) = hn::Add(sum.at(d), hn::LoadU(d, x + c)); });
  const float mean = sum.total() / static_cast<float>(width);
  RowSum square;
  ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
    const auto v = hn::Sub(hn::LoadU(d, x + c), hn::Set(d, mean));
    square.at(d) = hn::MulAdd(v, v, square.at(d));
  });
  return {mean, 1.0f / std::sqrt(square.total() / static_cast<float>(width) + eps)};
}

template <class T>
void ForwardRows(T* y, const float* x, const float* mul, const float* add, int64_t rows, int64_t width, float eps) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    const Statistics s = RowStatistics(x, width, eps);
    ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
      const auto unit = hn::Mul(hn::Sub(hn::LoadU(d, x + c), hn::Set(d, s.mean)), hn::Set(d, s.rstd));
      StoreFloat(hn::MulAdd(unit, hn::LoadU(d, mul + c), hn::LoadU(d, add + c)), d, y + c);
    });
  }
}

void LayerNormForwardRows(void* y, int64_t offset, DType dtype, const float* x, const float* mul, const float* add,
                          int64_t rows, int64_t width, float eps) {
  if (dtype == DType::kBF16)
    ForwardRows(static_cast<bf16*>(y) + offset, x, mul, add, rows, width, eps);
  else
    ForwardRows(static_cast<float*>(y) + offset, x, mul, add, rows, width, eps);
}

// sums: dmul (width), then dadd (width).
void LayerNormBackwardRows(float* dx, float* sums, const float* dy, const float* residual, const float* x,
                           const float* mul, int64_t rows, int64_t width, float eps) {
  float *dmul = sums, *dadd = sums + width;
  for (int64_t r = 0; r < rows; ++r, x += width, dx += width, dy += width) {
    const Statistics s = RowStatistics(x, width, eps);
    RowSum sum_g, sum_gu;
    ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
      const auto unit = hn::Mul(hn::Sub(hn::LoadU(d, x + c), hn::Set(d, s.mean)), hn::Set(d, s.rstd));
      const auto dv = hn::LoadU(d, dy + c);
      const auto g = hn::Mul(dv, hn::LoadU(d, mul + c));
      sum_g.at(d) = hn::Add(sum_g.at(d), g);
      sum_gu.at(d) = hn::MulAdd(g, unit, sum_gu.at(d));
      hn::StoreU(hn::MulAdd(dv, unit, hn::LoadU(d, dmul + c)), d, dmul + c);
      hn::StoreU(hn::Add(dv, hn::LoadU(d, dadd + c)), d, dadd + c);
    });
    const float mean_g = sum_g.total() / static_cast<float>(width),
                mean_gu = sum_gu.total() / static_cast<float>(width);
    ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
      const auto rstd = hn::Set(d, s.rstd);
      const auto unit = hn::Mul(hn::Sub(hn::LoadU(d, x + c), hn::Set(d, s.mean)), rstd);
      const auto g = hn::Mul(hn::LoadU(d, dy + c), hn::LoadU(d, mul + c));
      const auto inner = hn::NegMulAdd(unit, hn::Set(d, mean_gu), hn::Sub(g, hn::Set(d, mean_g)));
      const auto base = residual ? hn::LoadU(d, residual + r * width + c) : hn::Zero(d);
      hn::StoreU(hn::MulAdd(rstd, inner, base), d, dx + c);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(LayerNormForwardRows);
HWY_EXPORT(LayerNormBackwardRows);

namespace cpu {

void layer_norm_forward(Stream& stream, void* y, const float* x, const float* mul, const float* add, int64_t rows,
                        int64_t width, int64_t group_rows, int64_t group_stride, float eps, DType dtype) {
  const auto run = HWY_DYNAMIC_DISPATCH(LayerNormForwardRows);
  stream.parallel_for(rows, rows_grain(width), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t group = begin / group_rows, last = std::min(end, (group + 1) * group_rows);
      run(y, begin * width, dtype, x + begin * width, mul + group * group_stride, add + group * group_stride,
          last - begin, width, eps);
      begin = last;
    }
  });
}

void layer_norm_backward(Stream& stream, float* dx, float* dmul, float* dadd, float* scratch, const float* dy,
                         const float* residual, const float* x, const float* mul, int64_t rows, int64_t width,
                         int64_t group_rows, int64_t group_stride, float eps) {
  const auto run = HWY_DYNAMIC_DISPATCH(LayerNormBackwardRows);
  for_row_pieces(stream, rows, group_rows, 2 * width, scratch,
                 [&](int64_t group, int64_t begin, int64_t end, float* sums) {
                   const int64_t at = begin * width;
                   run(dx + at, sums, dy + at, residual ? residual + at : nullptr, x + at, mul + group * group_stride,
                       end - begin, width, eps);
                 });
  add_row_pieces(stream, dmul, group_stride, rows, group_rows, 2 * width, 0, width, scratch);
  add_row_pieces(stream, dadd, group_stride, rows, group_rows, 2 * width, width, width, scratch);
}

}  // namespace cpu
}  // namespace megaslide
#endif
