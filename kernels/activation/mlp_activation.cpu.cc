#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/mlp_activation.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/activation/mlp_activation.h"
#include "kernels/activation/normal_tail.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

// x·Φ(x). For x > 0, Φ(x) = 1 − Φ(−x). The exponent is kept where e^x is a normal number; x brings NaN back.
template <class D, class V>
HWY_INLINE V Gelu(D d, V x) {
  const V a = hn::Abs(x);
  const V t = hn::Div(hn::Set(d, 1.0F), hn::MulAdd(hn::Set(d, kNormalTail.spread), a, hn::Set(d, 1.0F)));
  V sum = hn::Set(d, kNormalTail.power[9]);
#pragma GCC unroll 9
  for (int i = 8; i >= 0; --i) sum = hn::MulAdd(sum, t, hn::Set(d, kNormalTail.power[i]));
  const V exponent = hn::Max(hn::Mul(hn::Mul(a, a), hn::Set(d, -0.5F)), hn::Set(d, -87.0F));
  const V tail = hn::Mul(hn::Mul(sum, t), hn::Exp(d, exponent));
  const V phi = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0F), tail));
  return hn::Mul(x, phi);
}

template <class D, class V>
HWY_INLINE V QuickGelu(D d, V x) {
  const V bounded = hn::Min(hn::Max(hn::Mul(x, hn::Set(d, -1.702F)), hn::Set(d, -87.0F)), hn::Set(d, 87.0F));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0F), hn::Exp(d, bounded)));
}

template <class T>
void Rows(T* y, const float* x, int64_t n, MlpActivation f) {
  if (f == MlpActivation::kGelu)
    ForEach(n, [&](auto d, int64_t i) HWY_ATTR { StoreFloat(Gelu(d, hn::LoadU(d, x + i)), d, y + i); });
  else
    ForEach(n, [&](auto d, int64_t i) HWY_ATTR { StoreFloat(QuickGelu(d, hn::LoadU(d, x + i)), d, y + i); });
}

void MlpActivationRows(void* y, const float* x, int64_t n, MlpActivation f, DType dtype) {
  dtype == DType::kBF16 ? Rows(static_cast<bf16*>(y), x, n, f) : Rows(static_cast<float*>(y), x, n, f);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(MlpActivationRows);

void mlp_activation_rows(void* y, const float* x, int64_t n, MlpActivation f, DType dtype) {
  HWY_DYNAMIC_DISPATCH(MlpActivationRows)(y, x, n, f, dtype);
}

namespace cpu {

void mlp_activation_forward(Stream& stream, void* y, const float* x, int64_t n, MlpActivation f, DType dtype) {
  MS_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "{}", dtype_name(dtype));
  stream.parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
    mlp_activation_rows(static_cast<std::byte*>(y) + begin * dtype_bytes(dtype), x + begin, end - begin, f, dtype);
  });
}

}  // namespace cpu
}  // namespace megaslide
#endif
