// One pass over the state: a thread eight consecutive elements, which share a draw of random bits; a warp a block of 8-bit
// moments. Formulas and bits are adamw_math.h's and codec_math.h's.
#include <algorithm>
#include <type_traits>

#include "kernels/adamw/adamw_math.h"
#include "kernels/elements.cuh"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

constexpr int kEach = 8, kThreads = 256;
static_assert(kMomentBlock == 32 * kEach);

struct Update {
  AdamWState state;
  const void* gradient;
  int64_t n;
  AdamWStep step;
  adamw::Coefficients coefficients;
  const float* factor;
  bool aligned;  // all arrays begin at multiples of 16 bytes
};

// A thread's elements: [at, at + count), count ≤ 8.
struct Place {
  int64_t at;
  int count;
  bool vector;  // all eight, to be moved at once
};

// ---- eight elements from and to memory ----

template <class T>
__device__ __forceinline__ void load(float (&x)[kEach], const T* p, const Place& e) {
  if (e.vector) {
    load_floats<kEach>(x, p + e.at);
    return;
  }
  MS_UNROLL
  for (int i = 0; i < kEach; ++i) x[i] = i < e.count ? prim::widen(p[e.at + i]) : 0;
}
__device__ __forceinline__ void store(float* p, const float (&x)[kEach], const Place& e) {
  const Quad low{{x[0], x[1], x[2], x[3]}}, high{{x[4], x[5], x[6], x[7]}};
  store_quad(p + e.at, low, e.count, e.vector);
  store_quad(p + e.at + 4, high, e.count - 4, e.vector);
}

// Eight integers of 8 or 16 bits.
template <class T>
struct Eight {
  static constexpr int kBits = 8 * static_cast<int>(sizeof(T)), kPerWord = 32 / kBits, kWords = kEach / kPerWord;
  uint32_t word[kWords] = {};

  __device__ T at(int i) const { return static_cast<T>(word[i / kPerWord] >> (i % kPerWord * kBits)); }
  __device__ void set(int i, T x) {
    word[i / kPerWord] |= static_cast<uint32_t>(static_cast<std::make_unsigned_t<T>>(x)) << (i % kPerWord * kBits);
  }
  // E: what memory holds, T or bf16.
  template <class E>
  __device__ void load(const E* p, const Place& e) {
    if (e.vector && sizeof(T) == 2) {
      const uint4 v = prim::load_16(p + e.at);
      word[0] = v.x, word[1] = v.y, word[kWords - 2] = v.z, word[kWords - 1] = v.w;
    } else if (e.vector) {
      const uint2 v = prim::load_8(p + e.at);
      word[0] = v.x, word[1] = v.y;
    } else {
      MS_UNROLL
      for (int i = 0; i < kEach; ++i)
        if (i < e.count) set(i, bits(p[e.at + i]));
    }
  }
  template <class E>
  __device__ void store(E* p, const Place& e) const {
    if (e.vector && sizeof(T) == 2) {
      prim::store_16(p + e.at, {word[0], word[1], word[kWords - 2], word[kWords - 1]});
    } else if (e.vector) {
      prim::store_8(p + e.at, {word[0], word[1]});
    } else {
      MS_UNROLL
      for (int i = 0; i < kEach; ++i)
        if (i < e.count) p[e.at + i] = element(at(i), p);
    }
  }

 private:
  __device__ static T bits(bf16 x) { return static_cast<T>(x.bits); }
  __device__ static T bits(T x) { return x; }
  __device__ static bf16 element(T x, bf16*) { return {static_cast<uint16_t>(x)}; }
  __device__ static T element(T x, T*) { return x; }
};

// ---- codecs ----

// The random bits of a thread's elements.
struct RandomBits {
  Eight<uint16_t> bits;
  __device__ RandomBits(const Update& u, RandomPurpose purpose, const Place& e) {
    const uint64_t first = u.step.first + static_cast<uint64_t>(e.at);
    if (first % kEach == 0) {
      const auto words = Random(u.step.seed, purpose).bits(static_cast<uint64_t>(u.step.step), first / kEach);
      MS_UNROLL
      for (size_t i = 0; i < 4; ++i) bits.word[i] = words[i];
      return;
    }
    MS_NO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const auto words = Random(u.step.seed, purpose).bits(static_cast<uint64_t>(u.step.step), first / kEach + static_cast<uint64_t>(half));
      MS_UNROLL
      for (int i = 0; i < kEach; ++i) {
        // Element i is number `at` of this draw.
        const int at = static_cast<int>(first % kEach) + i - half * kEach;
        const uint32_t word = at / 2 == 0 ? words[0] : at / 2 == 1 ? words[1] : at / 2 == 2 ? words[2] : words[3];
        if (at >= 0 && at < kEach) bits.set(i, static_cast<uint16_t>(word >> (16 * (at % 2))));
      }
    }
  }
};

template <MasterCodec kCodec>
struct Masters {
  Eight<uint16_t> w;
  Eight<int16_t> r;

  __device__ void load(float (&p)[kEach], const AdamWState& s, const Place& e) {
    if constexpr (kCodec == MasterCodec::kFp32) {
      megaslide::load(p, s.p, e);
    } else {
      w.load(s.w, e);
      if constexpr (kCodec == MasterCodec::kSplit) r.load(s.r, e);
      MS_UNROLL
      for (int i = 0; i < kEach; ++i)
        p[i] = kCodec == MasterCodec::kSplit ? join_master({w.at(i)}, r.at(i)) : to_float(bf16{w.at(i)});
    }
  }
  __device__ void store(const float (&p)[kEach], const Update& u, const Place& e) {
    const AdamWState& s = u.state;
    Eight<uint16_t> weight;
    if constexpr (kCodec == MasterCodec::kBf16Sr) {
      const RandomBits random(u, RandomPurpose::kRounding, e);
      MS_UNROLL
      for (int i = 0; i < kEach; ++i) weight.set(i, adamw::round_stochastic(p[i], random.bits.at(i)).bits);
    } else {
      MS_UNROLL
      for (int i = 0; i < kEach; ++i) weight.set(i, master_weight(p[i]).bits);
    }
    if constexpr (kCodec == MasterCodec::kSplit) {
      Eight<int16_t> remainder;
      MS_UNROLL
      for (int i = 0; i < kEach; ++i) remainder.set(i, master_remainder(p[i]));
      remainder.store(s.r, e);
    }
    if constexpr (kCodec == MasterCodec::kFp32) megaslide::store(s.p, p, e);
    if (kCodec != MasterCodec::kFp32 || s.w != nullptr) weight.store(s.w, e);
  }
};

__device__ __forceinline__ uint32_t warp_largest(uint32_t x) {
  for (int offset = 16; offset > 0; offset /= 2) x = std::max(x, __shfl_xor_sync(prim::kFullMask, x, offset));
  return x;
}

template <MomentCodec kCodec>
struct Moments {
  using Stored = std::conditional_t<kCodec == MomentCodec::kBf16, bf16, float>;

  __device__ static void load(float (&m)[kEach], float (&v)[kEach], const AdamWState& s, const Place& e) {
    if constexpr (kCodec == MomentCodec::kInt8) {
      Eight<int8_t> first;
      Eight<uint8_t> second;
      first.load(static_cast<const int8_t*>(s.m), e);
      second.load(static_cast<const uint8_t*>(s.v), e);
      const int64_t block = e.at / kMomentBlock;
      const float m_scale = e.count > 0 ? s.m_scale[block] : 0, v_scale = e.count > 0 ? s.v_scale[block] : 0;
      MS_UNROLL
      for (int i = 0; i < kEach; ++i) {
        m[i] = adamw::canonical(m_value(first.at(i), m_scale));
        v[i] = adamw::canonical(v_value(second.at(i), v_scale));
      }
    } else {
      megaslide::load(m, static_cast<const Stored*>(s.m), e);
      megaslide::load(v, static_cast<const Stored*>(s.v), e);
    }
  }

  // root = sqrt(v). Called by whole warps.
  __device__ static void store(const float (&m)[kEach], const float (&v)[kEach], const float (&root)[kEach], const Update& u,
                               const Place& e) {
    const AdamWState& s = u.state;
    if constexpr (kCodec == MomentCodec::kFp32) {
      megaslide::store(static_cast<float*>(s.m), m, e);
      megaslide::store(static_cast<float*>(s.v), v, e);
    } else if constexpr (kCodec == MomentCodec::kBf16) {
      store_rounded(static_cast<bf16*>(s.m), m, RandomBits(u, RandomPurpose::kMomentRounding, e), e);
      store_rounded(static_cast<bf16*>(s.v), v, RandomBits(u, RandomPurpose::kVarianceRounding, e), e);
    } else {
      store_levels(m, root, u, e);
    }
  }

 private:
  __device__ static void store_rounded(bf16* to, const float (&x)[kEach], const RandomBits& random, const Place& e) {
    Eight<uint16_t> out;
    MS_UNROLL
    for (int i = 0; i < kEach; ++i) out.set(i, adamw::round_stochastic(x[i], random.bits.at(i)).bits);
    out.store(to, e);
  }
  __device__ static void store_levels(const float (&m)[kEach], const float (&root)[kEach], const Update& u, const Place& e) {
    uint32_t m_top = 0, root_top = 0;
    MS_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (i < e.count) m_top = std::max(m_top, adamw::magnitude_bits(m[i]));
      if (i < e.count) root_top = std::max(root_top, adamw::magnitude_bits(root[i]));
    }
    const float m_scale = adamw::scale_of(warp_largest(m_top), adamw::kSmallestMScale);
    const float v_scale = adamw::scale_of(warp_largest(root_top), adamw::kSmallestVScale);
    const float m_factor = adamw::level_factor(m_scale, adamw::kMTop), v_factor = adamw::level_factor(v_scale, adamw::kVTop);
    const RandomBits random(u, RandomPurpose::kMomentRounding, e);
    Eight<int8_t> first;
    Eight<uint8_t> second;
    MS_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (m_factor > 0) first.set(i, adamw::m_level(m[i], m_factor, random.bits.at(i)));
      if (v_factor > 0) second.set(i, adamw::v_level(root[i], v_factor, random.bits.at(i)));
    }
    first.store(static_cast<int8_t*>(u.state.m), e);
    second.store(static_cast<uint8_t*>(u.state.v), e);
    if (e.at % kMomentBlock == 0 && e.count > 0) {
      u.state.m_scale[e.at / kMomentBlock] = m_scale;
      u.state.v_scale[e.at / kMomentBlock] = v_scale;
    }
  }
};

template <MasterCodec kMasters, MomentCodec kMoments, class G>
__global__ void __launch_bounds__(kThreads) adamw_kernel(Update u) {
  const float factor = *u.factor;
  if (factor != factor) return;
  Place e;
  e.at = kEach * (int64_t{blockIdx.x} * kThreads + threadIdx.x);
  e.count = static_cast<int>(u.n - e.at < 0 ? 0 : u.n - e.at < kEach ? u.n - e.at : kEach);
  e.vector = u.aligned && e.count == kEach;
  adamw::Coefficients c = u.coefficients;
  c.clip = factor;

  float p[kEach], m[kEach], v[kEach], g[kEach], root[kEach];
  load(g, static_cast<const G*>(u.gradient), e);
  Masters<kMasters> masters;
  masters.load(p, u.state, e);
  Moments<kMoments>::load(m, v, u.state, e);
  MS_UNROLL
  for (int i = 0; i < kEach; ++i) {
    adamw::update_moments(c, m[i], v[i], g[i]);
    root[i] = std::sqrt(v[i]);
    p[i] = adamw::update_master(c, p[i], m[i], root[i]);
  }
  masters.store(p, u, e);
  Moments<kMoments>::store(m, v, root, u, e);
}

template <MasterCodec kMasters, MomentCodec kMoments>
void run(Stream& stream, const Update& u, DType gradient_dtype) {
  by_type(gradient_dtype, [&]<class G>(G*) {
    prim::launch(adamw_kernel<kMasters, kMoments, G>, element_grid((u.n + kEach - 1) / kEach), dim3(kThreads), 0, stream, u);
  });
}
template <MasterCodec kMasters>
void by_moments(Stream& stream, const Update& u, DType gradient_dtype) {
  switch (u.state.moments) {
    case MomentCodec::kFp32: return run<kMasters, MomentCodec::kFp32>(stream, u, gradient_dtype);
    case MomentCodec::kBf16: return run<kMasters, MomentCodec::kBf16>(stream, u, gradient_dtype);
    case MomentCodec::kInt8: return run<kMasters, MomentCodec::kInt8>(stream, u, gradient_dtype);
  }
}

// Arrays that the codecs do not have are left at any address.
bool aligned(const AdamWState& s, const void* gradient) {
  const auto ok = [](const void* p, bool used) { return !used || reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return ok(s.p, s.masters == MasterCodec::kFp32) && ok(s.w, s.w != nullptr) && ok(s.r, s.masters == MasterCodec::kSplit) &&
         ok(s.m, true) && ok(s.v, true) && ok(gradient, true);
}

}  // namespace

namespace cuda {

void adamw_by_factor(Stream& stream, AdamWState state, const void* gradient, DType gradient_dtype, int64_t n, AdamWStep step,
                     const float* factor) {
  MS_CHECK(gradient_dtype == DType::kBF16 || gradient_dtype == DType::kF32, "{}", dtype_name(gradient_dtype));
  if (n == 0) return;
  const Update u{state, gradient, n, step, adamw::Coefficients(step), factor, aligned(state, gradient)};
  switch (state.masters) {
    case MasterCodec::kSplit: return by_moments<MasterCodec::kSplit>(stream, u, gradient_dtype);
    case MasterCodec::kFp32: return by_moments<MasterCodec::kFp32>(stream, u, gradient_dtype);
    case MasterCodec::kBf16Sr: return by_moments<MasterCodec::kBf16Sr>(stream, u, gradient_dtype);
  }
}

}  // namespace cuda
}  // namespace megaslide
