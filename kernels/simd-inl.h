// Highway helpers of the elementwise kernels. Included once a target, after hwy/foreach_target.h:
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "kernels/norm/norm.cpu.cc"
//   #include "kernels/simd_targets.h"
//   #include "hwy/foreach_target.h"
//   #include "hwy/highway.h"
//   #include "kernels/simd-inl.h"
//
// Loops run over whole vectors and finish with one-lane vectors, so that no lane outside a row is ever touched.
#if defined(MEGASLIDE_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGASLIDE_KERNELS_SIMD_INL_H_
#undef MEGASLIDE_KERNELS_SIMD_INL_H_
#else
#define MEGASLIDE_KERNELS_SIMD_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using TailTag = hn::CappedTag<float, 1>;

template <class D>
HWY_INLINE hn::Vec<D> LoadFloat(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadFloat(D d, const bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto u = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, u)));
}

template <class D>
HWY_INLINE void StoreFloat(hn::Vec<D> v, D d, float* p) {
  hn::StoreU(v, d, p);
}
// To nearest, ties to even; NaN stays a quiet NaN: the bits of to_bf16().
template <class D>
HWY_INLINE void StoreFloat(hn::Vec<D> v, D, bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const hn::Rebind<int32_t, D> di;
  const auto u = hn::BitCast(d32, v);
  const auto high = hn::ShiftRight<16>(u);
  const auto odd = hn::And(high, hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(d32, 0x7fffu))));
  const auto quiet = hn::Or(high, hn::Set(d32, 0x40u));
  const auto bits = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, bits)), d16, reinterpret_cast<uint16_t*>(p));
}

// What a value is once stored as T.
template <class D>
HWY_INLINE hn::Vec<D> RoundTo(D, hn::Vec<D> v, const float*) {
  return v;
}
template <class D>
HWY_INLINE hn::Vec<D> RoundTo(D d, hn::Vec<D> v, const bf16*) {
  const hn::Rebind<uint32_t, D> d32;
  const auto u = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d32, 1u));
  const auto rounded = hn::And(hn::Add(u, hn::Add(odd, hn::Set(d32, 0x7fffu))), hn::Set(d32, 0xffff0000u));
  return hn::IfThenElse(hn::IsNaN(v), v, hn::BitCast(d, rounded));
}

// body(d, i) for whole vectors of [0, n), then one lane at a time.
template <class F>
HWY_INLINE void ForEach(int64_t n, F body) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(d, i);
  for (; i < n; ++i) body(TailTag(), i);
}

// body(d, i) for whole vectors of [0, n), then for pairs of lanes (for single lanes on the target that has no more);
// n is even.
template <class F>
HWY_INLINE void ForEachPair(int64_t n, F body) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(d, i);
#if HWY_TARGET != HWY_SCALAR
  for (; i < n; i += 2) body(hn::CappedTag<float, 2>(), i);
#endif
}

// value(i) with the two lanes of each pair exchanged; i is even unless lanes come singly.
template <class D, class F>
HWY_INLINE hn::Vec<D> ExchangePairs(D d, int64_t i, F value) {
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  return value(i ^ 1);
#else
  return hn::Reverse2(d, value(i));
#endif
}

// A sum over a ForEach: one register of partial sums for the vectors, one for the tail.
struct RowSum {
  // Written out, since an implicit constructor would not be compiled for the target.
  HWY_INLINE RowSum() : whole(hn::Zero(FloatTag())), tail(hn::Zero(TailTag())) {}
  template <class D>
  HWY_INLINE hn::Vec<D>& at(D) {
    if constexpr (std::is_same_v<D, TailTag>)
      return tail;
    else
      return whole;
  }
  HWY_INLINE float total() const { return hn::GetLane(hn::SumOfLanes(FloatTag(), whole)) + hn::GetLane(tail); }

  hn::Vec<FloatTag> whole;
  hn::Vec<TailTag> tail;
};

}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();
#endif  // MEGASLIDE_KERNELS_SIMD_INL_H_
