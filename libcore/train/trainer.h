// The training run: steps, metrics, validation, samples, checkpoints, resume.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/stop.h"
#include "config/run_config.h"
#include "kernels/stream.h"
#include "train/metrics.h"

namespace megaslide {

struct TrainerOptions {
  int threads = 1;
  StopToken stop;                    // the step in hand is finished and checkpointed
  std::string trace_path;            // empty: no trace
  double peak_flops = 0;             // of the machine, for MFU and HFU; 0: not known, both are 0
  std::vector<std::string> allowed_changes;  // configuration keys that may differ on resume
  double jitter = 0;                 // seconds, race tests
  Backend backend = Backend::kCpu;   // kCuda: of a program with CUDA
};

struct TrainSummary {
  int64_t first_step = 0, last_step = 0;  // of this run; last < first: nothing was left to do
  int64_t resumed_from = 0;
  double first_loss = 0, last_loss = 0;   // means over up to 10 steps at either end, skipped ones left out
  double step_seconds = 0;                // median
  double tokens_per_second = 0;
  int64_t skipped = 0;
  int64_t device_peak_bytes = 0, host_peak_bytes = 0;
  std::string checkpoint;                 // the last one written
  std::string state_hash;
  bool stopped = false;                   // by the stop token
};

// `run` is complete (require_for_training) and supported. Throws Error; what was checkpointed before is whole. `on_step`
// follows every step, before its checkpoint.
TrainSummary run_training(const RunConfig& run, const TrainerOptions& options,
                          const std::function<void(const StepMetrics&)>& on_step = {});

}  // namespace megaslide
