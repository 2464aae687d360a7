// rounding_bits() of consecutive elements into a buffer. Included once a target, after kernels/simd-inl.h.
#if defined(MEGASLIDE_KERNELS_ADAMW_RANDOM_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGASLIDE_KERNELS_ADAMW_RANDOM_BITS_INL_H_
#undef MEGASLIDE_KERNELS_ADAMW_RANDOM_BITS_INL_H_
#else
#define MEGASLIDE_KERNELS_ADAMW_RANDOM_BITS_INL_H_
#endif

#include <cstring>

#include "kernels/adamw/codec_math.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_SSE2
using Words64 = hn::ScalableTag<uint64_t>;

// The state of as many draws as a register has 64-bit lanes. c0 and c2 are the lower halves of their lanes, and so are
// c1 and c3: what lies in the upper halves never reaches a lower one.
struct Draws {
  HWY_INLINE void start(const AdamWStep& step, RandomPurpose purpose, hn::Vec<Words64> index) {
    const Words64 d;
    const auto series = static_cast<uint64_t>(step.step);
    c0 = index;
    c1 = hn::Xor(hn::ShiftRight<32>(index), hn::Set(d, static_cast<uint64_t>(purpose) << 24));
    c2 = hn::Set(d, series);
    c3 = hn::Set(d, series >> 32);
  }
  HWY_INLINE void round(uint32_t key0, uint32_t key1) {
    const Words64 d;
    const hn::Repartition<uint32_t, Words64> d32;
    const auto a = hn::MulEven(hn::Set(d32, 0xD2511F53U), hn::BitCast(d32, c0));
    const auto b = hn::MulEven(hn::Set(d32, 0xCD9E8D57U), hn::BitCast(d32, c2));
    c0 = hn::Xor3(hn::ShiftRight<32>(b), c1, hn::Set(d, uint64_t{key0}));
    c2 = hn::Xor3(hn::ShiftRight<32>(a), c3, hn::Set(d, uint64_t{key1}));
    c1 = b;
    c3 = a;
  }
  HWY_INLINE void store(uint64_t* out) const {
    const Words64 d;
    const hn::Repartition<uint32_t, Words64> d32;
    const auto low = hn::BitCast(d, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(c1)), hn::BitCast(d32, c0)));
    const auto high = hn::BitCast(d, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(c3)), hn::BitCast(d32, c2)));
    hn::StoreU(hn::InterleaveLower(d, low, high), d, out);
    hn::StoreU(hn::InterleaveUpper(d, low, high), d, out + hn::Lanes(d));
  }
  hn::Vec<Words64> c0, c1, c2, c3;
};

// Two registers' draws from number `draw` on, which are 16 bytes each, in order.
HWY_INLINE void DrawTwice(const AdamWStep& step, RandomPurpose purpose, uint64_t draw, uint16_t* out) {
  const Words64 d;
  constexpr size_t kLanes = hn::MaxLanes(Words64());
  // Interleaving takes even lanes into one register and odd ones into another: the draws are dealt out so that these
  // come in order.
  alignas(64) uint64_t order[kLanes];
  for (size_t i = 0; i < kLanes; ++i) order[i] = i % 2 * (kLanes / 2) + i / 2;
  const auto index = hn::Add(hn::Set(d, draw), hn::Load(d, order));
  Draws first, second;
  first.start(step, purpose, index);
  second.start(step, purpose, hn::Add(index, hn::Set(d, uint64_t{kLanes})));
  auto key0 = static_cast<uint32_t>(step.seed), key1 = static_cast<uint32_t>(step.seed >> 32);
  for (int i = 0; i < 10; ++i, key0 += 0x9E3779B9U, key1 += 0xBB67AE85U) {
    first.round(key0, key1);
    second.round(key0, key1);
  }
  auto* words = reinterpret_cast<uint64_t*>(out);
  first.store(words);
  second.store(words + 2 * kLanes);
}
inline constexpr size_t kDrawsAtOnce = 2 * hn::MaxLanes(Words64());
#else
inline constexpr size_t kDrawsAtOnce = 1;
#endif

// Bits of up to kMomentBlock elements. Draws serve eight elements each: with those begun at both ends there may be one
// more than the elements fill.
struct RandomBits {
  // For elements [first, first + n) of the model.
  HWY_INLINE const uint16_t* fill(const AdamWStep& step, RandomPurpose purpose, uint64_t first, int64_t n) {
    const uint64_t begin = first / 8, end = (first + static_cast<uint64_t>(n) + 7) / 8;
    uint16_t* out = bits;
    for (uint64_t draw = begin; draw < end; draw += kDrawsAtOnce, out += 8 * kDrawsAtOnce) {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_SSE2
      DrawTwice(step, purpose, draw, out);
#else
      const auto words = Random(step.seed, purpose).bits(static_cast<uint64_t>(step.step), draw);
      for (size_t i = 0; i < 8; ++i) out[i] = static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)));
#endif
    }
    return bits + first % 8;
  }
  alignas(64) uint16_t bits[kMomentBlock + 8 * kDrawsAtOnce];
};

}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();
#endif  // MEGASLIDE_KERNELS_ADAMW_RANDOM_BITS_INL_H_
