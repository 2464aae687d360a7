// Between the disk and the optimizer: what a step reads and writes of a HostStore whose layers lie on disk, queued on the
// device's disk stream. For modules that lie in memory every call returns at once, and its event has passed.
//
//   forward   for a layer whose update is due: read it whole → optimizer → write weights and the rest; upload reads the same
//             slab. For another, and in the backward pass: read its weights → upload
//   backward  exact clipping: gradient arrives in a slab → its norm → write it
//             else: read the rest → optimizer → write weights and the rest
//
// The disk stream does its work in the order in which it is queued, so a write is held back until the next read has been
// queued: behind it the read would wait for the optimizer, and the disk stand still. A slab's writing and its next reading
// are ordered by that stream; what else uses a slab, by events:
//   weights   the next read waits for the compute stream's last use of the slot it was uploaded to
//   rest      the optimizer, which the write waits for
//   gradient  the download waits for the optimizer, or for the write, that used the slab before
#pragma once
#include <vector>

#include "device/device.h"
#include "stream/host_store.h"

namespace megaslide {

class StateTraffic {
 public:
  // update_under_backward: the optimizer runs as soon as a layer's gradient is there. All must outlive what is queued.
  StateTraffic(Device& device, HostStore& store, bool update_under_backward);

  // Before an upload of module's weights; `released` as in PipelineHooks. Each returns when what it names is in memory.
  Event fetch_weights(int module, const Event& released);
  Event fetch_all(int module, const Event& released);  // weights, the rest and the gradient
  // The rest, of a module whose weights were fetched last, or last but one, by the slot they went to.
  Event fetch_rest(int module);

  // Weights and the rest have changed once the event has passed, and go back.
  void updated(int module, const Event& done);
  // The module's gradient may arrive once the event has passed; it goes to disk once `done` has.
  Event before_gradient(int module);
  void gradient_used(int module, const Event& done);

  // Queues what is held back, and returns when all is on disk.
  Event flush();

 private:
  struct Write {
    int module = -1;
    unsigned groups = 0;
    const void *weights = nullptr, *rest = nullptr;  // the slabs it reads
    int gradient_slab = -1;
    std::vector<BlockFile::Transfer> transfers;
    Event after;
  };
  Event fetch(int module, unsigned groups, const Event& released);
  int take_weight_slab(int module, const Event& released);
  void hold(int module, unsigned groups, const Event& after);
  void write_held();
  template <class F>
  void write_held_if(F&& conflicts);
  int gradient_slab(int module) const { return module % kTierGradientSlabs; }

  Device& device_;
  HostStore& store_;
  const bool update_under_backward_;
  // Of each of the pipeline's slots the slab that it was uploaded from; the one of none is next.
  std::vector<int> slab_of_slot_;
  int spare_ = 0, next_rest_ = 0;
  std::vector<Event> slab_released_;
  std::vector<int> module_in_slab_;
  std::vector<Event> gradient_free_;
  std::vector<Write> held_;
};

}  // namespace megaslide
