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

TEST(FlowMatching, SigmaDistributions) {
  std::vector<double> logits, uniforms;
  for (int64_t step = 0; step < 2500; ++step)
    for (int64_t micro = 0; micro < 2; ++micro)
      for (int64_t sample = 0; sample < 2; ++sample) {
        const auto series = sample_series(step, micro, sample);
        const double u = unshift_sigma(draw_sigma({.shift = 3}, 7, series), 3);
        ASSERT_GT(u, 0);
        ASSERT_LT(u, 1);
        logits.push_back(std::log(u / (1 - u)));
        uniforms.push_back(draw_sigma({.sampling = TimestepSampling::kUniform}, 7, series));
      }
  EXPECT_LT(distance(logits, normal_cdf), 1.63);
  EXPECT_LT(distance(uniforms, [](double x) { return x; }), 1.63);
}

TEST(FlowMatching, DrawsAreKeyedByAllTheyAreFor) {
  const TimestepDistribution d;
  const double base = draw_sigma(d, 1, sample_series(5, 2, 1));
  EXPECT_EQ(base, draw_sigma(d, 1, sample_series(5, 2, 1)));
  EXPECT_NE(base, draw_sigma(d, 2, sample_series(5, 2, 1)));
  EXPECT_NE(base, draw_sigma(d, 1, sample_series(6, 2, 1)));
  EXPECT_NE(base, draw_sigma(d, 1, sample_series(5, 3, 1)));
  EXPECT_NE(base, draw_sigma(d, 1, sample_series(5, 2, 0)));
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
  for (int64_t i = 0; i < 10000; ++i) dropped += draw_caption_dropout(0.1, 5, sample_series(i, 0, 0));
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

TEST(FlowMatching, Names) {
  for (const auto s : {TimestepSampling::kLogitNormal, TimestepSampling::kUniform})
    EXPECT_EQ(parse_timestep_sampling(timestep_sampling_name(s)), s);
  EXPECT_THROW(parse_timestep_sampling("sigmoid"), Error);
}

}  // namespace
}  // namespace megaslide
