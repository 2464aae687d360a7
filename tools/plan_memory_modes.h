// What plan-memory does, by mode.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/run_tool.h"

namespace megaslide {

struct PlanArguments {
  std::string model, machine, run, out, trace;
  std::vector<std::string> sets;
  int64_t num_frames = 0, width = 0, height = 0;
  bool calibrate = false, fit = false;
};

// A plan; with `fit` what fits; with `calibrate` this machine's rates. Returns the exit status.
int plan_memory(Tool& tool, const PlanArguments& o);

}  // namespace megaslide
