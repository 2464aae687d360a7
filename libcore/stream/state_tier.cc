#include "stream/state_tier.h"

#include <algorithm>
#include <span>

#include "base/atomic_file.h"
#include "base/error.h"

namespace megaslide {
namespace {

constexpr const char* kPartNames[kStateParts] = {"weights", "masters", "first moments", "second moments", "scales of first moments",
                                                 "scales of second moments", "gradients"};

}  // namespace

StateTier::StateTier(const std::vector<Layer>& layers, int weight_slabs, const std::string& directory, const BlockFileOptions& options)
    : layers_(layers), weights_(static_cast<size_t>(weight_slabs), nullptr) {
  std::vector<BlockExtent> extents;
  for (const Layer& l : layers_) {
    auto& of_layer = extents_.emplace_back();
    for (size_t p = 0; p < kStateParts; ++p) {
      of_layer[p] = l.bytes[p] > 0 ? static_cast<int>(extents.size()) : -1;
      if (l.bytes[p] > 0) extents.push_back({l.name + " " + kPartNames[p], l.bytes[p]});
      slab_bytes_[p] = std::max(slab_bytes_[p], l.bytes[p]);
    }
  }
  file_bytes_ = BlockFile::file_bytes(extents);
  if (!directory.empty()) file_ = std::make_unique<BlockFile>(directory, std::move(extents), options);
}

void StateTier::register_slabs() {
  if (!file_) return;
  std::vector<std::span<std::byte>> areas;
  const auto add = [&](void* memory, StatePart part) {
    const int64_t bytes = (slab_bytes_[static_cast<size_t>(part)] + kBlockAlign - 1) / kBlockAlign * kBlockAlign;
    if (memory && bytes > 0) areas.emplace_back(static_cast<std::byte*>(memory), static_cast<size_t>(bytes));
  };
  for (void* w : weights_) add(w, StatePart::kWeights);
  for (const PartMemory& slab : rest_)
    for (size_t p = 0; p < kStateParts; ++p) add(slab[p], static_cast<StatePart>(p));
  for (void* g : gradients_) add(g, StatePart::kGradient);
  file_->register_memory(areas);
}

std::string StateTier::describe() const {
  return file_ ? fmt::format("{} of layers' state on disk at {} ({})", format_bytes(file_bytes_), file_->path(), file_->method()) : "";
}

std::vector<BlockFile::Transfer> StateTier::transfers(int layer, unsigned groups, const PartMemory& memory) const {
  std::vector<BlockFile::Transfer> all;
  for (size_t p = 0; p < kStateParts; ++p) {
    const int extent = extents_[static_cast<size_t>(layer)][p];
    if (extent >= 0 && (groups & group_of(static_cast<StatePart>(p)))) all.push_back({extent, memory[p]});
  }
  return all;
}

int64_t StateTier::bytes(int layer, unsigned groups) const {
  int64_t bytes = 0;
  for (size_t p = 0; p < kStateParts; ++p)
    if (groups & group_of(static_cast<StatePart>(p))) bytes += (layers_[static_cast<size_t>(layer)].bytes[p] + kBlockAlign - 1) / kBlockAlign * kBlockAlign;
  return bytes;
}

int StateTier::take_visit() {
  std::unique_lock lock(mutex_);
  const auto free = [&] { return std::find(visited_.begin(), visited_.end(), false) - visited_.begin(); };
  freed_.wait(lock, [&] { return free() < kRestSlabs; });
  const auto slab = static_cast<size_t>(free());
  visited_[slab] = true;
  return static_cast<int>(slab);
}

void StateTier::end_visit(int slab) {
  {
    const std::lock_guard lock(mutex_);
    visited_[static_cast<size_t>(slab)] = false;
  }
  freed_.notify_one();
}

}  // namespace megaslide
