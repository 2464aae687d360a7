#include "diffusion/flow_matching.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace megaslide {
namespace {

TEST(FlowMatching, ShiftAndItsInverse) {
  EXPECT_EQ(shift_sigma(0, 3), 0);
  EXPECT_EQ(shift_sigma(1, 3), 1);
  EXPECT_NEAR(shift_sigma(0.5, 3), 0.75, 1e-15);
  for (const double u : {0.001, 0.3, 0.999}) {
    EXPECT_EQ(shift_sigma(u, 1), u);
    EXPECT_NEAR(unshift_sigma(shift_sigma(u, 8), 8), u, 1e-14);
  }
}

// Kolmogorov–Smirnov distance between n draws and a distribution; 1.63/√n is exceeded with probability 1 % by a right
// generator, and never by this fixed seed.
double distance(std::vector<double> draws, double (*cdf)(double)) {
  std::sort(draws.begin(), draws.end());
  double d = 0;
  const double n = static_cast<double>(draws.size());
  for (size_t i = 0; i < draws.size(); ++i) {
    const double f = cdf(draws[i]), k = static_cast<double>(i);
    d = std::max({d, std::abs(f - k / n), std::abs(f - (k + 1) / n)});
  }
  return d * std::sqrt(n);
}
double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double logit(double u) { return std::log(u / (1 - u)); }

// One of each sampling, none with a setting of 1 or 0 that would hide a wrong formula.
std::vector<TimestepDistribution> all_samplings() {
  return {{.sampling = TimestepSampling::kLogitNormal, .mean = 0.5, .scale = 1.5, .shift = 3},
          {.sampling = TimestepSampling::kUniform, .shift = 5},
          {.sampling = TimestepSampling::kSigmoid, .mean = 9, .scale = 0.8, .shift = 4},
          {.sampling = TimestepSampling::kShift, .mean = 9, .scale = 1.3, .shift = 3},
          {.sampling = TimestepSampling::kMode, .mode_scale = 1.29, .shift = 1},
          {.sampling = TimestepSampling::kMode, .mode_scale = -0.7, .shift = 3}};
}

// The quantile function is the definition of each sampling, applied to the quantiles of what it draws.
TEST(FlowMatching, QuantilesFollowTheDefinitions) {
  for (double p = 0.001; p < 1; p += 0.037) {
    EXPECT_NEAR(sigma_quantile({.sampling = TimestepSampling::kUniform, .shift = 5}, p), shift_sigma(p, 5), 1e-15);
    // As SD3 gives it, falling in its argument: p is the share above it.
    const double x = 1 - p, s = 1.29, c = std::cos(1.5707963267948966 * x);
    EXPECT_NEAR(sigma_quantile({.sampling = TimestepSampling::kMode, .mode_scale = s, .shift = 3}, p), shift_sigma(1 - x - s * (c * c - 1 + x), 3), 1e-14);
  }
  for (double z = -6; z <= 6; z += 0.25) {
    // Φ(z) has an error of 1e-16 beside 1, which the tail multiplies by 1/φ(z).
    const double p = normal_cdf(z), tolerance = 1e-13 + 2e-16 * std::exp(z * z / 2) * 2.6;
    const auto u = [](double mean, double scale, double n) { return 1 / (1 + std::exp(-(mean + scale * n))); };
    EXPECT_NEAR(logit(unshift_sigma(sigma_quantile({.mean = 0.5, .scale = 1.5, .shift = 3}, p), 3)), logit(u(0.5, 1.5, z)), 1e-9 + 3 * tolerance) << z;
    EXPECT_NEAR(sigma_quantile({.sampling = TimestepSampling::kSigmoid, .mean = 9, .scale = 0.8, .shift = 4}, p), u(0, 0.8, z), tolerance) << z;
    EXPECT_NEAR(sigma_quantile({.sampling = TimestepSampling::kShift, .scale = 0.8, .shift = 4}, p), shift_sigma(u(0, 0.8, z), 4), tolerance) << z;
  }
  for (const auto& d : all_samplings())
    for (double p = 0.001; p < 1; p += 0.037) EXPECT_NEAR(sigma_cdf(d, sigma_quantile(d, p)), p, 1e-12);
}

// n draws of a distribution.
std::vector<double> draws_of(const TimestepDistribution& d, int64_t n) {
  std::vector<double> x;
  for (int64_t i = 0; i < n; ++i) x.push_back(draw_sigma(d, 7, sample_series(i / 100, i % 100)));
  return x;
}

TEST(FlowMatching, DrawsFollowTheDistribution) {
  for (const auto& d : all_samplings()) {
    std::vector<double> shares;
    for (const double sigma : draws_of(d, 10000)) {
      ASSERT_GT(sigma, 0);
      ASSERT_LT(sigma, 1);
      shares.push_back(sigma_cdf(d, sigma));
    }
    EXPECT_LT(distance(shares, [](double x) { return x; }), 1.63) << static_cast<int>(d.sampling);
  }
  // Moments of the plainest ones, within three standard errors of 10,000 draws: of a uniform number, and of a normal logit.
  double mean = 0, logits = 0, squares = 0;
  for (const double x : draws_of({.sampling = TimestepSampling::kUniform}, 10000)) mean += x / 10000;
  for (const double x : draws_of({.mean = 0.5, .scale = 1.5}, 10000)) logits += logit(x) / 10000, squares += logit(x) * logit(x) / 10000;
  EXPECT_NEAR(mean, 0.5, 3 * std::sqrt(1 / 12.0) / 100);
  EXPECT_NEAR(logits, 0.5, 3 * 1.5 / 100);
  EXPECT_NEAR(squares - logits * logits, 2.25, 3 * 2.25 * std::sqrt(2.0) / 100);
}

TEST(FlowMatching, ASliceCutsTheDistribution) {
  for (auto d : all_samplings())
    for (const auto& [low, high] : {std::pair{0.875, 1.0}, {0.0, 0.875}, {0.0, 0.9}, {0.2001, 0.3003}}) {
      d.low = low, d.high = high;
      require_slice(d);
      const double below = sigma_cdf(d, low), mass = sigma_cdf(d, high) - below;
      std::vector<double> shares;
      for (const double sigma : draws_of(d, 4000)) {
        const double t = static_cast<float>(timestep_of_sigma(sigma));
        ASSERT_GE(t, 1000 * low);
        if (high < 1) {
          ASSERT_LT(t, 1000 * high);
        }
        shares.push_back((sigma_cdf(d, sigma) - below) / mass);
      }
      EXPECT_LT(distance(shares, [](double x) { return x; }), 1.63) << static_cast<int>(d.sampling) << " " << low;
    }
}

// A slice so thin that fp32 has three timesteps in it: what rounds onto its edges is moved inside.
TEST(FlowMatching, EdgesOfASliceHoldInFp32) {
  TimestepDistribution d{.sampling = TimestepSampling::kUniform};
  d.low = 0.8751;
  d.high = d.low + 3e-6;
  for (const double sigma : draws_of(d, 1000)) {
    const double t = static_cast<float>(timestep_of_sigma(sigma));
    ASSERT_GE(t, 1000 * d.low);
    ASSERT_LT(t, 1000 * d.high);
  }
}

TEST(FlowMatching, AnAllButEmptySliceIsRefused) {
  TimestepDistribution d{.scale = 0.1};
  d.low = 0.95;
  try {
    require_slice(d);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(e.message().find("timesteps from 950 to 1000 hold"), std::string::npos) << e.message();
  }
}

TEST(FlowMatching, StrataAreQuantilesOfTheSlice) {
  TimestepDistribution d{.shift = 3};
  d.low = 0.3;
  const double below = sigma_cdf(d, 0.3), mass = 1 - below;
  for (int64_t k = 0; k < 8; ++k)
    for (int64_t i = 0; i < 50; ++i) {
      const double share = (sigma_cdf(d, draw_sigma(d, 3, sample_series(1, i), k, 8)) - below) / mass;
      EXPECT_GE(share, static_cast<double>(k) / 8 - 1e-12);
      EXPECT_LE(share, static_cast<double>(k + 1) / 8 + 1e-12);
    }
}

TEST(FlowMatching, DrawsAreKeyedByAllTheyAreFor) {
  const TimestepDistribution d;
  const double base = draw_sigma(d, 1, sample_series(5, 2));
  EXPECT_EQ(base, draw_sigma(d, 1, sample_series(5, 2)));
  EXPECT_NE(base, draw_sigma(d, 2, sample_series(5, 2)));
  EXPECT_NE(base, draw_sigma(d, 1, sample_series(6, 2)));
  EXPECT_NE(base, draw_sigma(d, 1, sample_series(5, 3)));
}

TEST(FlowMatching, LossWeights) {
  const auto weight = [](LossWeighting scheme, double sigma) { return LossWeight({.scheme = scheme, .mean = 0.5, .scale = 1.5, .mode_scale = 1.29, .shift = 5})(sigma); };
  EXPECT_EQ(weight(LossWeighting::kNone, 0.3), 1);
  EXPECT_DOUBLE_EQ(weight(LossWeighting::kSigmaSqrt, 0.25), 16);
  EXPECT_DOUBLE_EQ(weight(LossWeighting::kSigmaSqrt, 1e-9), 1e6);
  EXPECT_DOUBLE_EQ(weight(LossWeighting::kCosmap, 0.5), 4 / 3.141592653589793);
  EXPECT_DOUBLE_EQ(weight(LossWeighting::kCosmap, 1), 2 / 3.141592653589793);
  EXPECT_EQ(weight(LossWeighting::kLogitNormal, 0), 0);
  EXPECT_EQ(weight(LossWeighting::kLogitNormal, 1), 0);
  // The densities are the slopes of the distributions that sample by them: central differences of step 1e-5 leave 1e-7.
  const double h = 1e-5;
  for (double sigma = 0.05; sigma < 1; sigma += 0.1) {
    const TimestepDistribution normal{.mean = 0.5, .scale = 1.5}, mode{.sampling = TimestepSampling::kMode, .mode_scale = 1.29};
    EXPECT_NEAR(weight(LossWeighting::kLogitNormal, sigma), (sigma_cdf(normal, sigma + h) - sigma_cdf(normal, sigma - h)) / (2 * h), 1e-7);
    EXPECT_NEAR(weight(LossWeighting::kMode, sigma), (sigma_cdf(mode, sigma + h) - sigma_cdf(mode, sigma - h)) / (2 * h), 1e-6);
  }
  // DiffSynth's bell over its thousand noise levels: mean 1, 0 at its least, highest in the middle.
  double sum = 0;
  for (int k = 1; k <= 1000; ++k) sum += weight(LossWeighting::kBell, shift_sigma(k / 1000.0, 5));
  EXPECT_NEAR(sum / 1000, 1, 1e-12);
  EXPECT_NEAR(weight(LossWeighting::kBell, 1), 0, 1e-15);
  EXPECT_NEAR(weight(LossWeighting::kBell, 0.5) / weight(LossWeighting::kBell, 0.25), (1 - std::exp(-0.5)) / (std::exp(-0.125) - std::exp(-0.5)), 1e-12);
}

TEST(FlowMatching, NormalNoise) {
  std::vector<float> a(10001), prefix(37), other(37);
  fill_normal(a, 3, RandomPurpose::kSample, 11);
  fill_normal(prefix, 3, RandomPurpose::kSample, 11);
  fill_normal(other, 3, RandomPurpose::kNoise, 11);
  EXPECT_TRUE(std::equal(prefix.begin(), prefix.end(), a.begin()));  // an element does not depend on the length
  EXPECT_FALSE(std::equal(prefix.begin(), prefix.end(), other.begin()));
  EXPECT_LT(distance({a.begin(), a.end()}, normal_cdf), 1.63);
  double lag[4] = {};  // neighbours come from one block: they must not be correlated
  for (size_t i = 0; i + 4 < a.size(); ++i)
    for (size_t k = 1; k < 4; ++k) lag[k] += double{a[i]} * a[i + k];
  for (size_t k = 1; k < 4; ++k) EXPECT_LT(std::abs(lag[k]) / std::sqrt(1e4), 3);  // three deviations
}

TEST(FlowMatching, CaptionDropoutRate) {
  int dropped = 0;
  for (int64_t i = 0; i < 10000; ++i) dropped += draw_caption_dropout(0.1, 5, sample_series(i, 0));
  EXPECT_NEAR(dropped, 1000, 90);  // three deviations of a binomial
  EXPECT_FALSE(draw_caption_dropout(0, 5, 1));
  EXPECT_TRUE(draw_caption_dropout(1, 5, 1));
}

TEST(FlowMatching, NoisyLatentAndTarget) {
  const std::vector<float> x0{1, -2, 0.5f}, noise{0, 4, -1};
  std::vector<float> x = noise, target(3);
  add_noise(x, target, x0, x, 0.25);
  EXPECT_EQ(x, (std::vector<float>{0.75f, -0.5f, 0.125f}));
  EXPECT_EQ(target, (std::vector<float>{-1, 6, -1.5f}));
}

TEST(FlowMatching, Guidance) {
  std::vector<float> v{1, 2};
  apply_guidance(v, std::vector<float>{0.5f, 4}, 5);
  EXPECT_EQ(v, (std::vector<float>{3, -6}));
  apply_guidance(v, std::vector<float>{1, 1}, 1);
  EXPECT_EQ(v, (std::vector<float>{3, -6}));
}

}  // namespace
}  // namespace megaslide
