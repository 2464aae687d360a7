#include "diffusion/flow_matching.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace megaslide {
namespace {

constexpr double kPi = 3.141592653589793, kTwoPi = 6.283185307179586;

// The root of a rising function in [low, high]: halved until neighbours in fp64 remain.
template <class F>
double rising_root(double low, double high, F&& f) {
  for (int i = 0; i < 100; ++i) {
    const double middle = 0.5 * (low + high);
    if (middle <= low || middle >= high) break;
    (f(middle) < 0 ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }
// |z| < 8.3 for every p that fp64 tells from 0 and 1; erfc keeps the lower tail exact, symmetry the upper one.
double normal_quantile(double p) {
  if (p > 0.5) return -normal_quantile(1 - p);
  return rising_root(-40, 0.1, [p](double z) { return normal_cdf(z) - p; });
}
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double logit(double u) { return std::log(u / (1 - u)); }

// The mode map of SD3 turned round, f(1 − p): rises from 0 to 1, and its inverse is the distribution function of u.
double mode_map(double p, double s) {
  const double sine = std::sin(0.5 * kPi * p);
  return p - s * (sine * sine - p);
}
double mode_slope(double p, double s) { return 1 + s - s * 0.5 * kPi * std::sin(kPi * p); }
double mode_inverse(double u, double s) {
  return rising_root(0, 1, [u, s](double p) { return mode_map(p, s) - u; });
}

double logit_normal_density(double u, double mean, double scale) {
  if (u <= 0 || u >= 1) return 0;
  const double z = (logit(u) - mean) / scale;
  return std::exp(-0.5 * z * z) / (scale * std::sqrt(kTwoPi) * u * (1 - u));
}

double bell(double sigma) {
  const double d = sigma - 0.5;
  return std::exp(-2 * d * d) - std::exp(-0.5);
}

bool has_logit(TimestepSampling s) { return s != TimestepSampling::kUniform && s != TimestepSampling::kMode; }
double mean_of(const TimestepDistribution& d) { return d.sampling == TimestepSampling::kLogitNormal ? d.mean : 0; }
double shift_of(const TimestepDistribution& d) { return d.sampling == TimestepSampling::kSigmoid ? 1 : d.shift; }

}  // namespace

double sigma_cdf(const TimestepDistribution& d, double sigma) {
  if (sigma <= 0) return 0;
  if (sigma >= 1) return 1;
  const double u = unshift_sigma(sigma, shift_of(d));
  if (has_logit(d.sampling)) return normal_cdf((logit(u) - mean_of(d)) / d.scale);
  return d.sampling == TimestepSampling::kMode ? mode_inverse(u, d.mode_scale) : u;
}

double sigma_quantile(const TimestepDistribution& d, double p) {
  double u = p;
  if (has_logit(d.sampling)) u = sigmoid(mean_of(d) + d.scale * normal_quantile(p));
  if (d.sampling == TimestepSampling::kMode) u = mode_map(p, d.mode_scale);
  return shift_sigma(u, shift_of(d));
}

void require_slice(const TimestepDistribution& d) {
  const double mass = sigma_cdf(d, d.high) - sigma_cdf(d, d.low);
  if (mass >= 1e-6) return;
  throw usage_error(fmt::format("timesteps from {} to {} hold {:.2g} of the distribution: next to none would be drawn there", 1000 * d.low, 1000 * d.high,
                                std::max(0.0, mass)),
                    "widen train.min_timestep and train.max_timestep, or choose another train.timestep_sampling or train.flow_shift");
}

LossWeight::LossWeight(const Options& options) : options_(options) {
  if (options.scheme != LossWeighting::kBell) return;
  double sum = 0;
  for (int k = 1; k <= 1000; ++k) sum += bell(shift_sigma(k / 1000.0, options.shift));
  bell_ = 1000 / sum;
}

double LossWeight::operator()(double sigma) const {
  switch (options_.scheme) {
    case LossWeighting::kNone: return 1;
    case LossWeighting::kSigmaSqrt: {
      const double s = std::max(sigma, 0.001);
      return 1 / (s * s);
    }
    case LossWeighting::kCosmap: return 2 / (kPi * (1 - 2 * sigma + 2 * sigma * sigma));
    case LossWeighting::kLogitNormal: return logit_normal_density(sigma, options_.mean, options_.scale);
    case LossWeighting::kMode: return 1 / mode_slope(mode_inverse(sigma, options_.mode_scale), options_.mode_scale);
    case LossWeighting::kBell: return bell_ * bell(sigma);
  }
  return 1;
}

uint64_t sample_series(int64_t epoch, int64_t sample) {
  MS_CHECK(epoch >= 0 && epoch >> 32 == 0 && sample >= 0 && sample >> 32 == 0);
  return static_cast<uint64_t>(epoch) << 32 | static_cast<uint64_t>(sample);
}

double draw_sigma(const TimestepDistribution& d, uint64_t seed, uint64_t series, int64_t stratum, int64_t strata) {
  const auto words = Random(seed, RandomPurpose::kSigma).bits(series, 0);
  const double unit = (static_cast<double>(uint64_t{words[0]} << 20 | words[1] >> 12) + 0.5) * 0x1p-52;
  const double low = sigma_cdf(d, d.low), high = sigma_cdf(d, d.high);
  const double p = low + (high - low) * (static_cast<double>(stratum) + unit) / static_cast<double>(strata);
  // What rounding could carry over an edge of the slice.
  float first = static_cast<float>(1000 * d.low), last = static_cast<float>(1000 * d.high);
  if (static_cast<double>(first) < 1000 * d.low) first = std::nextafter(first, 2000.0F);
  if (d.high < 1 && static_cast<double>(last) >= 1000 * d.high) last = std::nextafter(last, 0.0F);
  return std::clamp(sigma_quantile(d, std::clamp(p, 0x1p-60, 1 - 0x1p-53)), static_cast<double>(first) / 1000, static_cast<double>(last) / 1000);
}

bool draw_caption_dropout(double rate, uint64_t seed, uint64_t series) {
  return Random(seed, RandomPurpose::kDropout).uniform(series, 0) < rate;
}

void fill_normal(std::span<float> out, uint64_t seed, RandomPurpose purpose, uint64_t series) {
  const Random random(seed, purpose);
  for (size_t begin = 0; begin < out.size(); begin += 4) {
    const auto words = random.bits(series, begin / 4);
    float values[4];
    for (size_t pair = 0; pair < 4; pair += 2) {
      const double radius = std::sqrt(-2 * std::log(Random::to_unit(words[pair])));
      const double angle = kTwoPi * Random::to_unit(words[pair + 1]);
      values[pair] = static_cast<float>(radius * std::cos(angle));
      values[pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
    const size_t n = std::min<size_t>(4, out.size() - begin);
    std::copy(values, values + n, out.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

void add_noise(std::span<float> x, std::span<float> target, std::span<const float> x0, std::span<const float> noise,
               double sigma) {
  MS_CHECK(x.size() == x0.size() && x.size() == noise.size() && x.size() == target.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double clean = x0[i], n = noise[i];
    target[i] = static_cast<float>(n - clean);
    x[i] = static_cast<float>((1 - sigma) * clean + sigma * n);
  }
}

void apply_guidance(std::span<float> velocity, std::span<const float> unconditional, double scale) {
  MS_CHECK(velocity.size() == unconditional.size());
  for (size_t i = 0; i < velocity.size(); ++i) {
    const double u = unconditional[i];
    velocity[i] = static_cast<float>(u + scale * (velocity[i] - u));
  }
}

}  // namespace megaslide
