// Bits: every codec and instruction set, body and tail, any number of threads, split against fp32 masters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/adamw/state.h"

namespace megaslide {
namespace {

constexpr AdamWStep kStep{.learning_rate = 3e-3,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-8,
                          .weight_decay = 0.1,
                          .step = 3,
                          .clip = 0.7F,
                          .seed = 0x123456789abcdefULL,
                          .first = 0};

// Lengths around the widths of a register, of what a draw of random bits serves and of a block; and one of two pieces.
const int64_t kLengths[] = {1, 7, 8, 15, 16, 17, 31, 33, 63, 65, 100, 255, 256, 257, 511, 1023, 2048, 66'003};

TEST(AdamWBits, EveryInstructionSetGivesThePlainBits) {
  const Random random(3, RandomPurpose::kTest);
  ThreadPool pool(2);
  ASSERT_FALSE(targets().empty());
  for (const Codecs codecs : all_codecs())
    for (const int64_t n : kLengths)
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const Gradient g(random, n, 7, true);
        const State start = initial(random, codecs, n, true);
        AdamWStep step = kStep;
        // Counters around a carry, with a draw begun in its middle.
        step.first = (uint64_t{1} << 35) - static_cast<uint64_t>(n) + (dtype == DType::kF32 ? 3 : 0);
        State want = start;
        plain::adamw_update(want.view(), g.data(dtype), dtype, n, step);
        for (const int64_t target : targets()) {
          const UseTarget use(target);
          State got = start;
          adamw_update(pool, got.view(), g.data(dtype), dtype, n, step);
          EXPECT_TRUE(same(got, want))
              << hwy::TargetName(target) << " " << name(codecs) << " " << n << " " << dtype_name(dtype);
        }
      }
}

TEST(AdamWBits, WithoutAWeightTheMastersAreTheSame) {
  const Random random(3, RandomPurpose::kTest);
  ThreadPool pool(2);
  for (const auto moments : {MomentCodec::kFp32, MomentCodec::kBf16, MomentCodec::kInt8}) {
    const int64_t n = 1003;
    const Gradient g(random, n, 7, true);
    State with = initial(random, {MasterCodec::kFp32, moments}, n, true), without = with;
    const std::vector<bf16> untouched = without.w;
    AdamWState view = without.view();
    view.w = nullptr;
    adamw_update(pool, with.view(), g.data(DType::kF32), DType::kF32, n, kStep);
    adamw_update(pool, view, g.data(DType::kF32), DType::kF32, n, kStep);
    EXPECT_TRUE(same(without.w, untouched));
    without.w = with.w;
    EXPECT_TRUE(same(with, without));
  }
}

// The same element gives the same bits wherever it lies: in a register, in the tail, in another piece, at any address.
TEST(AdamWBits, PositionDoesNotMatter) {
  const Random random(4, RandomPurpose::kTest);
  ThreadPool pool(1);
  const int64_t n = 70'000;
  const Gradient g(random, n, 7, true);
  for (const Codecs codecs : all_codecs()) {
    State whole = initial(random, codecs, n, true), cut = whole;
    AdamWStep step = kStep;
    step.first = 5;
    adamw_update(pool, whole.view(), g.f32.data(), DType::kF32, n, step);
    const int64_t unit = codecs.moments == MomentCodec::kInt8 ? kMomentBlock : 1;
    for (int64_t at = 0, length = unit; at < n; at += length, length = length % (37 * unit) + unit) {
      length = std::min(length, n - at);
      step.first = static_cast<uint64_t>(5 + at);
      adamw_update(pool, cut.view(at), g.f32.data() + at, DType::kF32, length, step);
    }
    EXPECT_TRUE(same(whole, cut)) << name(codecs);
  }
}

TEST(AdamWBits, ThreadsDoNotMatter) {
  const Random random(5, RandomPurpose::kTest);
  const int64_t n = 300'001;
  const Gradient g(random, n, 7, false);
  for (const Codecs codecs : all_codecs()) {
    const State start = initial(random, codecs, n, false);
    State want = start;
    {
      ThreadPool pool(1);
      adamw_update(pool, want.view(), g.b16.data(), DType::kBF16, n, kStep);
    }
    for (const int threads : {2, 5}) {
      ThreadPool pool(threads);
      State got = start;
      adamw_update(pool, got.view(), g.b16.data(), DType::kBF16, n, kStep);
      EXPECT_TRUE(same(got, want)) << name(codecs) << " " << threads;
    }
  }
}

// Thirty steps: split masters equal stored fp32 masters in every bit, hostile states and gradients included.
TEST(AdamWBits, SplitEqualsFp32) {
  const Random random(6, RandomPurpose::kTest);
  ThreadPool pool(2);
  const int64_t n = 4099;
  for (const auto moments : {MomentCodec::kFp32, MomentCodec::kBf16, MomentCodec::kInt8}) {
    State split = initial(random, {MasterCodec::kSplit, moments}, n, true);
    State fp32 = initial(random, {MasterCodec::kFp32, moments}, n, true);
    AdamWStep step = kStep;
    for (uint64_t k = 0; k < 30; ++k) {
      const Gradient g(random, n, 100 + k, k % 10 == 9);
      step.step = static_cast<int64_t>(k) + 1;
      step.learning_rate = 1e-2 / static_cast<double>(k + 1);
      adamw_update(pool, split.view(), g.b16.data(), DType::kBF16, n, step);
      adamw_update(pool, fp32.view(), g.b16.data(), DType::kBF16, n, step);
      ASSERT_TRUE(same(split.master(), fp32.p) && same(split.w, fp32.w) && same(split.m, fp32.m) &&
                  same(split.v, fp32.v) && same(split.m_scale, fp32.m_scale) && same(split.v_scale, fp32.v_scale))
          << "step " << k + 1;
    }
  }
}

// The random bits differ with seed, step and place, and m, v and the weight have their own.
TEST(AdamWBits, RoundingDependsOnSeedStepAndPlace) {
  const Random random(7, RandomPurpose::kTest);
  ThreadPool pool(1);
  const int64_t n = 512;
  const Gradient g(random, n, 7, false);
  for (const auto moments : {MomentCodec::kBf16, MomentCodec::kInt8}) {
    const State start = initial(random, {MasterCodec::kBf16Sr, moments}, n, false);
    const auto after = [&](uint64_t seed, uint64_t first) {
      AdamWStep step = kStep;
      step.seed = seed;
      step.first = first;
      State s = start;
      adamw_update(pool, s.view(), g.f32.data(), DType::kF32, n, step);
      return s;
    };
    const State a = after(1, 0);
    EXPECT_TRUE(same(a, after(1, 0)));
    for (const State& b : {after(2, 0), after(uint64_t{1} << 32, 0), after(1, 8), after(1, uint64_t{1} << 36)}) {
      EXPECT_FALSE(same(a.w, b.w));
      EXPECT_FALSE(same(a.m, b.m));
      EXPECT_FALSE(same(a.v, b.v));
    }
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
TEST(AdamWBits, UpdatedNanIsNanInTheWeight) {
  ThreadPool pool(1);
  const int64_t n = 40;
  const std::vector<float> g(n, 1.0F), zero(n), nan(n, std::bit_cast<float>(0x7fffffffU));
  for (const Codecs codecs : all_codecs()) {
    State s(codecs, nan, zero, zero);
    if (codecs.masters == MasterCodec::kBf16Sr) std::fill(s.w.begin(), s.w.end(), bf16{0x7fff});
    adamw_update(pool, s.view(), g.data(), DType::kF32, n, kStep);
    for (const bf16 w : s.w) EXPECT_EQ(w.bits, 0x7fc0) << name(codecs);
  }
}

TEST(SquaredNorm, MatchesThePlainTreeAndALongSum) {
  const Random random(8, RandomPurpose::kTest);
  ThreadPool pool(2);
  for (const size_t n :
       {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{4099}, size_t{16384}, size_t{16385}, size_t{100'007}}) {
    const Gradient g(random, static_cast<int64_t>(n), 7, false);
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
  const int64_t n = 300;
  const std::vector<float> g(n);
  for (const Codecs codecs : all_codecs()) {
    State s(codecs, n);
    for (int k = 0; k < 3; ++k) adamw_update(pool, s.view(), g.data(), DType::kF32, n, kStep);
    EXPECT_TRUE(same(s, State(codecs, n))) << name(codecs);
  }
}

}  // namespace
}  // namespace megaslide
