#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "kernels/adamw/adamw_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw/update.cpu.cc"
#include "kernels/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"
#include "kernels/adamw/codecs-inl.h"
#include "kernels/adamw/random_bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {
using adamw::Coefficients;

// Fetched ahead of use: reading up to nine streams a block at a time, with work between the blocks, is more than
// hardware prefetchers follow. A hint, so that it may run past the end of an array.
constexpr int64_t kAhead = 4 * kMomentBlock;
constexpr int64_t kGroup = 64;  // elements between fetches: one line of bytes, four of fp32
HWY_INLINE void FetchGroup(const void* array, int64_t i, int64_t width) {
  const auto at = reinterpret_cast<uintptr_t>(array) + static_cast<uintptr_t>((i + kAhead) * width);
  for (int64_t line = 0; line < width; ++line)
    hwy::Prefetch(reinterpret_cast<const std::byte*>(at + static_cast<uintptr_t>(line) * 64));
}

// The masters of a chunk of at most kMomentBlock elements from `begin` on; elements of it are counted from 0.
template <MasterCodec kCodec>
struct Masters {
  HWY_INLINE Masters(const AdamWState& s, const RandomSource& source, uint64_t first, int64_t begin, int64_t n)
      : p(s.p + (kCodec == MasterCodec::kFp32 ? begin : 0)), w(s.w ? s.w + begin : nullptr),
        r(s.r + (kCodec == MasterCodec::kSplit ? begin : 0)) {
    if constexpr (kCodec == MasterCodec::kBf16Sr)
      random = buffer.fill(source, RandomPurpose::kRounding, first + static_cast<uint64_t>(begin), n);
  }
  HWY_INLINE void fetch(int64_t i) const {
    if constexpr (kCodec == MasterCodec::kFp32) FetchGroup(p, i, 4);
    if constexpr (kCodec == MasterCodec::kSplit) FetchGroup(r, i, 2);
    if (w) FetchGroup(w, i, 2);
  }
  HWY_INLINE float load_one(int64_t i) const {
    if constexpr (kCodec == MasterCodec::kSplit) return join_master(w[i], r[i]);
    if constexpr (kCodec == MasterCodec::kFp32) return p[i];
    return to_float(w[i]);
  }
  HWY_INLINE void store_one(int64_t i, float x) const {
    if constexpr (kCodec == MasterCodec::kBf16Sr) {
      w[i] = adamw::round_stochastic(x, random[i]);
    } else {
      if constexpr (kCodec == MasterCodec::kSplit) r[i] = master_remainder(x);
      if constexpr (kCodec == MasterCodec::kFp32) p[i] = x;
      if (w) w[i] = master_weight(x);
    }
  }
#if MEGASLIDE_ADAMW_SIMD
  HWY_INLINE Floats load(int64_t i) const {
    const FloatTag d;
    if constexpr (kCodec == MasterCodec::kSplit) return Join(w + i, r + i);
    if constexpr (kCodec == MasterCodec::kFp32) return hn::LoadU(d, p + i);
    return LoadFloat(d, w + i);
  }
  HWY_INLINE void store(int64_t i, Floats x) const {
    if constexpr (kCodec == MasterCodec::kBf16Sr) {
      StoreStochastic(x, random + i, w + i);
    } else {
      if constexpr (kCodec == MasterCodec::kSplit) StoreRemainder(x, r + i);
      if constexpr (kCodec == MasterCodec::kFp32) hn::StoreU(x, FloatTag(), p + i);
      if (w) StoreWeight(x, w + i);
    }
  }
#endif

  float* p;
  bf16* w;
  int16_t* r;
  const uint16_t* random = nullptr;
  struct Nothing {};
  std::conditional_t<kCodec == MasterCodec::kBf16Sr, RandomBits<uint16_t>, Nothing> buffer;
};

// The moments of a chunk, fp32 or bf16. T: what is stored.
template <class T>
struct Moments {
  static constexpr bool kRandom = std::is_same_v<T, bf16>;
  HWY_INLINE Moments(const AdamWState& s, const RandomSource& source, uint64_t first, int64_t begin, int64_t n)
      : m(static_cast<T*>(s.m) + begin), v(static_cast<T*>(s.v) + begin) {
    if constexpr (kRandom) {
      m_random = m_buffer.fill(source, RandomPurpose::kMomentRounding, first + static_cast<uint64_t>(begin), n);
      v_random = v_buffer.fill(source, RandomPurpose::kVarianceRounding, first + static_cast<uint64_t>(begin), n);
    }
  }
  HWY_INLINE void fetch(int64_t i) const {
    FetchGroup(m, i, sizeof(T));
    FetchGroup(v, i, sizeof(T));
  }
  struct Tops {};
  HWY_INLINE float m_one(int64_t i) const { return to_float(m[i]); }
  HWY_INLINE float v_one(int64_t i) const { return to_float(v[i]); }
  HWY_INLINE void store_one(int64_t i, float new_m, float new_v, Tops&) const {
    if constexpr (kRandom) {
      m[i] = adamw::round_stochastic(new_m, m_random[i]);
      v[i] = adamw::round_stochastic(new_v, v_random[i]);
    } else {
      m[i] = new_m;
      v[i] = new_v;
    }
  }
#if MEGASLIDE_ADAMW_SIMD
  HWY_INLINE Floats load_m(int64_t i) const { return LoadFloat(FloatTag(), m + i); }
  HWY_INLINE Floats load_v(int64_t i) const { return LoadFloat(FloatTag(), v + i); }
  HWY_INLINE void store(int64_t i, Floats new_m, Floats new_v, Floats, Tops&) const {
    if constexpr (kRandom) {
      StoreStochastic(new_m, m_random + i, m + i);
      StoreStochastic(new_v, v_random + i, v + i);
    } else {
      hn::StoreU(new_m, FloatTag(), m + i);
      hn::StoreU(new_v, FloatTag(), v + i);
    }
  }
#endif
  HWY_INLINE void finish(int64_t, Tops&) const {}

  static constexpr bool kStoresNan = true;
  T *m, *v;
  const uint16_t *m_random = nullptr, *v_random = nullptr;
  struct Nothing {};
  std::conditional_t<kRandom, RandomBits<uint16_t>, Nothing> m_buffer, v_buffer;
};

// int8: the chunk is a block, whose new values wait in fp32 for their scales.
template <>
struct Moments<int8_t> {
  HWY_INLINE Moments(const AdamWState& s, const RandomSource& source, uint64_t first, int64_t begin, int64_t n)
      : m(static_cast<int8_t*>(s.m) + begin), v(static_cast<uint8_t*>(s.v) + begin),
        m_scale(s.m_scale + begin / kMomentBlock), v_scale(s.v_scale + begin / kMomentBlock), old_m_scale(*m_scale),
        old_v_scale(*v_scale) {
    m_random = m_buffer.fill(source, RandomPurpose::kMomentRounding, first + static_cast<uint64_t>(begin), n);
    v_buffer.fill_exchanged(m_buffer);
    v_random = v_buffer.bytes + (m_random - m_buffer.bytes);
  }
  HWY_INLINE void fetch(int64_t i) const {
    FetchGroup(m, i, 1);
    FetchGroup(v, i, 1);
  }
  // The largest magnitude_bits() so far of m and sqrt(v), apart so that they stay in registers. v is not negative.
  struct Tops {
    HWY_INLINE Tops() {
#if MEGASLIDE_ADAMW_SIMD
      ms = hn::Zero(Words());
      roots = hn::Zero(Words());
#endif
    }
#if MEGASLIDE_ADAMW_SIMD
    Bits ms, roots;
#endif
    uint32_t m = 0, root = 0;
  };
  HWY_INLINE float m_one(int64_t i) const { return adamw::m_value(m[i], old_m_scale); }
  HWY_INLINE float v_one(int64_t i) const { return adamw::v_value(v[i], old_v_scale); }
  HWY_INLINE void store_one(int64_t i, float m_new, float v_new, Tops& tops) {
    new_m[i] = m_new;
    new_root[i] = std::sqrt(v_new);
    tops.m = std::max(tops.m, adamw::magnitude_bits(m_new));
    tops.root = std::max(tops.root, adamw::magnitude_bits(new_root[i]));
  }
#if MEGASLIDE_ADAMW_SIMD
  HWY_INLINE Floats load_m(int64_t i) const { return LoadM(m + i, hn::Set(FloatTag(), old_m_scale)); }
  HWY_INLINE Floats load_v(int64_t i) const { return LoadV(v + i, hn::Set(FloatTag(), old_v_scale)); }
  HWY_INLINE void store(int64_t i, Floats m_new, Floats, Floats root, Tops& tops) {
    hn::StoreU(m_new, FloatTag(), new_m + i);
    hn::StoreU(root, FloatTag(), new_root + i);
    tops.ms = hn::Max(tops.ms, MagnitudeBits(m_new));
    tops.roots = hn::Max(tops.roots, hn::BitCast(Words(), root));  // a NaN's sign makes it larger still
  }
#endif
  HWY_INLINE void finish(int64_t n, Tops& tops) {
#if MEGASLIDE_ADAMW_SIMD
    tops.m = std::max(tops.m, Largest(tops.ms));
    tops.root = std::max(tops.root, Largest(tops.roots));
#endif
    *m_scale = adamw::scale_of(tops.m, adamw::kSmallestMScale);
    *v_scale = adamw::scale_of(tops.root, adamw::kSmallestVScale);
    const float m_factor = adamw::level_factor(*m_scale, adamw::kMLevels);
    const float v_factor = adamw::level_factor(*v_scale, adamw::kVLevels);
    if (m_factor == 0) std::fill_n(new_m, n, 0.0F);  // NaN has no level
    if (v_factor == 0) std::fill_n(new_root, n, 0.0F);
    int64_t i = 0;
#if MEGASLIDE_ADAMW_SIMD
    const FloatTag d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const auto m_factors = hn::Set(d, m_factor), v_factors = hn::Set(d, v_factor);
    for (; i + lanes <= n; i += lanes) {
      StoreLevels(MLevel(hn::LoadU(d, new_m + i), m_factors, m_random + i), reinterpret_cast<uint8_t*>(m) + i);
      StoreLevels(VLevel(hn::LoadU(d, new_root + i), v_factors, v_random + i), v + i);
    }
#endif
    for (; i < n; ++i) {
      m[i] = adamw::m_level(new_m[i], m_factor, m_random[i]);
      v[i] = adamw::v_level(new_root[i], v_factor, v_random[i]);
    }
  }

  static constexpr bool kStoresNan = false;  // scales tell of NaN
  int8_t* m;
  uint8_t* v;
  float *m_scale, *v_scale;
  float old_m_scale, old_v_scale;
  const uint8_t *m_random, *v_random;
  RandomBits<uint8_t> m_buffer, v_buffer;
  alignas(64) float new_m[kMomentBlock], new_root[kMomentBlock];
};

// A chunk of at most kMomentBlock elements from `begin` on.
template <MasterCodec kMaster, class Moment, class Gradient>
HWY_INLINE void UpdateChunk(const Coefficients& c, const AdamWState& s, const RandomSource& source, uint64_t first,
                            const Gradient* g, int64_t begin, int64_t n) {
  const Masters<kMaster> masters(s, source, first, begin, n);
  Moments<Moment> moments(s, source, first, begin, n);
  typename Moments<Moment>::Tops tops;
  g += begin;
#if MEGASLIDE_ADAMW_SIMD
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto clip = hn::Set(d, c.clip), b1 = hn::Set(d, c.b1), a1 = hn::Set(d, c.a1), b2 = hn::Set(d, c.b2),
             a2 = hn::Set(d, c.a2);
  const auto decay = hn::Set(d, c.decay), rate = hn::Set(d, c.rate), inverse_root = hn::Set(d, c.inverse_root),
             eps = hn::Set(d, c.eps);
#endif
  for (int64_t group = 0; group < n; group += kGroup) {
    masters.fetch(group);
    moments.fetch(group);
    FetchGroup(g, group, sizeof(Gradient));
    const int64_t end = std::min(n, group + kGroup);
    int64_t i = group;
#if MEGASLIDE_ADAMW_SIMD
    for (; i + lanes <= end; i += lanes) {
      const auto old = masters.load(i);
      const auto gi = hn::Mul(clip, LoadFloat(d, g + i));
      auto m = hn::MulAdd(b1, moments.load_m(i), hn::Mul(a1, gi));
      auto v = hn::MulAdd(b2, moments.load_v(i), hn::Mul(hn::Mul(a2, gi), gi));
      if constexpr (Moments<Moment>::kStoresNan) {
        m = Canonical(m);
        v = Canonical(v);
      }
      const auto root = hn::Sqrt(v);
      const auto kept = hn::NegMulAdd(decay, old, old);
      const auto quotient = hn::Div(m, hn::MulAdd(root, inverse_root, eps));
      moments.store(i, m, v, root, tops);
      masters.store(i, Canonical(hn::NegMulAdd(rate, quotient, kept)));
    }
#endif
    for (; i < end; ++i) {
      float m = moments.m_one(i), v = moments.v_one(i);
      const float p = adamw::update(c, masters.load_one(i), m, v, to_float(g[i]));
      moments.store_one(i, m, v, tops);
      masters.store_one(i, p);
    }
  }
  moments.finish(n, tops);
}

template <MasterCodec kMaster, class Moment>
void update_range(const Coefficients& c, const AdamWState& s, const AdamWStep& step, const void* g, DType dtype,
                  int64_t begin, int64_t end) {
  const RandomSource source(step);
  for (int64_t i = begin; i < end; i += kMomentBlock) {
    const int64_t n = std::min(kMomentBlock, end - i);
    if (dtype == DType::kBF16)
      UpdateChunk<kMaster, Moment>(c, s, source, step.first, static_cast<const bf16*>(g), i, n);
    else
      UpdateChunk<kMaster, Moment>(c, s, source, step.first, static_cast<const float*>(g), i, n);
  }
}

template <MasterCodec kMaster>
void update_moments(const Coefficients& c, const AdamWState& s, const AdamWStep& step, const void* g, DType dtype,
                    int64_t begin, int64_t end) {
  switch (s.moments) {
    case MomentCodec::kFp32:
      return update_range<kMaster, float>(c, s, step, g, dtype, begin, end);
    case MomentCodec::kBf16:
      return update_range<kMaster, bf16>(c, s, step, g, dtype, begin, end);
    case MomentCodec::kInt8:
      return update_range<kMaster, int8_t>(c, s, step, g, dtype, begin, end);
  }
}

void update_piece(const Coefficients& c, const AdamWState& s, const AdamWStep& step, const void* g, DType dtype,
                  int64_t begin, int64_t end) {
  switch (s.masters) {
    case MasterCodec::kSplit:
      return update_moments<MasterCodec::kSplit>(c, s, step, g, dtype, begin, end);
    case MasterCodec::kFp32:
      return update_moments<MasterCodec::kFp32>(c, s, step, g, dtype, begin, end);
    case MasterCodec::kBf16Sr:
      return update_moments<MasterCodec::kBf16Sr>(c, s, step, g, dtype, begin, end);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(update_piece);

void adamw_update(ThreadPool& pool, const AdamWState& state, const void* gradient, DType gradient_dtype, int64_t n,
                  const AdamWStep& step) {
  MS_CHECK(gradient_dtype == DType::kBF16 || gradient_dtype == DType::kF32, "{}", dtype_name(gradient_dtype));
  MS_CHECK(step.step >= 1, "step {}", step.step);
  constexpr int64_t kPiece = 65536;
  static_assert(kPiece % kMomentBlock == 0);
  const adamw::Coefficients c(step);
  const auto piece = HWY_DYNAMIC_DISPATCH(update_piece);
  pool.parallel_for(n, kPiece, [&](int64_t begin, int64_t end) {
    piece(c, state, step, gradient, gradient_dtype, begin, end);
  });
}

}  // namespace megaslide
#endif
