// States of every codec for the tests of AdamW.
#pragma once
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "base/philox.h"
#include "kernels/adamw/adamw.h"

namespace megaslide {

// Restricts Highway's choice to one instruction set while it lives.
class UseTarget {
 public:
  explicit UseTarget(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~UseTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

// The instruction sets that the kernels are compiled for and this machine has.
inline std::vector<int64_t> targets() {
  std::vector<int64_t> out;
  for (const int64_t t :
       {static_cast<int64_t>(HWY_STATIC_TARGET), static_cast<int64_t>(HWY_AVX2), static_cast<int64_t>(HWY_AVX3)})
    if (hwy::SupportedTargets() & t) out.push_back(t);
  return out;
}

// Values of every kind: normal numbers of many sizes, subnormals, zeros, infinities and NaNs with payloads.
inline float hostile(const Random& random, uint64_t series, uint64_t i) {
  const auto bits = random.bits(series, i);
  switch (bits[1] % 8) {
    case 0:
      return std::bit_cast<float>(bits[0]);  // any pattern
    case 1:
      return std::bit_cast<float>(bits[0] & 0x807fffffU);  // subnormal
    case 2:
      return std::bit_cast<float>((bits[0] & 0x80000000U) | 0x7f800000U | (bits[2] % 4 == 0 ? bits[0] & 0x7fffffU : 0));
    case 3:
      return std::bit_cast<float>((bits[0] & 0xffff0000U) | 0x8000U);  // exactly between two bf16
    default:
      return static_cast<float>(random.normal(series, i)) * 0.02F;
  }
}
// Every fourth block of moments or so is all of that; others have subnormals and zeros at most, since one value that is
// not finite takes an int8 block with it.
inline float rough(const Random& random, uint64_t series, uint64_t i) {
  if (i / kMomentBlock % 4 == 1) return hostile(random, series, i);
  const auto bits = random.bits(series, i);
  if (i / kMomentBlock % 8 == 3) return std::bit_cast<float>(bits[0] & 0x807fffffU);
  if (bits[1] % 16 == 0) return 0;
  return static_cast<float>(random.normal(series, i)) * std::exp2(-static_cast<float>(bits[2] % 30));
}

template <class T>
::testing::AssertionResult same(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0)
      return ::testing::AssertionFailure() << "element " << i << " of " << a.size();
  return ::testing::AssertionSuccess();
}

struct Codecs {
  MasterCodec masters;
  MomentCodec moments;
};
inline std::string name(const Codecs& c) {
  const char* masters[] = {"split", "fp32", "bf16-sr"};
  const char* moments[] = {"fp32", "bf16", "int8"};
  return std::string(masters[static_cast<int>(c.masters)]) + "/" + moments[static_cast<int>(c.moments)];
}
inline std::vector<Codecs> all_codecs() {
  std::vector<Codecs> out;
  for (const auto masters : {MasterCodec::kSplit, MasterCodec::kFp32, MasterCodec::kBf16Sr})
    for (const auto moments : {MomentCodec::kFp32, MomentCodec::kBf16, MomentCodec::kInt8})
      out.push_back({masters, moments});
  return out;
}

// What one tensor of n parameters keeps.
struct State {
  State(Codecs c, int64_t size)
      : codecs(c),
        n(size),
        p(static_cast<size_t>(c.masters == MasterCodec::kFp32 ? n : 0)),
        w(static_cast<size_t>(n)),
        r(static_cast<size_t>(c.masters == MasterCodec::kSplit ? n : 0)),
        m(static_cast<size_t>(moment_bytes(c.moments, n))),
        v(m.size()),
        m_scale(static_cast<size_t>(moment_scale_bytes(c.moments, n)) / sizeof(float)),
        v_scale(m_scale.size()) {}
  // From fp32 values.
  State(Codecs c, const std::vector<float>& masters, const std::vector<float>& first, const std::vector<float>& second)
      : State(c, static_cast<int64_t>(masters.size())) {
    ThreadPool pool(1);
    if (!r.empty())
      split_master(pool, w.data(), r.data(), masters.data(), n);
    else
      round_master(pool, w.data(), masters.data(), n);
    if (!p.empty()) p = masters;
    encode_m(pool, c.moments, m.data(), m_scale.data(), first.data(), n);
    encode_v(pool, c.moments, v.data(), v_scale.data(), second.data(), n);
  }
  // Elements from `begin` on; with int8, of a block's first.
  AdamWState view(int64_t begin = 0) {
    const int64_t width = moment_bytes(codecs.moments, 1);
    return {.masters = codecs.masters,
            .moments = codecs.moments,
            .p = p.empty() ? nullptr : p.data() + begin,
            .w = w.data() + begin,
            .r = r.empty() ? nullptr : r.data() + begin,
            .m = m.data() + begin * width,
            .v = v.data() + begin * width,
            .m_scale = m_scale.empty() ? nullptr : m_scale.data() + begin / kMomentBlock,
            .v_scale = v_scale.empty() ? nullptr : v_scale.data() + begin / kMomentBlock};
  }
  std::vector<float> master() const {
    if (!p.empty()) return p;
    std::vector<float> out(w.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = r.empty() ? to_float(w[i]) : join_master(w[i], r[i]);
    return out;
  }
  std::vector<float> first() const {
    std::vector<float> out(w.size());
    plain::decode_m(codecs.moments, out.data(), m.data(), m_scale.data(), n);
    return out;
  }
  std::vector<float> second() const {
    std::vector<float> out(w.size());
    plain::decode_v(codecs.moments, out.data(), v.data(), v_scale.data(), n);
    return out;
  }

  Codecs codecs;
  int64_t n;
  std::vector<float> p;
  std::vector<bf16> w;
  std::vector<int16_t> r;
  std::vector<std::byte> m, v;
  std::vector<float> m_scale, v_scale;
};

inline ::testing::AssertionResult same(const State& a, const State& b) {
  const std::pair<const char*, ::testing::AssertionResult> parts[] = {
      {"p", same(a.p, b.p)}, {"w", same(a.w, b.w)},
      {"r", same(a.r, b.r)}, {"m", same(a.m, b.m)},
      {"v", same(a.v, b.v)}, {"scale of m", same(a.m_scale, b.m_scale)},
      {"scale of v", same(a.v_scale, b.v_scale)}};
  for (const auto& [part, result] : parts)
    if (!result) return ::testing::AssertionFailure() << part << ": " << result.message();
  return ::testing::AssertionSuccess();
}

inline State initial(const Random& random, Codecs codecs, int64_t n, bool with_hostile) {
  std::vector<float> p(static_cast<size_t>(n)), m(p.size()), v(p.size());
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = with_hostile ? hostile(random, 1, i) : static_cast<float>(random.normal(1, i));
    m[i] = with_hostile ? rough(random, 2, i) : static_cast<float>(random.normal(2, i)) * 1e-3F;
    v[i] = with_hostile ? std::abs(rough(random, 3, i)) : static_cast<float>(random.uniform(3, i)) * 1e-5F;
  }
  return {codecs, p, m, v};
}

struct Gradient {
  Gradient(const Random& random, int64_t n, uint64_t series, bool with_hostile)
      : f32(static_cast<size_t>(n)), b16(f32.size()) {
    for (size_t i = 0; i < f32.size(); ++i) {
      // Where gradients are hostile, moments are not.
      f32[i] = with_hostile ? rough(random, series, i + kMomentBlock)
                            : static_cast<float>(random.normal(series, i)) * 1e-2F;
      b16[i] = to_bf16(f32[i]);
    }
  }
  const void* data(DType t) const { return t == DType::kBF16 ? static_cast<const void*>(b16.data()) : f32.data(); }
  std::vector<float> f32;
  std::vector<bf16> b16;
};

}  // namespace megaslide
