#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gated_gelu/gated_gelu.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/gated_gelu/gated_gelu.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

constexpr float kRootTwoOverPi = 0.7978845608028654f;
constexpr float kCubic = 0.044715f;

template <class T>
void Range(T* y, const float* gate, const float* up, int64_t n) {
  ForEach(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto x = hn::LoadU(d, gate + i);
    const auto inner = hn::MulAdd(hn::Set(d, kCubic), hn::Mul(x, x), hn::Set(d, 1.0f));
    const auto exponent = hn::Mul(hn::Mul(hn::Set(d, -2 * kRootTwoOverPi), x), inner);
    // Kept where e^x is a normal number; the factor x outside brings NaN back.
    const auto bounded = hn::Min(hn::Max(exponent, hn::Set(d, -87.0f)), hn::Set(d, 87.0f));
    const auto gelu = hn::Div(x, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, bounded)));
    StoreFloat(hn::Mul(gelu, hn::LoadU(d, up + i)), d, y + i);
  });
}

void GatedGeluRange(void* y, const float* gate, const float* up, int64_t begin, int64_t end, DType dtype) {
  if (dtype == DType::kBF16)
    Range(static_cast<bf16*>(y) + begin, gate + begin, up + begin, end - begin);
  else
    Range(static_cast<float*>(y) + begin, gate + begin, up + begin, end - begin);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(GatedGeluRange);

namespace cpu {

void gated_gelu_forward(Stream& stream, void* y, const float* gate, const float* up, int64_t n, DType dtype) {
  const auto run = HWY_DYNAMIC_DISPATCH(GatedGeluRange);
  stream.parallel_for(n, 16384, [&](int64_t begin, int64_t end) { run(y, gate, up, begin, end, dtype); });
}

}  // namespace cpu
}  // namespace megaslide
#endif
