// State of layers on disk: the file, and the memory through which it passes.
//
// In the file each layer has its parts, one extent each (io/block_file.h). In memory there are, of the largest layer's size:
//   S + 1 slabs of weights, S the pipeline's slots: those that are uploaded from, and one into which the next are read
//   2 slabs of the rest, masters, moments and scales: one at the optimizer, one on its way to or from the disk
//   3 slabs of gradients: one is filled, one is on its way, one is used
// Which slab a layer's part lies in is decided when work is queued (stream/state_traffic.h), or for the time of a visit.
#pragma once
#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/block_file.h"

namespace megaslide {

// What a module's state consists of; which of them there are depends on the codecs.
enum class StatePart { kWeights, kMaster, kExpAvg, kExpAvgSq, kExpAvgScale, kExpAvgSqScale, kGradient };
constexpr size_t kStateParts = 7;
using PartBytes = std::array<int64_t, kStateParts>;   // 0: there is none
using PartMemory = std::array<void*, kStateParts>;

// Parts that travel together.
enum PartGroup : unsigned { kWeightsGroup = 1, kRestGroup = 2, kGradientGroup = 4 };
constexpr PartGroup group_of(StatePart p) {
  return p == StatePart::kWeights ? kWeightsGroup : p == StatePart::kGradient ? kGradientGroup : kRestGroup;
}

constexpr int kRestSlabs = 2, kTierGradientSlabs = 3;

class StateTier {
 public:
  struct Layer {
    std::string name;  // "blocks.3."
    PartBytes bytes;
  };
  // Parts of which a layer has 0 bytes are not kept. directory: empty for plans, there is no file then.
  StateTier(const std::vector<Layer>& layers, int weight_slabs, const std::string& directory, const BlockFileOptions& options);

  int weight_slabs() const { return static_cast<int>(weights_.size()); }
  // Bytes that slab must have for a part of any layer.
  const PartBytes& slab_bytes() const { return slab_bytes_; }
  void set_weight_slab(int slab, void* memory) { weights_[static_cast<size_t>(slab)] = memory; }
  void set_rest_slab(int slab, StatePart part, void* memory) { rest_[static_cast<size_t>(slab)][static_cast<size_t>(part)] = memory; }
  void set_gradient_slab(int slab, void* memory) { gradients_[static_cast<size_t>(slab)] = memory; }
  void* weight_slab(int slab) const { return weights_[static_cast<size_t>(slab)]; }
  void* rest_slab(int slab, StatePart part) const { return rest_[static_cast<size_t>(slab)][static_cast<size_t>(part)]; }
  void* gradient_slab(int slab) const { return gradients_[static_cast<size_t>(slab)]; }
  // Once all slabs are set.
  void register_slabs();

  int64_t file_bytes() const { return file_bytes_; }
  std::string describe() const;  // how much lies where, and how it is reached

  // A layer's parts of these groups, between the file and `memory`.
  std::vector<BlockFile::Transfer> transfers(int layer, unsigned groups, const PartMemory& memory) const;
  int64_t bytes(int layer, unsigned groups) const;
  void read(const std::vector<BlockFile::Transfer>& t) const { file_->read(t); }
  void write(const std::vector<BlockFile::Transfer>& t) const { file_->write(t); }

  // A slab of weights and one of the rest, of the same number, for a visit; waits until one is free.
  int take_visit();
  void end_visit(int slab);

 private:
  std::vector<Layer> layers_;
  std::vector<std::array<int, kStateParts>> extents_;  // -1: none
  PartBytes slab_bytes_ = {};
  std::vector<void*> weights_;
  std::array<PartMemory, kRestSlabs> rest_ = {};
  std::array<void*, kTierGradientSlabs> gradients_ = {};
  int64_t file_bytes_ = 0;
  std::unique_ptr<BlockFile> file_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::array<bool, kRestSlabs> visited_ = {};
};

}  // namespace megaslide
