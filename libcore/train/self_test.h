// `finetune --self-test`: the same few steps under every schedule must end in the same bits.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "kernels/stream.h"

namespace megaslide {

struct SelfTestComparison {
  std::string name;      // "async = sync"
  std::string expected, got;
  bool equal() const { return expected == got; }
};

struct SelfTestOptions {
  ModelConfig model;
  int threads = 2;
  Backend backend = Backend::kCpu;  // kCuda: of a program with CUDA
  int jitter_runs = 0;          // additional runs in which every task is delayed at random
  std::string scratch_dir;      // for the checkpoint of the resume test; must exist
};

// Runs each comparison and reports it through `report` as it ends. Returns all of them.
std::vector<SelfTestComparison> self_test(const SelfTestOptions& options,
                                          const std::function<void(const SelfTestComparison&)>& report);

// A model small enough for a self-test of seconds: two dsa layers and a dense one.
ModelConfig self_test_model();

}  // namespace megaslide
