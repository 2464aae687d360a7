#include "stream/weight_slots.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace megaslide {

WeightSlots::WeightSlots(Device& device, const Network& network, const HostStore& store, bool training, int slots,
                         bool upload_again, Hooks hooks, const TakeMemory& take)
    : device_(device), store_(store), training_(training), layers_(static_cast<int>(network.layers.size())), upload_again_(upload_again),
      hooks_(std::move(hooks)) {
  const DType dtype = store.options().compute_dtype;
  const auto packed = [&](const Module& m) { return m.packed_bytes(dtype, training); };
  const auto make = [&](int64_t elements, int64_t packed_bytes, const std::string& name) {
    WeightSlot s;
    if (!device.shares_host_memory()) s.buffer = take(elements * dtype_bytes(dtype), name, MemoryCategory::kWeights);
    if (packed_bytes > 0) s.packed = take(packed_bytes, name + " packed", MemoryCategory::kWeights);
    return s;
  };
  embedding_ = make(network.embedding->layout().elements, packed(*network.embedding), "embedding");
  head_ = make(network.head->layout().elements, packed(*network.head), "head");
  int64_t elements = 0, bytes = 0;
  for (const auto& l : network.layers) {
    elements = std::max(elements, l->layout().elements);
    bytes = std::max(bytes, packed(*l));
  }
  for (int i = 0; i < std::min(slots, layers_); ++i) slots_.push_back(make(elements, bytes, fmt::format("weight slot {}", i)));
  if (upload_again) again_ = make(elements, bytes, "weights once more");
}

Event WeightSlots::permission(int module, const Event& released) {
  if (announced_ == module) {
    announced_ = -1;
    return announced_event_;
  }
  return hooks_.before_upload ? hooks_.before_upload(module, released) : Event{};
}

void WeightSlots::announce_layer(int l) {
  if (l < 0 || l >= layers_ || layer(l).module == 1 + l) return;
  announced_event_ = permission(1 + l, layer(l).released);
  announced_ = 1 + l;
}

// Uploads and packs once the slot's last reader is done and the module's optimizer has run.
void WeightSlots::load(WeightSlot& slot, int index, bool backward) {
  const bool for_backward = training_ && backward;
  if (slot.module == index && (slot.packed_for_backward || !for_backward)) return;
  const Module& module = *store_.module(index).module;
  const DType dtype = store_.options().compute_dtype;
  Stream& s = device_.upload();
  // What the hook queues on this stream need not wait for the slot.
  const Event permitted = slot.module == index ? Event{} : permission(index, slot.released);
  device_.wait(s, slot.released);
  if (slot.module != index) {
    const void* updated = hooks_.updated_weights ? hooks_.updated_weights(index) : nullptr;
    if (!updated) device_.wait(s, permitted);
    const void* host = store_.module(index).weights;
    const int64_t bytes = module.layout().elements * dtype_bytes(dtype);
    slot.raw = slot.buffer ? slot.buffer : host;
    if (updated) device_.copy(s, slot.buffer, updated, bytes, CopyKind::kWithinDevice, "new weights");
    else if (slot.buffer) device_.copy(s, slot.buffer, host, bytes, CopyKind::kUpload, "upload weights");
    if (index >= 1 && index <= layers_) ++uploads_;
  }
  if (slot.packed) module.pack(s, dtype, for_backward, slot.raw, slot.packed);
  slot.module = index;
  slot.packed_for_backward = for_backward;
  slot.ready = device_.record(s);
}

void WeightSlots::load_layer(int l, bool backward, int end) {
  if (l < 0 || l >= end) return;
  load(layer(l), 1 + l, backward || l + static_cast<int>(slots_.size()) >= end);
}

void WeightSlots::load_again(int l) {
  if (!upload_again_) return;
  again_.module = -1;
  load(again_, 1 + l, true);
}

void WeightSlots::invalidate() {
  for (auto& s : slots_) s.module = -1;
  embedding_.module = head_.module = -1;
  announced_ = -1;
}

}  // namespace megaslide
