// The flow-matching process (spec wan.md D.1, E.1): x_σ = (1−σ)·x0 + σ·n, velocity v = n − x0, model time t = 1000σ.
// All randomness is a pure function of the seed and of what it is for, whatever the order and the threads.
#pragma once
#include <cstdint>
#include <span>

#include "base/philox.h"
#include "config/objective.h"

namespace megaslide {

// S_s(u) = s·u / (1 + (s−1)·u): moves u in [0, 1] towards 1 for s > 1.
inline double shift_sigma(double u, double shift) { return shift * u / (1 + (shift - 1) * u); }
// Its inverse.
inline double unshift_sigma(double sigma, double shift) { return sigma / (shift - (shift - 1) * sigma); }

inline double timestep_of_sigma(double sigma) { return 1000 * sigma; }
inline double sigma_of_timestep(double timestep) { return timestep / 1000; }

// How training samples draw σ in (0, 1). σ = S_shift(u) with u as config/objective.h says, cut to a slice: outside it
// nothing is drawn, inside the shape of the density stays.
struct TimestepDistribution {
  TimestepSampling sampling = TimestepSampling::kLogitNormal;
  double mean = 0, scale = 1;  // of the logit: kLogitNormal; kSigmoid and kShift have mean 0
  double mode_scale = 1.29;
  double shift = 1;
  double low = 0, high = 1;  // the slice; the fp32 timestep of every σ drawn is ≥ 1000·low and, unless high is 1, < 1000·high
};

// Share of the whole distribution below `sigma`, in [0, 1].
double sigma_cdf(const TimestepDistribution& distribution, double sigma);
// The σ below which the share p in (0, 1) of the whole distribution lies.
double sigma_quantile(const TimestepDistribution& distribution, double p);
// A usage Error where the slice holds less than a millionth of the distribution: its quantiles would be noise.
void require_slice(const TimestepDistribution& distribution);

// The factor w(σ) of a sample's loss (spec wan.md E.2).
class LossWeight {
 public:
  struct Options {
    LossWeighting scheme = LossWeighting::kNone;
    double mean = 0, scale = 1;  // of the logit: kLogitNormal
    double mode_scale = 1.29;
    double shift = 1;            // kBell has mean 1 over S_shift(k/1000), k = 1 … 1000
  };
  explicit LossWeight(const Options& options);
  double operator()(double sigma) const;

 private:
  Options options_;
  double bell_ = 1;  // factor of the bell
};

// Names one sample of a run for the generator by two numbers below 2^32: its epoch and its place in the cache, or its step
// and its number there.
uint64_t sample_series(int64_t epoch, int64_t sample);

// σ of one sample by inversion of the distribution, keyed by RandomPurpose::kSigma. `stratum` of `strata`: within that
// quantile of the slice.
double draw_sigma(const TimestepDistribution& distribution, uint64_t seed, uint64_t series, int64_t stratum = 0, int64_t strata = 1);

// True with probability `rate`: this sample trains on the empty caption. Keyed by RandomPurpose::kDropout.
bool draw_caption_dropout(double rate, uint64_t seed, uint64_t series);

// Standard normal numbers by Box–Muller, four a Philox block: element i depends on (seed, purpose, series, i) alone.
void fill_normal(std::span<float> out, uint64_t seed, RandomPurpose purpose, uint64_t series);

// x = (1−σ)·x0 + σ·noise and target = noise − x0, rounded once to fp32. x may alias noise or x0, target not.
void add_noise(std::span<float> x, std::span<float> target, std::span<const float> x0, std::span<const float> noise,
               double sigma);

// Classifier-free guidance (D.5): velocity ← unconditional + scale·(velocity − unconditional).
void apply_guidance(std::span<float> velocity, std::span<const float> unconditional, double scale);

}  // namespace megaslide
