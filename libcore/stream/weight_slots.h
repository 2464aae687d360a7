// Weights on the device: the ends of a network, which stay, and S slots through which its layers take turns, layer l in
// slot l mod S. What is still in its slot is not uploaded again.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "model/layer.h"
#include "stream/host_store.h"

namespace megaslide {

// Device memory of a pipeline, by name.
using TakeMemory = std::function<void*(int64_t bytes, std::string_view name, MemoryCategory category)>;

struct WeightSlot {
  const void* raw = nullptr;  // in place where the device shares host memory
  void* buffer = nullptr;
  void* packed = nullptr;
  int module = -1;
  bool packed_for_backward = false;
  Event ready;     // the weights are there
  Event released;  // their last reader is done
};

class WeightSlots {
 public:
  // As in PipelineHooks; may be empty.
  struct Hooks {
    std::function<Event(int module, const Event& released)> before_upload;
    std::function<const void*(int module)> updated_weights;
  };
  // upload_again: as in PipelineOptions.
  WeightSlots(Device& device, const Network& network, const HostStore& store, bool training, int slots, bool upload_again, Hooks hooks,
              const TakeMemory& take);

  WeightSlot& embedding() { return embedding_; }
  WeightSlot& head() { return head_; }
  WeightSlot& layer(int l) { return slots_[static_cast<size_t>(l) % slots_.size()]; }
  // Whose weights the backward of layer l reads after its recomputation.
  WeightSlot& differentiated(int l) { return upload_again_ ? again_ : layer(l); }

  void load_embedding() { load(embedding_, 0, true); }
  void load_head() { load(head_, layers_ + 1, true); }
  // Nothing where l is not below `end` or below 0. A forward through layers below `end` leaves its last S of them for the
  // backward, so those are packed for both at once.
  void load_layer(int l, bool backward, int end);
  // The weights that differentiated() names, where they are others than the layer's.
  void load_again(int l);
  // What must happen before layer l can be uploaded begins; the upload itself is queued by load_layer().
  void announce_layer(int l);
  // Weights in host memory have changed.
  void invalidate();
  int64_t uploads() const { return uploads_; }  // of layers

 private:
  void load(WeightSlot& slot, int index, bool backward);
  Event permission(int module, const Event& released);

  Device& device_;
  const HostStore& store_;
  bool training_;
  int layers_;
  bool upload_again_;
  Hooks hooks_;
  std::vector<WeightSlot> slots_;
  WeightSlot embedding_, head_, again_;
  int announced_ = -1;  // module
  Event announced_event_;
  int64_t uploads_ = 0;
};

}  // namespace megaslide
