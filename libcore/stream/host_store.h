// Where a network's state lives: per module one slab each of weights, masters, moments and gradients, in host memory; or,
// of the layers, on disk (stream/state_tier.h), from where it is brought to memory when it is needed.
//
// Modules are numbered 0 = embedding, 1 … L = layers, L + 1 = head. All slabs of a module share its ParamLayout. The
// state codecs are those of spec engine.md §1: the compute weight w is a cache of the fp32 master p, rounded to the nearest
// bf16 (ties away from zero: see kernels/adamw/adamw.h), or itself the master (bf16-sr).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "kernels/adamw/adamw.h"
#include "model/layer.h"
#include "stream/host_memory.h"
#include "stream/state_tier.h"

namespace megaslide {

class ModelDirectory;

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
  // Layers lie on disk, in a file of this folder; embedding and head in memory. For training only.
  bool on_disk = false;
  std::string tier_path = {};
  int slots = 2;  // on disk: of the pipeline
  BlockFileOptions block_file = {};
};

// Slabs of layout.elements elements; nullptr where the codec has none. Of a layer that lies on disk they are those that it was
// last brought to: whose they are meanwhile is known to StateTraffic, or for the time of a visit.
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
  int64_t disk = 0;  // bytes of the file in which layers lie
  int64_t total() const { return weights + masters + moments + gradients; }
};

class HostStore {
 public:
  // Throws Error when memory, or space on disk, cannot be had.
  HostStore(const Network& network, const HostStoreOptions& options);

  const HostStoreOptions& options() const { return options_; }
  int modules() const { return static_cast<int>(states_.size()); }
  ModuleState& module(int i) { return states_[static_cast<size_t>(i)]; }
  const ModuleState& module(int i) const { return states_[static_cast<size_t>(i)]; }
  const HostLedger& ledger() const { return ledger_; }
  // Slabs of weights and gradients, or of the whole state, for the device to lock in memory.
  PinnedMemory pin(Device& device, bool whole_state) const { return PinnedMemory(device, memory_.spans(whole_state)); }

  // Calls `work` with the module's weights, masters and moments in memory (of a gradient, only where it lies in memory); what
  // it changes stays, also on disk. Several threads may visit different modules, each one at a time; no step may be under way.
  void read_module(int module, FunctionRef<void(const ModuleState&)> work) const;
  void change_module(int module, FunctionRef<void(ModuleState&)> work);

  // What follows needs the module in memory.

  // The fp32 master of elements [begin, begin + n) of a module, and its replacement (which rounds the weight anew).
  void read_master(ThreadPool& pool, int module, int64_t begin, int64_t n, float* out) const;
  void write_master(ThreadPool& pool, int module, int64_t begin, int64_t n, const float* in);

  // Moments of elements [first, first + n) of a parameter in fp32; `first` is a multiple of kMomentBlock.
  void read_first_moment(ThreadPool& pool, int module, size_t parameter, int64_t first, int64_t n, float* m) const;
  void read_second_moment(ThreadPool& pool, int module, size_t parameter, int64_t first, int64_t n, float* v) const;
  void write_first_moment(ThreadPool& pool, int module, size_t parameter, int64_t first, int64_t n, const float* m);
  void write_second_moment(ThreadPool& pool, int module, size_t parameter, int64_t first, int64_t n, const float* v);

  // For StateTraffic. The tier is nullptr where all lies in memory.
  StateTier* tier() const { return tier_.get(); }
  bool on_disk(int module) const { return tier_ && module > 0 && module < modules() - 1; }
  // From now on the module's parts are those in these slabs.
  void place_weights(int module, int slab) const;
  void place_rest(int module, int slab) const;
  // Between the disk and the module's slabs as they are now.
  std::vector<BlockFile::Transfer> transfers(int module, unsigned groups) const;
  int64_t tier_bytes(int module, unsigned groups) const { return tier_->bytes(module - 1, groups); }

 private:
  PartBytes part_bytes(const Module& module) const;
  int64_t& category(StatePart part);
  void add_module(const Module& module, std::string prefix, void* streamed, const std::vector<void*>& gradients);
  void make_tier(const Network& network);
  void visit(int module, bool change, FunctionRef<void(ModuleState&)> work) const;
  // A visited or resident module.
  const ModuleState& in_memory(int module) const;
  // Where element `first` of a parameter's moments lies.
  AdamWState moments_at(int module, size_t parameter, int64_t first) const;

  HostStoreOptions options_;
  mutable std::vector<ModuleState> states_;  // where a module lies changes with visits, not what it is
  mutable std::vector<char> visited_;
  HostLedger ledger_;
  HostMemory memory_;
  std::unique_ptr<StateTier> tier_;  // last: its file is closed before the memory of its transfers goes
};

// The arrays of one parameter of a module.
AdamWState optimizer_state(const HostStoreOptions& options, const ModuleState& s, size_t parameter);

// Elements of a parameter that load_state() and the hash hold in fp32 at a time.
constexpr int64_t kStatePiece = 1 << 20;
static_assert(kStatePiece % kMomentBlock == 0);

// Fills masters and weights from a model directory, tensor by tensor; of a checkpoint its masters, and where the store is
// for training and `moments` is true Adam's moments too. Of a streamed store the embedding and the head alone.
void load_state(HostStore& store, const ModelDirectory& directory, ThreadPool& pool, bool moments);

}  // namespace megaslide
