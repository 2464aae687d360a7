// Measuring a machine: the rates that the planner reckons with, from the kernels of this build themselves.
#pragma once
#include <cstdint>
#include <string>

#include "base/stop.h"
#include "config/machine_config.h"
#include "config/model_config.h"
#include "model/layer.h"

namespace megaslide {

struct CalibrationOptions {
  int threads = 1;
  // Products, attention and elementwise kernels are measured inside a block of this model at this size: what they reach
  // depends on both.
  ModelConfig model;
  BatchShape shape;
  std::string scratch_dir;  // where the disk is measured; empty: it is not
  Backend backend = Backend::kCpu;  // kCuda: of a program with CUDA
};

// Sizes of this machine and the rate of its matrix units, in a tenth of a second; every other rate is not known (0). With a
// CUDA device sizes alone.
MachineConfig this_machine(int threads, Backend backend = Backend::kCpu);

// Another machine's rates with the memory, threads and free disk (at `directory`) of this one.
MachineConfig sized_like_this_machine(MachineConfig machine, int threads, const std::string& directory);

// About ten seconds. Each figure is the median of repeats.
MachineConfig calibrate(const CalibrationOptions& options, const StopToken& stop);

}  // namespace megaslide
