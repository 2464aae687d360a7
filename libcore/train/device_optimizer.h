// Adam on the device (optimizer.device: device), to be measured against Adam on the host: of each module the whole state
// and the gradient go over the link for its update, and the state comes back. The same kernel, so the same bits.
//
//   upload stream     weights, master or remainder, moments, gradient → update → the module's upload takes the new weights
//   download stream   weights, master or remainder, moments → host
//
// The update is queued on the upload stream as the packing of weights is: on the compute stream the layer before would wait
// for the state of the one that is prefetched. Two sets of buffers of the largest module's size: one is filled while the
// other leaves. Where the device shares the host's memory the state is updated in place.
#pragma once
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "stream/host_store.h"

namespace megaslide {

// Adam's step of one parameter of a module, from that of the whole model.
AdamWStep parameter_step(const AdamWStep& model, const ModuleState& state, int module, size_t parameter);

class DeviceOptimizer {
 public:
  // Takes device memory of the category kOther, the gradients' of kGradients.
  DeviceOptimizer(Device& device, HostStore& store);
  ~DeviceOptimizer();  // nothing that was queued may still run
  DeviceOptimizer(const DeviceOptimizer&) = delete;
  DeviceOptimizer& operator=(const DeviceOptimizer&) = delete;

  // The factor on a module's gradient, NaN where it must not be updated. Read once the event passed to update() has.
  float& factor(int module) { return factors_[static_cast<size_t>(module)]; }

  // Queues a module's update. Once the returned event has passed, host memory holds the new state, and the gradient may be
  // overwritten.
  Event update(int module, const AdamWStep& step, const Event& factor_known);

  // Where the update that was queued last has left its module's weights, for the upload stream; once. nullptr: only in host
  // memory, or the update was another module's.
  const void* take_weights(int module);

  const Event& last() const { return last_; }

 private:
  // One slab of a module's state in host memory; nullptr where its codec has none. The gradient does not return.
  struct Slab {
    void* host;
    int64_t bytes;
    bool returns;
  };
  struct Buffers {
    std::vector<void*> slabs;  // as of slabs_of(); nullptr: no module has it
    float* factor = nullptr;
    Event free;
  };
  std::vector<Slab> slabs_of(int module) const;
  void allocate();
  void enqueue(int module, const AdamWStep& step, const Buffers* at);

  Device& device_;
  HostStore& store_;
  std::vector<float> factors_;
  PinnedMemory pinned_;
  Buffers sets_[2];
  int next_ = 0, updated_ = -1;
  const void* updated_weights_ = nullptr;
  Event last_;
};

}  // namespace megaslide
