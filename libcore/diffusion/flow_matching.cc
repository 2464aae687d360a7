#include "diffusion/flow_matching.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace megaslide {
namespace {
constexpr double kTwoPi = 6.283185307179586;
}

TimestepSampling parse_timestep_sampling(std::string_view name) {
  if (name == "logit_normal") return TimestepSampling::kLogitNormal;
  if (name == "uniform") return TimestepSampling::kUniform;
  throw usage_error(fmt::format("unknown timestep sampling '{}'", name), "use logit_normal or uniform");
}

const char* timestep_sampling_name(TimestepSampling s) {
  return s == TimestepSampling::kUniform ? "uniform" : "logit_normal";
}

uint64_t sample_series(int64_t step, int64_t micro, int64_t sample) {
  MS_CHECK(step >= 0 && step >> 32 == 0 && micro >= 0 && micro >> 16 == 0 && sample >= 0 && sample >> 16 == 0);
  return static_cast<uint64_t>(step) << 32 | static_cast<uint64_t>(micro) << 16 | static_cast<uint64_t>(sample);
}

double draw_sigma(const TimestepDistribution& distribution, uint64_t seed, uint64_t series) {
  const Random random(seed, RandomPurpose::kSigma);
  double u = random.uniform(series, 0);
  if (distribution.sampling == TimestepSampling::kLogitNormal)
    u = 1 / (1 + std::exp(-(distribution.mean + distribution.scale * random.normal(series, 1))));
  return shift_sigma(u, distribution.shift);
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
