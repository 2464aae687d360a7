// Bits: every instruction set, body and tail, any number of threads, split against fp32 masters.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/philox.h"
#include "kernels/adamw/adamw.h"

namespace megaslide {
namespace {

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

// The instruction sets that adamw.cpu.cc is compiled for and this machine has.
std::vector<int64_t> targets() {
  std::vector<int64_t> out;
  for (const int64_t t :
       {static_cast<int64_t>(HWY_STATIC_TARGET), static_cast<int64_t>(HWY_AVX2), static_cast<int64_t>(HWY_AVX3)})
    if (hwy::SupportedTargets() & t) out.push_back(t);
  return out;
}

// Values of every kind: normal numbers of many sizes, subnormals, zeros, infinities and NaNs with payloads.
float hostile(const Random& random, uint64_t series, uint64_t i) {
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

struct State {
  std::vector<float> p, m, v;
  std::vector<bf16> w;
  std::vector<int16_t> r;
  explicit State(size_t n) : p(n), m(n), v(n), w(n), r(n) {}
  int64_t size() const { return static_cast<int64_t>(p.size()); }
};

template <class T>
::testing::AssertionResult same(const std::vector<T>& a, const std::vector<T>& b) {
  if (std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0) return ::testing::AssertionSuccess();
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0)
      return ::testing::AssertionFailure() << "element " << i << " of " << a.size();
  return ::testing::AssertionFailure();
}

State initial(const Random& random, size_t n, bool with_hostile) {
  State s(n);
  for (size_t i = 0; i < n; ++i) {
    s.p[i] = with_hostile ? hostile(random, 1, i) : static_cast<float>(random.normal(1, i));
    s.m[i] = with_hostile ? hostile(random, 2, i) : static_cast<float>(random.normal(2, i)) * 1e-3F;
    s.v[i] = with_hostile ? std::abs(hostile(random, 3, i)) : static_cast<float>(random.uniform(3, i)) * 1e-5F;
    s.w[i] = master_weight(s.p[i]);
    s.r[i] = master_remainder(s.p[i]);
  }
  return s;
}

struct Gradient {
  Gradient(const Random& random, size_t n, uint64_t series, bool with_hostile) : f32(n), b16(n) {
    for (size_t i = 0; i < n; ++i) {
      f32[i] = with_hostile ? hostile(random, series, i) : static_cast<float>(random.normal(series, i)) * 1e-2F;
      b16[i] = to_bf16(f32[i]);
    }
  }
  const void* data(DType t) const { return t == DType::kBF16 ? static_cast<const void*>(b16.data()) : f32.data(); }
  std::vector<float> f32;
  std::vector<bf16> b16;
};

constexpr AdamWStep kStep{
    .learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 3, .clip = 0.7F};

// Lengths around the widths of a register, and one of several pieces.
const size_t kLengths[] = {1, 7, 8, 15, 16, 17, 31, 33, 100, 1023, 200'003};

TEST(AdamWBits, EveryInstructionSetGivesThePlainBits) {
  const Random random(3, RandomPurpose::kTest);
  ThreadPool pool(2);
  ASSERT_FALSE(targets().empty());
  for (const int64_t target : targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const UseTarget use(target);
    for (const size_t n : kLengths)
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        SCOPED_TRACE(std::to_string(n) + " " + std::string(dtype_name(dtype)));
        const Gradient g(random, n, 7, true);
        State want = initial(random, n, true), got = want;
        plain::adamw_update_split(want.w.data(), want.r.data(), want.m.data(), want.v.data(), g.data(dtype), dtype,
                                  want.size(), kStep);
        adamw_update_split(pool, got.w.data(), got.r.data(), got.m.data(), got.v.data(), g.data(dtype), dtype,
                           got.size(), kStep);
        EXPECT_TRUE(same(got.w, want.w) && same(got.r, want.r) && same(got.m, want.m) && same(got.v, want.v));
        want = initial(random, n, true), got = want;
        plain::adamw_update_fp32(want.p.data(), want.w.data(), want.m.data(), want.v.data(), g.data(dtype), dtype,
                                 want.size(), kStep);
        adamw_update_fp32(pool, got.p.data(), got.w.data(), got.m.data(), got.v.data(), g.data(dtype), dtype,
                          got.size(), kStep);
        EXPECT_TRUE(same(got.p, want.p) && same(got.w, want.w) && same(got.m, want.m) && same(got.v, want.v));
        got.p = initial(random, n, true).p, got.m = initial(random, n, true).m, got.v = initial(random, n, true).v;
        adamw_update_fp32(pool, got.p.data(), nullptr, got.m.data(), got.v.data(), g.data(dtype), dtype, got.size(),
                          kStep);
        EXPECT_TRUE(same(got.p, want.p));
      }
  }
}

// The same element gives the same bits wherever it lies: in a register, in the tail, in another piece.
TEST(AdamWBits, PositionDoesNotMatter) {
  const Random random(4, RandomPurpose::kTest);
  ThreadPool pool(1);
  const size_t n = 70'000;
  const Gradient g(random, n, 7, true);
  State whole = initial(random, n, true), cut = whole;
  adamw_update_split(pool, whole.w.data(), whole.r.data(), whole.m.data(), whole.v.data(), g.f32.data(), DType::kF32,
                     whole.size(), kStep);
  for (int64_t at = 0, length = 1; at < cut.size(); at += length, length = length % 37 + 1) {
    length = std::min(length, cut.size() - at);
    adamw_update_split(pool, cut.w.data() + at, cut.r.data() + at, cut.m.data() + at, cut.v.data() + at,
                       g.f32.data() + at, DType::kF32, length, kStep);
  }
  EXPECT_TRUE(same(whole.w, cut.w) && same(whole.r, cut.r) && same(whole.m, cut.m) && same(whole.v, cut.v));
}

TEST(AdamWBits, ThreadsDoNotMatter) {
  const Random random(5, RandomPurpose::kTest);
  const size_t n = 300'001;
  const Gradient g(random, n, 7, false);
  std::vector<State> results;
  std::vector<double> norms;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    State s = initial(random, n, false);
    adamw_update_split(pool, s.w.data(), s.r.data(), s.m.data(), s.v.data(), g.b16.data(), DType::kBF16, s.size(),
                       kStep);
    results.push_back(s);
    norms.push_back(squared_norm(pool, g.f32.data(), DType::kF32, s.size()));
  }
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_TRUE(same(results[0].w, results[i].w) && same(results[0].r, results[i].r) &&
                same(results[0].m, results[i].m) && same(results[0].v, results[i].v));
    EXPECT_EQ(norms[0], norms[i]);
  }
}

// A hundred steps: split masters equal stored fp32 masters in every bit, hostile states and gradients included.
TEST(AdamWBits, SplitEqualsFp32) {
  const Random random(6, RandomPurpose::kTest);
  ThreadPool pool(2);
  const size_t n = 4099;
  State split = initial(random, n, true), fp32 = split;
  AdamWStep step = kStep;
  for (uint64_t k = 0; k < 100; ++k) {
    const Gradient g(random, n, 100 + k, k % 10 == 9);
    step.step = static_cast<int64_t>(k) + 1;
    step.learning_rate = 1e-2 / static_cast<double>(k + 1);
    adamw_update_split(pool, split.w.data(), split.r.data(), split.m.data(), split.v.data(), g.b16.data(), DType::kBF16,
                       split.size(), step);
    adamw_update_fp32(pool, fp32.p.data(), fp32.w.data(), fp32.m.data(), fp32.v.data(), g.b16.data(), DType::kBF16,
                      fp32.size(), step);
    join_master(pool, split.p.data(), split.w.data(), split.r.data(), split.size());
    ASSERT_TRUE(same(split.p, fp32.p) && same(split.w, fp32.w) && same(split.m, fp32.m) && same(split.v, fp32.v))
        << "step " << k + 1;
  }
}

// Every upper half with the lower halves that matter: the pattern comes back, and the weight is the nearest bf16.
TEST(SplitMaster, EveryPatternComesBack) {
  ThreadPool pool(2);
  std::vector<float> p;
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (const uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU})
      p.push_back(std::bit_cast<float>(high << 16 | low));
  const auto n = static_cast<int64_t>(p.size());
  for (const int64_t target : targets()) {
    const UseTarget use(target);
    std::vector<bf16> w(p.size()), rounded(p.size());
    std::vector<int16_t> r(p.size());
    std::vector<float> back(p.size());
    split_master(pool, w.data(), r.data(), p.data(), n);
    round_master(pool, rounded.data(), p.data(), n);
    join_master(pool, back.data(), w.data(), r.data(), n);
    EXPECT_TRUE(same(back, p)) << hwy::TargetName(target);
    EXPECT_TRUE(same(w, rounded)) << hwy::TargetName(target);
    for (size_t i = 0; i < p.size(); ++i) {
      ASSERT_EQ(w[i].bits, master_weight(p[i]).bits);
      ASSERT_EQ(r[i], master_remainder(p[i]));
      if (!std::isfinite(p[i])) continue;
      const uint32_t low = std::bit_cast<uint32_t>(p[i]) & 0xffffU;
      if (low != 0x8000U) {
        ASSERT_EQ(w[i].bits, to_bf16(p[i]).bits) << std::hexfloat << p[i];
      } else {
        ASSERT_EQ(w[i].bits, static_cast<uint16_t>((std::bit_cast<uint32_t>(p[i]) >> 16) + 1)) << std::hexfloat << p[i];
      }
    }
  }
}

// A NaN that an update makes is seen in the weight.
TEST(SplitMaster, UpdatedNanIsNanInTheWeight) {
  ThreadPool pool(1);
  State s(40);
  for (float& p : s.p) p = std::bit_cast<float>(0x7fffffffU);
  split_master(pool, s.w.data(), s.r.data(), s.p.data(), s.size());
  const std::vector<float> g(s.p.size(), 1.0F);
  adamw_update_split(pool, s.w.data(), s.r.data(), s.m.data(), s.v.data(), g.data(), DType::kF32, s.size(), kStep);
  for (const bf16 w : s.w) EXPECT_EQ(w.bits, 0x7fc0);
}

TEST(SquaredNorm, MatchesThePlainTreeAndALongSum) {
  const Random random(8, RandomPurpose::kTest);
  ThreadPool pool(2);
  for (const size_t n :
       {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{4099}, size_t{16384}, size_t{16385}, size_t{100'007}}) {
    const Gradient g(random, n, 7, false);
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const auto count = static_cast<int64_t>(n);
      const double want = plain::squared_norm(g.data(dtype), dtype, count);
      long double sum = 0;
      for (size_t i = 0; i < n; ++i) {
        const long double x = dtype == DType::kBF16 ? to_float(g.b16[i]) : g.f32[i];
        sum += x * x;
      }
      // At most 1,024 sums a lane, then the trees: about 1,040 roundings of half an ulp.
      EXPECT_NEAR(want, static_cast<double>(sum), static_cast<double>(sum) * 1040 * 0x1p-53);
      for (const int64_t target : targets()) {
        const UseTarget use(target);
        EXPECT_EQ(squared_norm(pool, g.data(dtype), dtype, count), want) << n << " " << hwy::TargetName(target);
      }
    }
  }
}

TEST(SquaredNorm, TellsOfNonFiniteValues) {
  ThreadPool pool(2);
  std::vector<float> g(50'000, 1e-3F);
  for (const size_t at : {size_t{0}, size_t{20'001}, size_t{49'999}}) {
    auto h = g;
    h[at] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(squared_norm(pool, h.data(), DType::kF32, 50'000), std::numeric_limits<double>::infinity());
    h[at] = std::nanf("");
    EXPECT_TRUE(std::isnan(squared_norm(pool, h.data(), DType::kF32, 50'000)));
  }
  // The largest floats do not overflow.
  g.assign(g.size(), std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(squared_norm(pool, g.data(), DType::kF32, 50'000)));
}

TEST(ConvertGradient, SameBitsAsToBf16) {
  const Random random(9, RandomPurpose::kTest);
  ThreadPool pool(2);
  const Gradient g(random, 100'003, 7, true);
  for (const int64_t target : targets()) {
    const UseTarget use(target);
    std::vector<bf16> out(g.f32.size());
    convert_gradient(pool, out.data(), g.f32.data(), static_cast<int64_t>(out.size()));
    EXPECT_TRUE(same(out, g.b16)) << hwy::TargetName(target);
  }
}

// Gaps between tensors hold zeros and stay zero.
TEST(AdamWBits, ZeroStaysZero) {
  ThreadPool pool(1);
  State s(50);
  const std::vector<float> g(50);
  for (int k = 0; k < 3; ++k)
    adamw_update_split(pool, s.w.data(), s.r.data(), s.m.data(), s.v.data(), g.data(), DType::kF32, s.size(), kStep);
  const State zero(50);
  EXPECT_TRUE(same(s.w, zero.w) && same(s.r, zero.r) && same(s.m, zero.m) && same(s.v, zero.v));
}

}  // namespace
}  // namespace megaslide
