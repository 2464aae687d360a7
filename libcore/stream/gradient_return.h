// Gradients on their way: the fp32 sums of the module in hand on the device, and their return to its slab in host memory
// in the gradient codec.
#pragma once
#include <functional>

#include "device/device.h"
#include "stream/host_store.h"
#include "stream/weight_slots.h"

namespace megaslide {

class GradientReturn {
 public:
  // As in PipelineHooks; may be empty.
  using Before = std::function<Event(int module)>;
  using Ready = std::function<void(int module, const Event& event)>;
  GradientReturn(Device& device, HostStore& store, Before before, Ready ready, const TakeMemory& take);

  // (elements of the module) fp32, used by the compute stream.
  float* sums() const { return sums_; }
  void clear(int module);
  // What the compute stream has summed so far leaves.
  void send(int module);

 private:
  Device& device_;
  HostStore& store_;
  Before before_;
  Ready ready_;
  float* sums_ = nullptr;
  void* staging_[2] = {};
  Event staging_free_[2];
  int next_ = 0;
};

}  // namespace megaslide
