#include "stream/state_traffic.h"

#include <algorithm>

#include "base/error.h"

namespace megaslide {

StateTraffic::StateTraffic(Device& device, HostStore& store, bool update_under_backward)
    : device_(device), store_(store), update_under_backward_(update_under_backward) {
  if (!store.tier()) return;
  const int slabs = store.tier()->weight_slabs();
  for (int slot = 0; slot + 1 < slabs; ++slot) slab_of_slot_.push_back(slot);
  spare_ = slabs - 1;
  slab_released_.resize(static_cast<size_t>(slabs));
  module_in_slab_.resize(static_cast<size_t>(slabs), -1);
  gradient_free_.resize(kTierGradientSlabs);
}

Event StateTraffic::fetch_weights(int module, const Event& released) { return fetch(module, kWeightsGroup, released); }
Event StateTraffic::fetch_all(int module, const Event& released) { return fetch(module, kWeightsGroup | kRestGroup | kGradientGroup, released); }
Event StateTraffic::fetch_rest(int module) { return fetch(module, kRestGroup, {}); }

// What was last uploaded to the slot came from the slab that is spare from now on.
int StateTraffic::take_weight_slab(int module, const Event& released) {
  int& of_slot = slab_of_slot_[static_cast<size_t>(module - 1) % slab_of_slot_.size()];
  std::swap(of_slot, spare_);
  slab_released_[static_cast<size_t>(spare_)] = released;
  module_in_slab_[static_cast<size_t>(of_slot)] = module;
  return of_slot;
}

Event StateTraffic::fetch(int module, unsigned groups, const Event& released) {
  if (!store_.on_disk(module)) return {};
  // Gradients of updates under the backward never leave memory.
  if (update_under_backward_) groups &= ~static_cast<unsigned>(kGradientGroup);
  Stream& disk = device_.disk();
  if (groups & kWeightsGroup) {
    const int slab = take_weight_slab(module, released);
    store_.place_weights(module, slab);
    device_.wait(disk, slab_released_[static_cast<size_t>(slab)]);
  } else {
    bool here = false;
    for (size_t k = 0; k < module_in_slab_.size(); ++k)
      here = here || (module_in_slab_[k] == module && store_.tier()->weight_slab(static_cast<int>(k)) == store_.module(module).weights);
    MS_CHECK(here, "the weights of module {} have left memory", module);
  }
  if (groups & kRestGroup) {
    store_.place_rest(module, next_rest_);
    next_rest_ = (next_rest_ + 1) % kRestSlabs;
  }
  const ModuleState& s = store_.module(module);
  const void *weights = groups & kWeightsGroup ? s.weights : nullptr, *rest = groups & kRestGroup ? s.exp_avg : nullptr;
  const int gradient = groups & kGradientGroup ? gradient_slab(module) : -2;
  write_held_if([&](const Write& w) {
    return w.module == module || (weights && w.weights == weights) || (rest && w.rest == rest) || w.gradient_slab == gradient;
  });
  disk.enqueue("read state", {KernelClass::kDiskRead, 0, static_cast<double>(store_.tier_bytes(module, groups))},
               [tier = store_.tier(), t = store_.transfers(module, groups)] { tier->read(t); });
  const Event here = device_.record(disk);
  // Under the backward pass the next rest is read before what is held back: see above.
  if ((groups & kRestGroup) || !update_under_backward_) write_held();
  return here;
}

void StateTraffic::hold(int module, unsigned groups, const Event& after) {
  const ModuleState& s = store_.module(module);
  Write w{module, groups, nullptr, nullptr, -1, store_.transfers(module, groups), after};
  if (groups & kWeightsGroup) w.weights = s.weights;
  if (groups & kRestGroup) w.rest = s.exp_avg;
  if (groups & kGradientGroup) w.gradient_slab = gradient_slab(module);
  held_.push_back(std::move(w));
}

void StateTraffic::updated(int module, const Event& done) {
  if (!store_.on_disk(module)) return;
  if (!update_under_backward_) gradient_free_[static_cast<size_t>(gradient_slab(module))] = done;
  hold(module, kWeightsGroup | kRestGroup, done);
}

Event StateTraffic::before_gradient(int module) {
  if (!store_.on_disk(module)) return {};
  const int slab = gradient_slab(module);
  write_held_if([&](const Write& w) { return w.gradient_slab == slab; });
  return gradient_free_[static_cast<size_t>(slab)];
}

void StateTraffic::gradient_used(int module, const Event& done) {
  if (store_.on_disk(module)) hold(module, kGradientGroup, done);
}

template <class F>
void StateTraffic::write_held_if(F&& conflicts) {
  if (std::any_of(held_.begin(), held_.end(), conflicts)) write_held();
}

void StateTraffic::write_held() {
  Stream& disk = device_.disk();
  for (Write& w : held_) {
    device_.wait(disk, w.after);
    disk.enqueue("write state", {KernelClass::kDiskWrite, 0, static_cast<double>(store_.tier_bytes(w.module, w.groups))},
                 [tier = store_.tier(), t = std::move(w.transfers)] { tier->write(t); });
    if (w.gradient_slab >= 0) gradient_free_[static_cast<size_t>(w.gradient_slab)] = device_.record(disk);
  }
  held_.clear();
}

Event StateTraffic::flush() {
  if (!store_.tier()) return {};
  write_held();
  return device_.record(device_.disk());
}

}  // namespace megaslide
