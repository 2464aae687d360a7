// What the finetune program does with its arguments: train, probe, or test itself.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/run_tool.h"

namespace megaslide {

struct FinetuneArguments {
  std::string config, resume, machine, trace, out, probe, model;
  std::vector<std::string> sets, allowed_changes;
  int64_t steps = 0, jitter_runs = 0;
  bool self_test = false, jitter = false;
};

int finetune(Tool& tool, const FinetuneArguments& arguments);

}  // namespace megaslide
