// The codecs over registers. Included once a target, after kernels/simd-inl.h. Formulas are in codec_math.h.
#if defined(MEGASLIDE_KERNELS_ADAMW_CODECS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGASLIDE_KERNELS_ADAMW_CODECS_INL_H_
#undef MEGASLIDE_KERNELS_ADAMW_CODECS_INL_H_
#else
#define MEGASLIDE_KERNELS_ADAMW_CODECS_INL_H_
#endif

#include "kernels/adamw/codec_math.h"

// Targets without a fused multiply-add (Highway's would round twice) run the specification itself.
#undef MEGASLIDE_ADAMW_SIMD
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSE2
#define MEGASLIDE_ADAMW_SIMD 0
#else
#define MEGASLIDE_ADAMW_SIMD 1
#endif

#if MEGASLIDE_ADAMW_SIMD
HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {

using Words = hn::Rebind<uint32_t, FloatTag>;
using Integers = hn::Rebind<int32_t, FloatTag>;
using Halves = hn::Rebind<uint16_t, FloatTag>;
using Bytes = hn::Rebind<uint8_t, FloatTag>;
using SignedBytes = hn::Rebind<int8_t, FloatTag>;
using Floats = hn::Vec<FloatTag>;
using Bits = hn::Vec<Words>;

HWY_INLINE Floats Join(const bf16* w, const int16_t* r) {
  const hn::Rebind<int16_t, FloatTag> d16;
  const auto high =
      hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(Halves(), reinterpret_cast<const uint16_t*>(w))));
  const auto low = hn::BitCast(Words(), hn::PromoteTo(Integers(), hn::LoadU(d16, r)));
  return hn::BitCast(FloatTag(), hn::Add(high, low));
}
HWY_INLINE void StoreWeight(Floats p, bf16* w) {
  const auto u = hn::Add(hn::BitCast(Words(), p), hn::Set(Words(), 0x8000U));
  hn::StoreU(hn::TruncateTo(Halves(), hn::ShiftRight<16>(u)), Halves(), reinterpret_cast<uint16_t*>(w));
}
HWY_INLINE void StoreRemainder(Floats p, int16_t* r) {
  hn::StoreU(hn::TruncateTo(Halves(), hn::BitCast(Words(), p)), Halves(), reinterpret_cast<uint16_t*>(r));
}
HWY_INLINE Floats Canonical(Floats x) {
  return hn::IfThenElse(hn::IsNaN(x), hn::BitCast(FloatTag(), hn::Set(Words(), 0x7fc00000U)), x);
}
HWY_INLINE Bits MagnitudeBits(Floats x) { return hn::And(hn::BitCast(Words(), x), hn::Set(Words(), 0x7fffffffU)); }
HWY_INLINE uint32_t Largest(Bits x) { return hn::GetLane(hn::MaxOfLanes(Words(), x)); }

HWY_INLINE void StoreStochastic(Floats x, const uint16_t* random, bf16* out) {
  const auto u = hn::BitCast(Words(), x);
  const auto up = hn::Add(u, hn::PromoteTo(Words(), hn::LoadU(Halves(), random)));
  const auto finite = hn::Lt(hn::BitCast(Integers(), MagnitudeBits(x)), hn::Set(Integers(), 0x7f800000));
  const auto rounded = hn::IfThenElse(hn::RebindMask(Words(), finite), up, u);
  hn::StoreU(hn::TruncateTo(Halves(), hn::ShiftRight<16>(rounded)), Halves(), reinterpret_cast<uint16_t*>(out));
}

HWY_INLINE Bits MLevelOn(int fraction, Floats z) {
  const FloatTag d;
  const auto size = hn::Abs(z);
  const auto y = hn::BitCast(
      d, hn::Sub(hn::Set(Words(), adamw::kLevelRootBits), hn::ShiftRight<1>(hn::BitCast(Words(), size))));
  const auto root = hn::Mul(size, y), u = hn::Mul(root, y);
  const auto linear = hn::MulAdd(hn::Set(d, adamw::kLevelRoot[2]), u, hn::Set(d, adamw::kLevelRoot[1]));
  const auto polynomial = hn::MulAdd(linear, u, hn::Set(d, adamw::kLevelRoot[0]));
  const auto on = hn::Set(d, adamw::grid(fraction, true));
  return hn::BitCast(Words(), hn::MulAdd(hn::CopySignToAbs(root, z), polynomial, on));
}
HWY_INLINE Bits VLevelOn(int fraction, Floats z) {
  return hn::BitCast(Words(), hn::Add(hn::Sqrt(z), hn::Set(FloatTag(), adamw::grid(fraction, false))));
}

HWY_INLINE void StoreLevels(Bits q, uint8_t* out) { hn::StoreU(hn::TruncateTo(Bytes(), q), Bytes(), out); }
// Levels of m, stochastically by the lower byte of the random bits, or to nearest.
HWY_INLINE Bits MLevel(Floats m, Floats factor, Bits random) {
  const auto q = MLevelOn(adamw::kMFraction, hn::Mul(m, factor));
  return hn::ShiftRight<adamw::kMFraction>(hn::Add(q, hn::And(random, hn::Set(Words(), 0xffU))));
}
HWY_INLINE Bits MLevel(Floats m, Floats factor) { return MLevelOn(0, hn::Mul(m, factor)); }
// Levels of v, by the upper ones. q is at least 1 above what level 0 looks like where there is something to represent.
template <int kFraction>
HWY_INLINE Bits AtLeastOne(Bits q, Floats root) {
  constexpr uint32_t kZero = std::bit_cast<uint32_t>(adamw::grid(kFraction, false)) >> kFraction;
  const auto something = hn::RebindMask(Words(), hn::Gt(root, hn::Zero(FloatTag())));
  return hn::IfThenElse(something, hn::Max(q, hn::Set(Words(), kZero + 1)), q);
}
HWY_INLINE Bits VLevel(Floats root, Floats factor, Bits random) {
  constexpr int kFraction = adamw::kVFraction;
  const auto q = VLevelOn(kFraction, hn::Mul(root, factor));
  return AtLeastOne<kFraction>(hn::ShiftRight<kFraction>(hn::Add(q, hn::ShiftRight<16 - kFraction>(random))), root);
}
HWY_INLINE Bits VLevel(Floats root, Floats factor) {
  return AtLeastOne<0>(VLevelOn(0, hn::Mul(root, factor)), root);
}

HWY_INLINE Floats LoadM(const int8_t* q, Floats scale) {
  const FloatTag d;
  const auto x = hn::ConvertTo(d, hn::PromoteTo(Integers(), hn::LoadU(SignedBytes(), q)));
  return hn::Mul(hn::Mul(hn::Mul(x, hn::Abs(x)), hn::Set(d, kMUnit)), scale);
}
HWY_INLINE Floats LoadV(const uint8_t* q, Floats scale) {
  const FloatTag d;
  const auto x = hn::ConvertTo(d, hn::PromoteTo(Integers(), hn::LoadU(Bytes(), q)));
  const auto root = hn::Mul(hn::Mul(hn::Mul(x, x), hn::Set(d, kVUnit)), scale);
  return hn::Mul(root, root);
}

}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();
#endif
#endif  // MEGASLIDE_KERNELS_ADAMW_CODECS_INL_H_
