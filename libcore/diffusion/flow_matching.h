// The flow-matching process (spec wan.md D.1, E.1): x_σ = (1−σ)·x0 + σ·n, velocity v = n − x0, model time t = 1000σ.
// All randomness is a pure function of the seed and of what it is for, whatever the order and the threads.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "base/philox.h"

namespace megaslide {

// S_s(u) = s·u / (1 + (s−1)·u): moves u in [0, 1] towards 1 for s > 1.
inline double shift_sigma(double u, double shift) { return shift * u / (1 + (shift - 1) * u); }
// Its inverse.
inline double unshift_sigma(double sigma, double shift) { return sigma / (shift - (shift - 1) * sigma); }

inline double timestep_of_sigma(double sigma) { return 1000 * sigma; }
inline double sigma_of_timestep(double timestep) { return timestep / 1000; }

// How a training step draws u before σ = S_shift(u).
enum class TimestepSampling {
  kLogitNormal,  // sigmoid(mean + scale·N(0,1))
  kUniform,      // U(0, 1)
};
TimestepSampling parse_timestep_sampling(std::string_view name);  // logit_normal | uniform; a usage Error otherwise
const char* timestep_sampling_name(TimestepSampling s);

struct TimestepDistribution {
  TimestepSampling sampling = TimestepSampling::kLogitNormal;
  double mean = 0, scale = 1;  // of the logit
  double shift = 1;
};

// Names one sample of a run for the generator: step < 2^32, micro-batch and sample < 2^16.
uint64_t sample_series(int64_t step, int64_t micro, int64_t sample);

// σ in (0, 1) of one sample, keyed by RandomPurpose::kSigma.
double draw_sigma(const TimestepDistribution& distribution, uint64_t seed, uint64_t series);

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
