// Where a network's state lives: per module one slab each of weights, masters, moments and gradients, in host memory.
//
// Modules are numbered 0 = embedding, 1 … L = layers, L + 1 = head. All slabs of a module share its ParamLayout. The
// state codecs are those of spec engine.md §1: the compute weight w is a cache of the fp32 master p, rounded to the nearest
// bf16 (ties away from zero: see kernels/adamw/adamw.h), or itself the master (bf16-sr).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/adamw/adamw.h"
#include "model/layer.h"
#include "stream/host_memory.h"

namespace megaslide {

class ModelDirectory;
class ThreadPool;

struct HostStoreOptions {
  DType compute_dtype = DType::kBF16;  // of the weights that are uploaded; kF32: the masters themselves are uploaded
  bool training = false;               // without it there are weights only
  MasterCodec masters = MasterCodec::kSplit;
  DType gradients = DType::kBF16;
  bool simulated = false;              // addresses without memory, for plans
  // Not 0: layer l's weights share slab l mod streamed_slots, which a WeightReader fills just ahead of their upload. For
  // models larger than memory; without training only.
  int streamed_slots = 0;
  // Not 0: module m's gradient lies in slab m mod gradient_slots, which is free again once its update has run. For updates
  // that do not wait for the whole backward.
  int gradient_slots = 0;
  MomentCodec moments = MomentCodec::kFp32;
};

// Slabs of layout.elements elements; nullptr where the codec has none.
struct ModuleState {
  const Module* module = nullptr;
  std::string prefix;             // of the parameter names: "", "blocks.3."
  void* weights = nullptr;        // compute_dtype
  int16_t* remainder = nullptr;   // kSplit
  float* master = nullptr;        // kFp32; the same memory as `weights` where compute_dtype is F32
  void* exp_avg = nullptr;        // of the moment codec
  void* exp_avg_sq = nullptr;
  float* exp_avg_scale = nullptr;     // kInt8: of each parameter its blocks, from scale_at on
  float* exp_avg_sq_scale = nullptr;
  std::vector<int64_t> scale_at;      // a parameter
  void* gradient = nullptr;
};

struct HostLedger {
  int64_t weights = 0, masters = 0, moments = 0, gradients = 0;
  int64_t total() const { return weights + masters + moments + gradients; }
};

class HostStore {
 public:
  // Throws Error when memory cannot be had.
  HostStore(const Network& network, const HostStoreOptions& options);

  const HostStoreOptions& options() const { return options_; }
  int modules() const { return static_cast<int>(states_.size()); }
  ModuleState& module(int i) { return states_[static_cast<size_t>(i)]; }
  const ModuleState& module(int i) const { return states_[static_cast<size_t>(i)]; }
  const HostLedger& ledger() const { return ledger_; }

  // The fp32 master of elements [begin, begin + n) of a module, and its replacement (which rounds the weight anew).
  void read_master(ThreadPool& pool, int module, int64_t begin, int64_t n, float* out) const;
  void write_master(ThreadPool& pool, int module, int64_t begin, int64_t n, const float* in);

  // The arrays of one parameter of a module.
  AdamWState optimizer_state(int module, size_t parameter) const;
  // Its moments in fp32.
  void read_moments(ThreadPool& pool, int module, size_t parameter, float* m, float* v) const;
  void write_first_moment(ThreadPool& pool, int module, size_t parameter, const float* m);
  void write_second_moment(ThreadPool& pool, int module, size_t parameter, const float* v);

 private:
  HostStoreOptions options_;
  std::vector<ModuleState> states_;
  HostLedger ledger_;
  HostMemory memory_;
};

// Fills masters and weights from a model directory, tensor by tensor; of a checkpoint its masters, and where the store is
// for training and `moments` is true Adam's moments too. Of a streamed store the embedding and the head alone.
void load_state(HostStore& store, const ModelDirectory& directory, ThreadPool& pool, bool moments);

}  // namespace megaslide
