#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/activation.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/activation/activation.h"
#include "kernels/activation/gelu_rows.h"
#include "kernels/simd-inl.h"

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

constexpr float kRootTwoOverPi = 0.7978845608028654f;
constexpr float kCubic = 0.044715f;

// 1 / (1 + e^(−2u)) of GELU. The exponent is kept where e^x is a normal number; the factor x outside brings NaN back.
template <class D, class V>
HWY_INLINE V GeluSigmoid(D d, V x, V square) {
  const V inner = hn::MulAdd(hn::Set(d, kCubic), square, hn::Set(d, 1.0f));
  const V exponent = hn::Mul(hn::Mul(hn::Set(d, -2 * kRootTwoOverPi), x), inner);
  const V bounded = hn::Min(hn::Max(exponent, hn::Set(d, -87.0f)), hn::Set(d, 87.0f));
  return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), hn::Exp(d, bounded)));
}

template <class T>
void Forward(T* y, T* kept, const float* x, int64_t n) {
  const T* type = nullptr;
  ForEach(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto v = RoundTo(d, hn::LoadU(d, x + i), type);
    if (kept) StoreFloat(v, d, kept + i);
    StoreFloat(hn::Mul(v, GeluSigmoid(d, v, hn::Mul(v, v))), d, y + i);
  });
}

void GeluForwardRange(void* y, void* kept, const float* x, int64_t begin, int64_t end, DType dtype) {
  if (dtype == DType::kBF16)
    Forward(static_cast<bf16*>(y) + begin, kept ? static_cast<bf16*>(kept) + begin : nullptr, x + begin, end - begin);
  else
    Forward(static_cast<float*>(y) + begin, kept ? static_cast<float*>(kept) + begin : nullptr, x + begin, end - begin);
}

template <class T>
void BackwardRows(T* dx, T* y, float* dbias, const float* dy, const T* x, int64_t begin, int64_t end, int64_t width) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t at = r * width;
    ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
      const auto v = LoadFloat(d, x + at + c);
      const auto square = hn::Mul(v, v);
      const auto s = GeluSigmoid(d, v, square);
      const auto value = hn::Mul(v, s);
      const auto slope = hn::MulAdd(hn::Set(d, 6 * kCubic * kRootTwoOverPi), square, hn::Set(d, 2 * kRootTwoOverPi));
      const auto derivative = hn::MulAdd(hn::Mul(value, hn::Sub(hn::Set(d, 1.0f), s)), slope, s);
      const auto g = hn::Mul(hn::LoadU(d, dy + at + c), derivative);
      hn::StoreU(hn::Add(g, hn::LoadU(d, dbias + c)), d, dbias + c);
      StoreFloat(value, d, y + at + c);
      StoreFloat(g, d, dx + at + c);
    });
  }
}

void GeluBackwardRows(void* dx, void* y, float* dbias, const float* dy, const void* x, int64_t begin, int64_t end,
                      int64_t width, DType dtype) {
  if (dtype == DType::kBF16)
    BackwardRows(static_cast<bf16*>(dx), static_cast<bf16*>(y), dbias, dy, static_cast<const bf16*>(x), begin, end,
                 width);
  else
    BackwardRows(static_cast<float*>(dx), static_cast<float*>(y), dbias, dy, static_cast<const float*>(x), begin, end,
                 width);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(GeluForwardRange);
HWY_EXPORT(GeluBackwardRows);

void gelu_forward_rows(void* y, void* x_kept, const float* x, int64_t n, DType dtype) {
  HWY_DYNAMIC_DISPATCH(GeluForwardRange)(y, x_kept, x, 0, n, dtype);
}
void gelu_backward_rows(void* dx, void* y, float* sums, const float* dy, const void* x_kept, int64_t rows,
                        int64_t width, DType dtype) {
  HWY_DYNAMIC_DISPATCH(GeluBackwardRows)(dx, y, sums, dy, x_kept, 0, rows, width, dtype);
}

namespace cpu {

void gelu_forward(Stream& stream, void* y, void* x_kept, const float* x, int64_t n, DType dtype) {
  const auto run = HWY_DYNAMIC_DISPATCH(GeluForwardRange);
  stream.parallel_for(n, 16384, [&](int64_t begin, int64_t end) { run(y, x_kept, x, begin, end, dtype); });
}

void gelu_backward(Stream& stream, void* dx, void* y, float* dbias, float* scratch, const float* dy, const void* x_kept,
                   int64_t rows, int64_t width, DType dtype) {
  const auto run = HWY_DYNAMIC_DISPATCH(GeluBackwardRows);
  for_row_pieces(stream, rows, rows, width, scratch, [&](int64_t, int64_t begin, int64_t end, float* sums) {
    run(dx, y, sums, dy, x_kept, begin, end, width, dtype);
  });
  add_row_pieces(stream, dbias, 0, rows, rows, width, 0, width, scratch);
}

// SiLU serves vectors of a sample, not of a token: plain loops.
void silu_forward(Stream&, float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] / (1 + std::exp(-x[i]));
}

void silu_backward(Stream&, float* dx, const float* dy, const float* x, int64_t n, bool accumulate) {
  for (int64_t i = 0; i < n; ++i) {
    const float s = 1 / (1 + std::exp(-x[i])), d = dy[i] * s * (1 + x[i] * (1 - s));
    dx[i] = accumulate ? dx[i] + d : d;
  }
}

}  // namespace cpu
}  // namespace megaslide
#endif
