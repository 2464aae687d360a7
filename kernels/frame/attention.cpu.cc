#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/frame/attention.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/frame/frame_ops.h"
#include "kernels/gemm/onednn.h"
#include "kernels/simd-inl.h"

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

// In place: e^(scale·(s − max s)). Returns the sum.
float Exponentials(float* s, int64_t n, float scale) {
  float top = -INFINITY;
  for (int64_t i = 0; i < n; ++i) top = s[i] > top ? s[i] : top;
  RowSum sum;
  ForEach(n, [&](auto t, int64_t i) HWY_ATTR {
    const auto x = hn::Mul(hn::Sub(hn::LoadU(t, s + i), hn::Set(t, top)), hn::Set(t, scale));
    // Exp of a NaN need not be one.
    const auto p = hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(t, hn::Max(x, hn::Set(t, -100.0f))));
    sum.at(t) = hn::Add(sum.at(t), p);
    hn::StoreU(p, t, s + i);
  });
  return sum.total();
}

void SoftmaxRow(float* s, int64_t n, float scale, float* sum) { *sum = Exponentials(s, n, scale); }

void ScaledRow(void* out, int64_t offset, DType dtype, const float* in, int64_t n, float scale) {
  ForEach(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto v = hn::Mul(hn::LoadU(d, in + i), hn::Set(d, scale));
    if (dtype == DType::kBF16)
      StoreFloat(v, d, static_cast<bf16*>(out) + offset + i);
    else
      StoreFloat(v, d, static_cast<float*>(out) + offset + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(SoftmaxRow);
HWY_EXPORT(ScaledRow);

namespace cpu {

void frame_attention(Stream& stream, void* out, FrameLayout layout, const float* qkv, FrameLayout qkv_layout) {
  MS_CHECK(layout.border == 0 && qkv_layout.border == 0 && qkv_layout.channels == 3 * layout.channels);
  constexpr int64_t kRows = 64;  // queries a piece
  const int64_t n = layout.height * layout.width, c = layout.channels, stride = qkv_layout.stored();
  const float scale = 1 / std::sqrt(static_cast<float>(c));
  stream.parallel_for(n, kRows, [&](int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    auto* scores = static_cast<float*>(
        onednn::thread_scratch(onednn::ScratchSlot::kA, static_cast<size_t>(rows * n) * sizeof(float)));
    auto* sums = static_cast<float*>(
        onednn::thread_scratch(onednn::ScratchSlot::kB, static_cast<size_t>(rows * (c + 1)) * sizeof(float)));
    float* result = sums + rows;
    onednn::sgemm(false, true, rows, n, c, qkv + begin * stride, stride, qkv + c, stride, 0, scores, n);
    for (int64_t r = 0; r < rows; ++r) HWY_DYNAMIC_DISPATCH(SoftmaxRow)(scores + r * n, n, scale, sums + r);
    onednn::sgemm(false, false, rows, c, n, scores, n, qkv + 2 * c, stride, 0, result, c);
    for (int64_t r = 0; r < rows; ++r)
      HWY_DYNAMIC_DISPATCH(ScaledRow)(out, (begin + r) * layout.stored(), layout.dtype, result + r * c, c, 1 / sums[r]);
  });
}

}  // namespace cpu
}  // namespace megaslide
#endif
