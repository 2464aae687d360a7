// rounding_bits() of consecutive elements into a buffer. Included once a target, after kernels/simd-inl.h.
#if defined(MEGASLIDE_KERNELS_ADAMW_RANDOM_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGASLIDE_KERNELS_ADAMW_RANDOM_BITS_INL_H_
#undef MEGASLIDE_KERNELS_ADAMW_RANDOM_BITS_INL_H_
#else
#define MEGASLIDE_KERNELS_ADAMW_RANDOM_BITS_INL_H_
#endif

#include <cstring>

#include "kernels/adamw/codecs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {

#if MEGASLIDE_ADAMW_SIMD
using Words64 = hn::ScalableTag<uint64_t>;

// The state of as many draws as a register has 64-bit lanes. c0 and c2 are the lower halves of their lanes, and so are
// c1 and c3: what lies in the upper halves never reaches a lower one.
struct Draws {
  HWY_INLINE void start(uint64_t series, uint64_t tag, hn::Vec<Words64> index) {
    const Words64 d;
    c0 = index;
    c1 = hn::Xor(hn::ShiftRight<32>(index), hn::Set(d, tag));
    c2 = hn::Set(d, series);
    c3 = hn::Set(d, series >> 32);
  }
  HWY_INLINE void round(const uint64_t* key) {
    const Words64 d;
    const hn::Repartition<uint32_t, Words64> d32;
    const auto a = hn::MulEven(hn::Set(d32, 0xD2511F53U), hn::BitCast(d32, c0));
    const auto b = hn::MulEven(hn::Set(d32, 0xCD9E8D57U), hn::BitCast(d32, c2));
    c0 = hn::Xor3(hn::ShiftRight<32>(b), c1, hn::Set(d, key[0]));
    c2 = hn::Xor3(hn::ShiftRight<32>(a), c3, hn::Set(d, key[1]));
    c1 = b;
    c3 = a;
  }
  // 16 bytes a draw, in order.
  HWY_INLINE void store(uint8_t* out) const {
    const Words64 d;
    const hn::Repartition<uint32_t, Words64> d32;
    const auto low = hn::BitCast(d, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(c1)), hn::BitCast(d32, c0)));
    const auto high = hn::BitCast(d, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(c3)), hn::BitCast(d32, c2)));
    auto* words = reinterpret_cast<uint64_t*>(out);
    hn::StoreU(hn::InterleaveLower(d, low, high), d, words);
    hn::StoreU(hn::InterleaveUpper(d, low, high), d, words + hn::Lanes(d));
  }
  hn::Vec<Words64> c0, c1, c2, c3;
};
inline constexpr int64_t kDrawsAtOnce = 2 * hn::MaxLanes(Words64());  // two states hide each other's latencies
#else
inline constexpr int64_t kDrawsAtOnce = 1;
#endif

class RandomSource {
 public:
  HWY_INLINE explicit RandomSource(const AdamWStep& step) : step_(step) {
    auto key0 = static_cast<uint32_t>(step.seed), key1 = static_cast<uint32_t>(step.seed >> 32);
    for (auto& k : keys_) {
      k[0] = key0;
      k[1] = key1;
      key0 += 0x9E3779B9U;
      key1 += 0xBB67AE85U;
    }
  }

  // Draws [draw, draw + n) and up to kDrawsAtOnce − 1 more.
  HWY_INLINE void fill(RandomPurpose purpose, uint64_t draw, int64_t n, uint8_t* out) const {
#if MEGASLIDE_ADAMW_SIMD
    const Words64 d;
    constexpr size_t kLanes = hn::MaxLanes(Words64());
    // Interleaving takes even lanes into one register and odd ones into another: the draws are dealt out so that these
    // come in order.
    alignas(64) uint64_t order[kLanes];
    for (size_t i = 0; i < kLanes; ++i) order[i] = i % 2 * (kLanes / 2) + i / 2;
    const auto lane = hn::Load(d, order);
    const auto series = static_cast<uint64_t>(step_.step);
    const uint64_t tag = static_cast<uint64_t>(purpose) << 24;
    for (int64_t i = 0; i < n; i += kDrawsAtOnce) {
      Draws x, y;
      x.start(series, tag, hn::Add(hn::Set(d, draw + static_cast<uint64_t>(i)), lane));
      y.start(series, tag, hn::Add(hn::Set(d, draw + static_cast<uint64_t>(i) + kLanes), lane));
      for (const auto& key : keys_) {
        x.round(key);
        y.round(key);
      }
      x.store(out + 16 * i);
      y.store(out + 16 * (i + static_cast<int64_t>(kLanes)));
    }
#else
    for (int64_t i = 0; i < n; ++i) {
      const auto words = Random(step_.seed, purpose)
                             .bits(static_cast<uint64_t>(step_.step), draw + static_cast<uint64_t>(i));
      std::memcpy(out + 16 * i, words.data(), 16);
    }
#endif
  }

 private:
  AdamWStep step_;
  uint64_t keys_[10][2];
};

// Those of up to kMomentBlock elements. A draw serves eight; the first and the last may serve others as well.
struct RandomBits {
  // For elements [first, first + n) of the model.
  HWY_INLINE const uint16_t* fill(const RandomSource& source, RandomPurpose purpose, uint64_t first, int64_t n) {
    const auto skipped = static_cast<int64_t>(first % 8);
    source.fill(purpose, first / 8, (skipped + n + 7) / 8, bytes);
    return reinterpret_cast<const uint16_t*>(bytes) + skipped;
  }
  alignas(64) uint8_t bytes[2 * kMomentBlock + 16 * kDrawsAtOnce];
};

}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();
#endif  // MEGASLIDE_KERNELS_ADAMW_RANDOM_BITS_INL_H_
