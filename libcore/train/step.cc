#include "train/step.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/adamw/adamw.h"

namespace megaslide {
namespace {

float clip_factor(double max_norm, double norm) {
  return max_norm > 0 ? static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6))) : 1.0f;
}

}  // namespace

TrainStep::TrainStep(Device& device, const Network& network, HostStore& store, PipelineOptions pipeline, OptimizerOptions optimizer,
                     int64_t updates)
    : device_(device), store_(store), optimizer_(optimizer), traffic_(device, store, optimizer.clip != ClipMode::kExact), updates_(updates), due_(static_cast<size_t>(store.modules()), false),
      squared_norms_(static_cast<size_t>(store.modules()), 0), slab_free_(static_cast<size_t>(store.options().gradient_slots)) {
  MS_CHECK(store.options().gradient_slots == gradient_slots(optimizer.clip));
  pipeline.training = true;
  PipelineHooks hooks;
  hooks.gradient_ready = [this](int m, const Event& e) { gradient_ready(m, e); };
  if (optimizer.on_device) device_optimizer_ = std::make_unique<DeviceOptimizer>(device, store);
  hooks.before_upload = [this](int m, const Event& released) { return update(m, released); };
  if (exact() && optimizer.on_device) hooks.updated_weights = [this](int m) { return device_optimizer_->take_weights(m); };
  hooks.before_gradient = [this](int m) {
    return exact() ? traffic_.before_gradient(m) : slab_free_[static_cast<size_t>(m) % slab_free_.size()];
  };
  pipeline_ = std::make_unique<Pipeline>(device, network, store, std::move(pipeline), std::move(hooks));
}

// The pipeline waits for every stream: what is queued there writes into this object, which must still be whole.
TrainStep::~TrainStep() { pipeline_.reset(); }

void TrainStep::begin(std::span<const MicroBatch> batches, double learning_rate) {
  learning_rate_ = learning_rate;
  microbatches_ = batches.size();
  alone_ = {};
  pipeline_->invalidate_weights();
  backward_done_ = pipeline_->train(batches);
  traffic_.flush();
  if (device_optimizer_) device_.wait(device_.host(), device_optimizer_->last());
  device_.host().enqueue("step end", {KernelClass::kHost, 0, 0}, [this] { ended_ = device_.now(); });
  norms_done_ = device_.record(device_.host());
}

void TrainStep::gradient_ready(int module, const Event& event) {
  Stream& host = device_.host();
  device_.wait(host, event);
  const ModuleState& s = store_.module(module);
  const int64_t n = s.module->layout().elements;
  const DType dtype = store_.options().gradients;
  host.enqueue("gradient norm", {KernelClass::kHost, 2.0 * static_cast<double>(n), static_cast<double>(n * dtype_bytes(dtype))},
               [this, &host, module, n, dtype, gradient = s.gradient] {
                 squared_norms_[static_cast<size_t>(module)] = squared_norm(host.pool(), gradient, dtype, n);
               });
  if (exact()) return traffic_.gradient_used(module, device_.record(host));
  device_.wait(host, traffic_.fetch_rest(module));
  device_.wait(host, pipeline_->losses_ready());
  const Event updated = slab_free_[static_cast<size_t>(module) % slab_free_.size()] = enqueue_adamw(module, learning_rate_, updates_ + 1);
  traffic_.updated(module, updated);
}

bool TrainStep::decide_alone(int module, float& clip) {
  bool finite = std::isfinite(squared_norms_[static_cast<size_t>(module)]);
  for (size_t a = 0; a < microbatches_; ++a) finite = finite && std::isfinite(pipeline_->losses()[a]);
  if (!finite) {
    ++alone_.skipped;
    return false;
  }
  ++alone_.updated;
  if (optimizer_.clip == ClipMode::kNone) return true;
  const double share = optimizer_.max_grad_norm / std::sqrt(static_cast<double>(store_.modules()));
  clip = clip_factor(share, std::sqrt(squared_norms_[static_cast<size_t>(module)]));
  alone_.clipped += clip < 1;
  return true;
}

StepResult TrainStep::finish() {
  device_.synchronize(backward_done_);
  device_.synchronize(norms_done_);
  StepResult r;
  r.ended = ended_;
  for (size_t a = 0; a < microbatches_; ++a) r.loss += pipeline_->losses()[a];
  r.loss /= static_cast<double>(microbatches_);
  double sum = 0;
  for (const double s : squared_norms_) sum += s;
  r.grad_norm = std::sqrt(sum);
  r.skipped = !std::isfinite(r.grad_norm) || !std::isfinite(r.loss);
  if (!exact()) {
    r.clipped = alone_.clipped > 0;
    updates_ += alone_.updated > 0;
    return r;
  }
  if (r.skipped) return r;
  clip_ = clip_factor(optimizer_.max_grad_norm, r.grad_norm);
  r.clipped = clip_ < 1;
  ++updates_;
  pending_rate_ = learning_rate_;
  std::fill(due_.begin(), due_.end(), true);
  return r;
}

Event TrainStep::update(int module, const Event& released) {
  if (!due_[static_cast<size_t>(module)]) return traffic_.fetch_weights(module, released);
  due_[static_cast<size_t>(module)] = false;
  device_.wait(device_.host(), traffic_.fetch_all(module, released));
  const Event updated = enqueue_adamw(module, pending_rate_, updates_);
  traffic_.updated(module, updated);
  return updated;
}

Event TrainStep::enqueue_on_device(int module, const AdamWStep& step) {
  if (exact()) {
    device_optimizer_->factor(module) = step.clip;
    return device_optimizer_->update(module, step, {});
  }
  device_.host().enqueue("clip", {KernelClass::kHost, 0, 0}, [this, module, clip = step.clip]() mutable {
    device_optimizer_->factor(module) = decide_alone(module, clip) ? clip : std::numeric_limits<float>::quiet_NaN();
  });
  return device_optimizer_->update(module, step, device_.record(device_.host()));
}

Event TrainStep::enqueue_adamw(int module, double learning_rate, int64_t number) {
  Stream& host = device_.host();
  const ModuleState s = store_.module(module);  // as it is now: of a layer on disk the next call may place it elsewhere
  const int64_t n = s.module->layout().elements;
  const HostStoreOptions& o = store_.options();
  AdamWStep step;
  step.learning_rate = learning_rate;
  step.weight_decay = optimizer_.weight_decay;
  step.beta1 = optimizer_.beta1;
  step.beta2 = optimizer_.beta2;
  step.eps = optimizer_.eps;
  step.step = number;
  step.clip = clip_;
  step.seed = optimizer_.seed;
  if (device_optimizer_) return enqueue_on_device(module, step);
  const AdamWState codecs = optimizer_state(o, s, 0);
  const double bytes = update_bytes_each(codecs.masters, codecs.moments, dtype_bytes(o.gradients), codecs.w != nullptr) * static_cast<double>(n);
  host.enqueue("adamw", {KernelClass::kOptimizer, 15.0 * static_cast<double>(n), bytes}, [this, &host, s, step, module]() mutable {
    if (!exact() && !decide_alone(module, step.clip)) return;
    const auto& params = s.module->params();
    const DType dtype = store_.options().gradients;
    for (size_t i = 0; i < params.size(); ++i) {
      const void* g = static_cast<const std::byte*>(s.gradient) + s.module->layout().offset[i] * dtype_bytes(dtype);
      adamw_update(host.pool(), optimizer_state(store_.options(), s, i), g, dtype, element_count(params[i].shape), parameter_step(step, s, module, i));
    }
  });
  return device_.record(host);
}

void TrainStep::drain() {
  Event last;
  for (int m = 0; m < store_.modules(); ++m) {
    if (due_[static_cast<size_t>(m)]) last = update(m, {});
    if (device_optimizer_) device_optimizer_->take_weights(m);
  }
  device_.synchronize(last);
  device_.synchronize(traffic_.flush());
  pipeline_->invalidate_weights();
}

}  // namespace megaslide
