// Learning rate schedules: linear warm-up, then constant, cosine to zero, or linear to zero.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "config/run_config.h"

namespace megaslide {

// Rate of step `step` (from 1). Warm-up step s has rate · s / warmup, so that no step has rate 0.
inline double learning_rate_at(const RunConfig& run, int64_t step) {
  const double rate = run.optimizer.learning_rate;
  const int64_t warmup = run.optimizer.lr_warmup_steps;
  if (step <= warmup) return rate * static_cast<double>(step) / static_cast<double>(warmup);
  const auto span = static_cast<double>(std::max<int64_t>(1, run.train.max_train_steps - warmup));
  const double progress = std::min(1.0, static_cast<double>(step - 1 - warmup) / span);
  switch (run.optimizer.lr_scheduler) {
    case RunConfig::LrScheduler::kConstant: return rate;
    case RunConfig::LrScheduler::kCosine: return rate * 0.5 * (1 + std::cos(3.141592653589793 * progress));
    case RunConfig::LrScheduler::kLinear: return rate * (1 - progress);
  }
  return rate;
}

}  // namespace megaslide
