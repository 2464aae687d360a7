#include "train/device_optimizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/adamw/adamw.h"

namespace megaslide {
namespace {

// The order of slabs_of().
enum SlabOf { kWeights, kRemainder, kMaster, kFirst, kSecond, kFirstScale, kSecondScale, kGradient, kSlabs };

// The place in another copy of the slab.
template <class T>
T* moved(T* element, const void* slab, void* copy) {
  if (element == nullptr) return nullptr;
  const auto at = reinterpret_cast<const std::byte*>(element) - static_cast<const std::byte*>(slab);
  return reinterpret_cast<T*>(static_cast<std::byte*>(copy) + at);
}

}  // namespace

AdamWStep parameter_step(const AdamWStep& model, const ModuleState& state, int module, size_t parameter) {
  const ParamSpec& spec = state.module->params()[parameter];
  AdamWStep p = model;
  p.learning_rate = model.learning_rate * spec.learning_rate_scale;
  if (!spec.decay) p.weight_decay = 0;
  p.first = static_cast<uint64_t>(module) << 40 | static_cast<uint64_t>(state.module->layout().offset[parameter]);
  return p;
}

DeviceOptimizer::DeviceOptimizer(Device& device, HostStore& store)
    : device_(device), store_(store), factors_(static_cast<size_t>(store.modules()), 1.0f) {
  if (device.shares_host_memory()) return;
  pinned_ = store.pin(device, true);
  allocate();
}

DeviceOptimizer::~DeviceOptimizer() {
  for (const Buffers& set : sets_) {
    for (void* p : set.slabs)
      if (p) device_.release(p);
    if (set.factor) device_.release(set.factor);
  }
}

std::vector<DeviceOptimizer::Slab> DeviceOptimizer::slabs_of(int module) const {
  const ModuleState& s = store_.module(module);
  const HostStoreOptions& o = store_.options();
  const int64_t n = s.module->layout().elements, moment = moment_bytes(o.moments, n);
  int64_t blocks = 0;
  if (s.exp_avg_scale)
    for (const ParamSpec& p : s.module->params()) blocks += moment_blocks(element_count(p.shape));
  std::vector<Slab> slabs(kSlabs);
  slabs[kWeights] = {s.weights == s.master ? nullptr : s.weights, n * dtype_bytes(o.compute_dtype), true};
  slabs[kRemainder] = {s.remainder, n * 2, true};
  slabs[kMaster] = {s.master, n * 4, true};
  slabs[kFirst] = {s.exp_avg, moment, true};
  slabs[kSecond] = {s.exp_avg_sq, moment, true};
  slabs[kFirstScale] = {s.exp_avg_scale, blocks * 4, true};
  slabs[kSecondScale] = {s.exp_avg_sq_scale, blocks * 4, true};
  slabs[kGradient] = {s.gradient, n * dtype_bytes(o.gradients), false};
  return slabs;
}

void DeviceOptimizer::allocate() {
  static constexpr const char* kNames[kSlabs] = {"weights",    "remainders",     "masters",           "exp_avg",
                                                 "exp_avg_sq", "exp_avg scales", "exp_avg_sq scales", "gradient"};
  std::vector<int64_t> largest(kSlabs, 0);
  for (int m = 0; m < store_.modules(); ++m) {
    const std::vector<Slab> slabs = slabs_of(m);
    for (size_t i = 0; i < slabs.size(); ++i)
      if (slabs[i].host) largest[i] = std::max(largest[i], slabs[i].bytes);
  }
  for (Buffers& set : sets_) {
    set.slabs.assign(kSlabs, nullptr);
    for (size_t i = 0; i < largest.size(); ++i)
      if (largest[i] > 0)
        set.slabs[i] = device_.allocate(largest[i], fmt::format("{} in an update", kNames[i]),
                                        i == kGradient ? MemoryCategory::kGradients : MemoryCategory::kOther);
    set.factor = static_cast<float*>(device_.allocate(sizeof(float), "factor on the gradient", MemoryCategory::kOther));
  }
}

// `at` nullptr: in host memory.
void DeviceOptimizer::enqueue(int module, const AdamWStep& step, const Buffers* at) {
  const ModuleState& s = store_.module(module);
  const DType dtype = store_.options().gradients;
  const auto place = [&](auto* element, const void* slab, SlabOf i) { return at ? moved(element, slab, at->slabs[i]) : element; };
  for (size_t i = 0; i < s.module->params().size(); ++i) {
    AdamWState a = optimizer_state(store_.options(), s, i);
    a.p = place(a.p, s.master, kMaster);
    a.w = place(a.w, s.weights, kWeights);
    a.r = place(a.r, s.remainder, kRemainder);
    a.m = place(static_cast<std::byte*>(a.m), s.exp_avg, kFirst);
    a.v = place(static_cast<std::byte*>(a.v), s.exp_avg_sq, kSecond);
    a.m_scale = place(a.m_scale, s.exp_avg_scale, kFirstScale);
    a.v_scale = place(a.v_scale, s.exp_avg_sq_scale, kSecondScale);
    const auto* gradient = static_cast<const std::byte*>(s.gradient) + s.module->layout().offset[i] * dtype_bytes(dtype);
    adamw_by_factor(device_.upload(), a, place(gradient, s.gradient, kGradient), dtype, element_count(s.module->params()[i].shape),
                    parameter_step(step, s, module, i), at ? at->factor : &factor(module));
  }
}

Event DeviceOptimizer::update(int module, const AdamWStep& step, const Event& factor_known) {
  Stream &up = device_.upload(), &down = device_.download();
  device_.wait(up, factor_known);
  if (device_.shares_host_memory()) {
    enqueue(module, step, nullptr);
    return last_ = device_.record(up);
  }
  Buffers& set = sets_[std::exchange(next_, 1 - next_)];
  device_.wait(up, set.free);
  const std::vector<Slab> slabs = slabs_of(module);
  for (size_t i = 0; i < slabs.size(); ++i)
    if (slabs[i].host) device_.copy(up, set.slabs[i], slabs[i].host, slabs[i].bytes, CopyKind::kUpload, "upload state");
  device_.copy(up, set.factor, &factor(module), sizeof(float), CopyKind::kUpload, "upload state");
  enqueue(module, step, &set);
  device_.wait(down, device_.record(up));
  for (size_t i = 0; i < slabs.size(); ++i)
    if (slabs[i].host && slabs[i].returns) device_.copy(down, slabs[i].host, set.slabs[i], slabs[i].bytes, CopyKind::kDownload, "download state");
  updated_ = module;
  updated_weights_ = slabs[kWeights].host ? set.slabs[kWeights] : set.slabs[kMaster];
  return last_ = set.free = device_.record(down);
}

const void* DeviceOptimizer::take_weights(int module) {
  return std::exchange(updated_, -1) == module ? updated_weights_ : nullptr;
}

}  // namespace megaslide
