// State codecs: bits of encoded arrays, errors, unbiased rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/adamw/codec_math.h"
#include "tests/adamw/state.h"

namespace megaslide {
namespace {

const MomentCodec kMoments[] = {MomentCodec::kFp32, MomentCodec::kBf16, MomentCodec::kInt8};

struct Encoded {
  Encoded(MomentCodec c, size_t n)
      : bytes(static_cast<size_t>(moment_bytes(c, static_cast<int64_t>(n)))),
        scales(static_cast<size_t>(moment_scale_bytes(c, static_cast<int64_t>(n))) / sizeof(float)) {}
  Encoded(const std::vector<std::byte>& b, const std::vector<float>& s) : bytes(b), scales(s) {}
  std::vector<std::byte> bytes;
  std::vector<float> scales;
};
::testing::AssertionResult same(const Encoded& a, const Encoded& b) {
  const auto bytes = megaslide::same(a.bytes, b.bytes);
  return bytes ? megaslide::same(a.scales, b.scales) : bytes;
}

Encoded encode(ThreadPool& pool, MomentCodec c, bool of_v, const std::vector<float>& x) {
  Encoded out(c, x.size());
  (of_v ? encode_v : encode_m)(pool, c, out.bytes.data(), out.scales.data(), x.data(), static_cast<int64_t>(x.size()));
  return out;
}
std::vector<float> decode(ThreadPool& pool, MomentCodec c, bool of_v, const Encoded& e, size_t n) {
  std::vector<float> out(n);
  (of_v ? decode_v : decode_m)(pool, c, out.data(), e.bytes.data(), e.scales.data(), static_cast<int64_t>(n));
  return out;
}

// Blocks of normal numbers of every size, the values of a block spread over six decades.
std::vector<float> spread(const Random& random, size_t n, bool of_v) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const double block = std::exp2(random.uniform(1, i / kMomentBlock) * 220 - 110);
    const double sign = random.uniform(3, i) < 0.5 && !of_v ? -1 : 1;
    x[i] = static_cast<float>(sign * block * std::pow(10, -6 * random.uniform(2, i)));
  }
  return x;
}

TEST(MomentCodec, EveryInstructionSetGivesThePlainBits) {
  const Random random(1, RandomPurpose::kTest);
  ThreadPool pool(2);
  for (const size_t n : {1U, 15U, 16U, 17U, 255U, 256U, 257U, 1000U, 70'001U})
    for (const bool of_v : {false, true}) {
      std::vector<float> x(n);
      for (size_t i = 0; i < n; ++i) x[i] = of_v ? std::abs(rough(random, 5, i)) : rough(random, 5, i);
      const auto count = static_cast<int64_t>(n);
      for (const MomentCodec c : kMoments) {
        Encoded want(c, n);
        std::vector<float> decoded(n);
        (of_v ? plain::encode_v : plain::encode_m)(c, want.bytes.data(), want.scales.data(), x.data(), count);
        (of_v ? plain::decode_v : plain::decode_m)(c, decoded.data(), want.bytes.data(), want.scales.data(), count);
        for (const int64_t target : targets()) {
          const UseTarget use(target);
          EXPECT_TRUE(same(encode(pool, c, of_v, x), want)) << hwy::TargetName(target) << " " << n;
          EXPECT_TRUE(megaslide::same(decode(pool, c, of_v, want, n), decoded)) << hwy::TargetName(target) << " " << n;
        }
      }
    }
}

// A checkpoint in fp32 gives back the state: what updates have made, stochastically rounded, hostile blocks included.
TEST(MomentCodec, DecodedIsEncodedToTheSameBits) {
  const Random random(2, RandomPurpose::kTest);
  ThreadPool pool(2);
  const int64_t n = 40'000;
  for (const MomentCodec c : kMoments) {
    State s = initial(random, {MasterCodec::kBf16Sr, c}, n, true);
    AdamWStep step;
    for (uint64_t k = 1; k <= 5; ++k) {
      const Gradient g(random, n, 10 + k, k == 1);
      step.step = static_cast<int64_t>(k);
      adamw_update(pool, s.view(), g.f32.data(), DType::kF32, n, step);
    }
    const auto count = static_cast<size_t>(n);
    for (const bool of_v : {false, true}) {
      const Encoded kept(of_v ? s.v : s.m, of_v ? s.v_scale : s.m_scale);
      const Encoded again = encode(pool, c, of_v, decode(pool, c, of_v, kept, count));
      EXPECT_TRUE(same(again, kept)) << name(s.codecs) << (of_v ? " v" : " m");
    }
  }
}

// In units of s/127² (s/255²), a value is y², y² = z; q is y rounded to nearest and y is off by at most 2·2.6e-5·127
// (m's root, and what makes its largest level whole), so that |q − y| ≤ h = 0.507 and the error is |q² − y²| ≤ h·(2y +
// h). To that come five roundings of fp32, 2^-24 each of the value. v: 1 stands for what is below a half, an error of
// at most 1.
TEST(MomentCodec, Int8IsWithinHalfALevel) {
  const Random random(3, RandomPurpose::kTest);
  ThreadPool pool(2);
  const size_t n = 200 * kMomentBlock;
  for (const bool of_v : {false, true}) {
    const std::vector<float> x = spread(random, n, of_v);
    const Encoded e = encode(pool, MomentCodec::kInt8, of_v, x);
    const std::vector<float> got = decode(pool, MomentCodec::kInt8, of_v, e, n);
    const double levels = of_v ? 255 : 127, h = 0.507;
    for (size_t i = 0; i < n; ++i) {
      const double scale = e.scales[i / kMomentBlock], unit = scale / (levels * levels);
      const double want = of_v ? std::sqrt(static_cast<double>(x[i])) : x[i];
      const double out = of_v ? std::sqrt(static_cast<double>(got[i])) : got[i];
      const double y = std::sqrt(std::abs(want) / unit);
      double bound = h * (2 * y + h);
      if (of_v && y < h) bound = 1;
      ASSERT_LE(std::abs(out - want), unit * bound + 5 * 0x1p-24 * std::abs(want)) << i;
      ASSERT_TRUE(out == 0 || std::signbit(got[i]) == std::signbit(x[i]));
      if (of_v) {
        ASSERT_GT(got[i], 0);
      }
    }
    // The largest of a block keeps its value, unless the smallest scale is larger: v up to the rounding of a root and
    // of a square.
    for (size_t b = 0; b < n / kMomentBlock; ++b) {
      const auto block = x.begin() + static_cast<long>(b * kMomentBlock);
      const auto size = [](float l, float r) { return std::abs(l) < std::abs(r); };
      const auto top = static_cast<size_t>(std::max_element(block, block + kMomentBlock, size) - x.begin());
      if (e.scales[b] == (of_v ? adamw::kSmallestVScale : adamw::kSmallestMScale)) continue;
      EXPECT_NEAR(got[top] / x[top], 1, of_v ? 0x1p-22 : 0);
    }
  }
}

// With any significand as the scale the largest value is on the largest level, whatever the random bits, and nothing
// just below it goes beyond.
TEST(MomentCodec, Int8LevelsEndAtTheLargest) {
  for (uint32_t bits = 0x3f800000U; bits < 0x40000000U; bits += 31) {
    const auto s = std::bit_cast<float>(bits);
    const float m = adamw::level_factor(s, adamw::kMTop), v = adamw::level_factor(s, adamw::kVTop);
    for (const uint16_t r : {uint16_t{0}, uint16_t{0xffff}}) {
      ASSERT_EQ(adamw::m_level(s, m, r), 127);
      ASSERT_EQ(adamw::m_level(-s, m, r), -127);
      ASSERT_EQ(adamw::v_level(s, v, r), 255);
    }
    ASSERT_EQ(adamw::m_level(s, m), 127);
    ASSERT_EQ(adamw::v_level(s, v), 255);
  }
  const float m = adamw::level_factor(1, adamw::kMTop), v = adamw::level_factor(1, adamw::kVTop);
  for (uint32_t bits = 0x3f7f0000U; bits < 0x3f800000U; ++bits) {
    const auto x = std::bit_cast<float>(bits);
    ASSERT_GE(adamw::m_level(x, m, 0xffff), 120);  // beyond 127 it would be -128
    ASSERT_LE(adamw::m_level(-x, m, 0), -120);
    ASSERT_GE(adamw::v_level(x, v, 0xffff), 240);
  }
}

// Eight significant bits: half an ulp is at most 2^-8 of the value, and of subnormal ones 2^-134.
TEST(MomentCodec, Bf16IsWithinHalfAnUlp) {
  const Random random(4, RandomPurpose::kTest);
  ThreadPool pool(2);
  const std::vector<float> x = spread(random, 10'000, false);
  const auto got = decode(pool, MomentCodec::kBf16, false, encode(pool, MomentCodec::kBf16, false, x), x.size());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_LE(std::abs(got[i] - x[i]), 0x1p-8F * std::abs(x[i]) + 0x1p-134F);
}

// From the smallest subnormal to the largest number, alone and beside others of its block: also after an update.
TEST(MomentCodec, NonZeroVNeverBecomesZero) {
  const Random random(5, RandomPurpose::kTest);
  ThreadPool pool(2);
  const int64_t n = 300 * kMomentBlock;
  std::vector<float> v(static_cast<size_t>(n)), zero(v.size());
  for (size_t i = 0; i < v.size(); ++i) {
    const size_t block = i / kMomentBlock;
    const double below_top = i % kMomentBlock == 0 ? 0 : 60 * random.uniform(1, i);
    const double exponent = -149 + static_cast<double>(block) * 277 / 300 - below_top;
    v[i] = i % 7 == 0 ? 0 : static_cast<float>(std::exp2(std::max(-149.0, exponent)));
  }
  State s({MasterCodec::kBf16Sr, MomentCodec::kInt8}, zero, zero, v);
  const auto check = [&] {
    const std::vector<float> got = s.second();
    for (size_t i = 0; i < v.size(); ++i) ASSERT_EQ(got[i] > 0, v[i] > 0) << i << " " << v[i];
  };
  check();
  AdamWStep step;
  for (step.step = 1; step.step <= 3; ++step.step) {
    adamw_update(pool, s.view(), zero.data(), DType::kF32, n, step);
    check();
  }
}

TEST(MomentCodec, ABlockWithNanOrInfinityIsNan) {
  ThreadPool pool(1);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()})
    for (const bool of_v : {false, true}) {
      std::vector<float> x(3 * kMomentBlock, 1e-3F);
      x[kMomentBlock + 77] = bad;
      const auto got = decode(pool, MomentCodec::kInt8, of_v, encode(pool, MomentCodec::kInt8, of_v, x), x.size());
      for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i / kMomentBlock == 1) << i;
    }
}

TEST(MomentCodec, Sizes) {
  EXPECT_EQ(moment_blocks(0), 0);
  EXPECT_EQ(moment_blocks(256), 1);
  EXPECT_EQ(moment_blocks(257), 2);
  EXPECT_EQ(moment_bytes(MomentCodec::kInt8, 257) + moment_scale_bytes(MomentCodec::kInt8, 257), 257 + 8);
  EXPECT_EQ(update_bytes_each(MasterCodec::kSplit, MomentCodec::kFp32, 2), 26);
  EXPECT_EQ(update_bytes_each(MasterCodec::kFp32, MomentCodec::kFp32, 2), 28);
  EXPECT_EQ(update_bytes_each(MasterCodec::kFp32, MomentCodec::kFp32, 4, false), 28);
  EXPECT_EQ(update_bytes_each(MasterCodec::kSplit, MomentCodec::kInt8, 2), 14 + 4 * 4.0 / 256);
  EXPECT_EQ(update_bytes_each(MasterCodec::kBf16Sr, MomentCodec::kBf16, 2), 14);
}

// Over all random bits the mean of what a number is rounded to is the number, exactly.
TEST(StochasticRounding, Bf16IsUnbiased) {
  const Random random(6, RandomPurpose::kTest);
  for (uint64_t i = 0; i < 200; ++i) {
    const float subnormal = std::bit_cast<float>(random.bits(1, i)[0] & 0x807fffffU);
    const float x = i < 100 ? static_cast<float>(random.normal(1, i)) : subnormal;
    double sum = 0;
    for (uint32_t r = 0; r < 0x10000; ++r) sum += to_float(adamw::round_stochastic(x, static_cast<uint16_t>(r)));
    EXPECT_EQ(sum / 0x10000, x);
  }
  for (const float x : {0.0F, 1.0F, -0.0F}) EXPECT_EQ(adamw::round_stochastic(x, 0xffff).bits, to_bf16(x).bits);
  EXPECT_EQ(adamw::round_stochastic(std::numeric_limits<float>::infinity(), 0xffff).bits, 0x7f80);
  EXPECT_EQ(adamw::round_stochastic(std::bit_cast<float>(0x7fc00000U), 0xffff).bits, 0x7fc0);
}

// Over all random bits the mean level is √z up to half a unit of the fraction, to which it is rounded first, and the
// errors of the root, which are relative: m's polynomial, two roundings of v.
TEST(StochasticRounding, Int8LevelsAreUnbiased) {
  for (int k = 1; k <= 1000; k += 7) {
    const float m = static_cast<float>(k * k) * 1e-6F * (k % 2 != 0 ? -1.0F : 1.0F), root = std::abs(m);
    double m_sum = 0, v_sum = 0;
    for (uint32_t r = 0; r < 0x10000; r += 16) {
      m_sum += adamw::m_level(m, adamw::level_factor(1, adamw::kMTop), static_cast<uint16_t>(r / 16));
      v_sum += adamw::v_level(root, adamw::level_factor(1, adamw::kVTop), static_cast<uint16_t>(r));
    }
    const double y = std::sqrt(static_cast<double>(root));
    EXPECT_NEAR(m_sum / 4096, std::copysign(127 * y, m), 0x1p-9 + 127 * y * 5.2e-5);
    if (255 * y >= 1) {
      EXPECT_NEAR(v_sum / 4096, 255 * y, 0x1p-13 + 255 * y * 2e-7);
    }
  }
}

// Bits of different elements, streams and steps: mean and correlations within five standard deviations of chance.
TEST(StochasticRounding, BitsAreIndependent) {
  AdamWStep step;
  step.seed = 99;
  AdamWStep next = step;
  next.step = 2;
  const int n = 100'000;
  double sum = 0, neighbour = 0, stream = 0, later = 0;
  const auto centred = [](uint16_t bits) { return (bits - 32767.5) / 18918.6; };  // variance 1
  for (uint64_t e = 0; e < n; ++e) {
    const double x = centred(adamw::rounding_bits(step, RandomPurpose::kRounding, e));
    sum += x;
    neighbour += x * centred(adamw::rounding_bits(step, RandomPurpose::kRounding, e + 1));
    stream += x * centred(adamw::rounding_bits(step, RandomPurpose::kMomentRounding, e));
    later += x * centred(adamw::rounding_bits(next, RandomPurpose::kRounding, e));
  }
  for (const double s : {sum, neighbour, stream, later}) EXPECT_LE(std::abs(s), 5 * std::sqrt(n));
}

}  // namespace
}  // namespace megaslide
