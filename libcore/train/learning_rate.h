// Learning rate schedules: linear warm-up, then constant, cosine to zero, or linear to zero.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace megaslide {

enum class LrScheduler { kConstant, kCosine, kLinear };

// Rate of step `step` (from 1) out of `total`. Warm-up step s has rate · s / warmup, so that no step has rate 0.
inline double learning_rate_at(LrScheduler scheduler, double rate, int64_t step, int64_t warmup, int64_t total) {
  if (step <= warmup) return rate * static_cast<double>(step) / static_cast<double>(warmup);
  const double span = static_cast<double>(std::max<int64_t>(1, total - warmup));
  const double progress = std::min(1.0, static_cast<double>(step - 1 - warmup) / span);
  switch (scheduler) {
    case LrScheduler::kConstant: return rate;
    case LrScheduler::kCosine: return rate * 0.5 * (1 + std::cos(3.141592653589793 * progress));
    case LrScheduler::kLinear: return rate * (1 - progress);
  }
  return rate;
}

}  // namespace megaslide
