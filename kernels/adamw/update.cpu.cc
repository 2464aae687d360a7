#include <algorithm>
#include <cmath>
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
constexpr int64_t kAhead = 2 * kMomentBlock;
constexpr int64_t kGroup = 64;  // elements between fetches: one line of bytes, four of fp32
HWY_INLINE void FetchGroup(const void* array, int64_t i, int64_t width) {
  const auto at = reinterpret_cast<uintptr_t>(array) + static_cast<uintptr_t>((i + kAhead) * width);
  for (int64_t line = 0; line < width; ++line)
    hwy::Prefetch(reinterpret_cast<const std::byte*>(at + static_cast<uintptr_t>(line) * 64));  // NOLINT(performance-no-int-to-ptr): beyond the end
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
  std::conditional_t<kCodec == MasterCodec::kBf16Sr, RandomBits, Nothing> buffer;
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
  HWY_INLINE float m_one(int64_t i) const { return to_float(m[i]); }
  HWY_INLINE float v_one(int64_t i) const { return to_float(v[i]); }
  HWY_INLINE void store_one(int64_t i, float new_m, float new_v) const {
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
  HWY_INLINE void store(int64_t i, Floats new_m, Floats new_v) const {
    if constexpr (kRandom) {
      StoreStochastic(new_m, m_random + i, m + i);
      StoreStochastic(new_v, v_random + i, v + i);
    } else {
      hn::StoreU(new_m, FloatTag(), m + i);
      hn::StoreU(new_v, FloatTag(), v + i);
    }
  }
#endif
  T *m, *v;
  const uint16_t *m_random = nullptr, *v_random = nullptr;
  struct Nothing {};
  std::conditional_t<kRandom, RandomBits, Nothing> m_buffer, v_buffer;
};

// The coefficients in registers.
#if MEGASLIDE_ADAMW_SIMD
struct Spread {
  HWY_INLINE explicit Spread(const Coefficients& c) {
    const FloatTag d;
    clip = hn::Set(d, c.clip), b1 = hn::Set(d, c.b1), a1 = hn::Set(d, c.a1), b2 = hn::Set(d, c.b2);
    a2 = hn::Set(d, c.a2), decay = hn::Set(d, c.decay), rate = hn::Set(d, c.rate);
    inverse_root = hn::Set(d, c.inverse_root), eps = hn::Set(d, c.eps);
  }
  HWY_INLINE Floats m(Floats old, Floats g) const { return hn::MulAdd(b1, old, hn::Mul(a1, g)); }
  HWY_INLINE Floats v(Floats old, Floats g) const { return hn::MulAdd(b2, old, hn::Mul(hn::Mul(a2, g), g)); }
  HWY_INLINE Floats p(Floats old, Floats m, Floats root) const {
    const auto kept = hn::NegMulAdd(decay, old, old);
    const auto quotient = hn::Div(m, hn::MulAdd(root, inverse_root, eps));
    return Canonical(hn::NegMulAdd(rate, quotient, kept));
  }
  Floats clip, b1, a1, b2, a2, decay, rate, inverse_root, eps;
};
#endif

// A chunk of at most kMomentBlock elements from `begin` on, moments in fp32 or bf16.
template <MasterCodec kMaster, class Moment, class Gradient>
HWY_INLINE void UpdateChunk(const Coefficients& c, const AdamWState& s, const RandomSource& source, uint64_t first,
                            const Gradient* g, int64_t begin, int64_t n) {
  const Masters<kMaster> masters(s, source, first, begin, n);
  const Moments<Moment> moments(s, source, first, begin, n);
  g += begin;
#if MEGASLIDE_ADAMW_SIMD
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Spread spread(c);
#endif
  for (int64_t group = 0; group < n; group += kGroup) {
    masters.fetch(group);
    moments.fetch(group);
    FetchGroup(g, group, sizeof(Gradient));
    const int64_t end = std::min(n, group + kGroup);
    int64_t i = group;
#if MEGASLIDE_ADAMW_SIMD
    for (; i + lanes <= end; i += lanes) {
      const auto gi = hn::Mul(spread.clip, LoadFloat(d, g + i));
      const auto m = Canonical(spread.m(moments.load_m(i), gi));
      const auto v = Canonical(spread.v(moments.load_v(i), gi));
      moments.store(i, m, v);
      masters.store(i, spread.p(masters.load(i), m, hn::Sqrt(v)));
    }
#endif
    for (; i < end; ++i) {
      float m = moments.m_one(i), v = moments.v_one(i);
      const float p = adamw::update(c, masters.load_one(i), m, v, to_float(g[i]));
      moments.store_one(i, m, v);
      masters.store_one(i, p);
    }
  }
}

// A block of int8 moments. The first pass makes m and sqrt(v) in fp32 and finds their largest values. The second, once
// these have given the scales, encodes them and updates the masters: its divisions run beside the levels' arithmetic.
// NaN needs no canonical form in between, since the scales and p tell of it.
template <MasterCodec kMaster, class Gradient>
HWY_INLINE void UpdateBlock(const Coefficients& c, const AdamWState& s, const RandomSource& source, uint64_t first,
                            const Gradient* g, int64_t begin, int64_t n) {
  const Masters<kMaster> masters(s, source, first, begin, n);
  auto* m = static_cast<int8_t*>(s.m) + begin;
  auto* v = static_cast<uint8_t*>(s.v) + begin;
  g += begin;
  float &m_scale = s.m_scale[begin / kMomentBlock], &v_scale = s.v_scale[begin / kMomentBlock];
  alignas(64) float new_m[kMomentBlock], root[kMomentBlock];
  uint32_t m_top = 0, root_top = 0;
#if MEGASLIDE_ADAMW_SIMD
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Spread spread(c);
  const auto m_scales = hn::Set(d, m_scale), v_scales = hn::Set(d, v_scale);
  auto m_tops = hn::Zero(Words()), root_tops = m_tops;
#endif
  for (int64_t group = 0; group < n; group += kGroup) {
    FetchGroup(m, group, 1);
    FetchGroup(v, group, 1);
    FetchGroup(g, group, sizeof(Gradient));
    const int64_t end = std::min(n, group + kGroup);
    int64_t i = group;
#if MEGASLIDE_ADAMW_SIMD
    for (; i + lanes <= end; i += lanes) {
      const auto gi = hn::Mul(spread.clip, LoadFloat(d, g + i));
      const auto mi = spread.m(LoadM(m + i, m_scales), gi);
      const auto ri = hn::Sqrt(spread.v(LoadV(v + i, v_scales), gi));
      m_tops = hn::Max(m_tops, MagnitudeBits(mi));
      root_tops = hn::Max(root_tops, hn::BitCast(Words(), ri));  // not negative; a NaN's sign makes it larger still
      hn::Store(mi, d, new_m + i);
      hn::Store(ri, d, root + i);
    }
#endif
    for (; i < end; ++i) {
      float mi = m_value(m[i], m_scale), vi = v_value(v[i], v_scale);
      adamw::update_moments(c, mi, vi, to_float(g[i]));
      new_m[i] = mi;
      root[i] = std::sqrt(vi);
      m_top = std::max(m_top, adamw::magnitude_bits(mi));
      root_top = std::max(root_top, adamw::magnitude_bits(root[i]));
    }
  }
#if MEGASLIDE_ADAMW_SIMD
  m_top = std::max(m_top, Largest(m_tops));
  root_top = std::max(root_top, Largest(root_tops));
#endif
  m_scale = adamw::scale_of(m_top, adamw::kSmallestMScale);
  v_scale = adamw::scale_of(root_top, adamw::kSmallestVScale);
  const float m_factor = adamw::level_factor(m_scale, adamw::kMTop);
  const float v_factor = adamw::level_factor(v_scale, adamw::kVTop);

  RandomBits bits;
  const uint16_t* random =
      bits.fill(source, RandomPurpose::kMomentRounding, first + static_cast<uint64_t>(begin), n);
#if MEGASLIDE_ADAMW_SIMD
  const auto m_factors = hn::Set(d, m_factor), v_factors = hn::Set(d, v_factor);
#endif
  for (int64_t group = 0; group < n; group += kGroup) {
    masters.fetch(group);
    const int64_t end = std::min(n, group + kGroup);
    int64_t i = group;
#if MEGASLIDE_ADAMW_SIMD
    for (; i + lanes <= end; i += lanes) {
      const auto mi = hn::Load(d, new_m + i), ri = hn::Load(d, root + i);
      masters.store(i, spread.p(masters.load(i), mi, ri));
      const auto r = hn::PromoteTo(Words(), hn::LoadU(Halves(), random + i));
      StoreLevels(MLevel(mi, m_factors, r), reinterpret_cast<uint8_t*>(m) + i);
      StoreLevels(VLevel(ri, v_factors, r), v + i);
    }
#endif
    for (; i < end; ++i) {
      masters.store_one(i, adamw::update_master(c, masters.load_one(i), new_m[i], root[i]));
      m[i] = adamw::m_level(new_m[i], m_factor, random[i]);
      v[i] = adamw::v_level(root[i], v_factor, random[i]);
    }
  }
  if (m_factor == 0) std::fill_n(m, n, int8_t{0});  // NaN has no level
  if (v_factor == 0) std::fill_n(v, n, uint8_t{0});
}

template <MasterCodec kMaster, class Moment, class Gradient>
void update_range(const Coefficients& c, const AdamWState& s, const AdamWStep& step, const Gradient* g, int64_t begin,
                  int64_t end) {
  const RandomSource source(step);
  for (int64_t i = begin; i < end; i += kMomentBlock) {
    const int64_t n = std::min(kMomentBlock, end - i);
    if constexpr (std::is_same_v<Moment, int8_t>)
      UpdateBlock<kMaster>(c, s, source, step.first, g, i, n);
    else
      UpdateChunk<kMaster, Moment>(c, s, source, step.first, g, i, n);
  }
}

template <MasterCodec kMaster, class Moment>
void update_gradient(const Coefficients& c, const AdamWState& s, const AdamWStep& step, const void* g, DType dtype,
                     int64_t begin, int64_t end) {
  if (dtype == DType::kBF16)
    update_range<kMaster, Moment>(c, s, step, static_cast<const bf16*>(g), begin, end);
  else
    update_range<kMaster, Moment>(c, s, step, static_cast<const float*>(g), begin, end);
}

template <MasterCodec kMaster>
void update_moments(const Coefficients& c, const AdamWState& s, const AdamWStep& step, const void* g, DType dtype,
                    int64_t begin, int64_t end) {
  switch (s.moments) {
    case MomentCodec::kFp32:
      return update_gradient<kMaster, float>(c, s, step, g, dtype, begin, end);
    case MomentCodec::kBf16:
      return update_gradient<kMaster, bf16>(c, s, step, g, dtype, begin, end);
    case MomentCodec::kInt8:
      return update_gradient<kMaster, int8_t>(c, s, step, g, dtype, begin, end);
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
