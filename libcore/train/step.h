// One training step: the pipeline's forward and backward, the norm of the gradients, and the optimizer (spec engine.md §2).
//
// By the exact global norm the optimizer of layer l waits for the whole backward and runs under the next step's forward,
// just ahead of its upload; the gradients of all layers are kept until then. Where each layer is clipped by its own norm, or
// none is, its optimizer runs under the backward at once, and a few layers' gradients are all that is kept.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "stream/pipeline.h"
#include "stream/state_traffic.h"
#include "train/device_optimizer.h"

namespace megaslide {

enum class ClipMode {
  kExact,  // by the norm of all gradients
  kLayer,  // each module by its own norm, to max_grad_norm/√modules, so that the whole norm stays within max_grad_norm
  kNone,
};

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  double max_grad_norm = 1.0;
  ClipMode clip = ClipMode::kExact;
  uint64_t seed = 0;  // of stochastic rounding
  bool on_device = false;  // the state goes to the device and back for it: train/device_optimizer.h
};

// Gradient slabs of a run (HostStoreOptions::gradient_slots): one is filled, one is on its way, one is used.
constexpr int gradient_slots(ClipMode clip) { return clip == ClipMode::kExact ? 0 : 3; }

struct StepResult {
  double loss = 0;       // mean over microbatches
  double grad_norm = 0;  // before clipping
  bool clipped = false;
  // Loss or gradients were not finite: the state is untouched. Without the exact norm each module whose own gradients are
  // not finite is, and those whose optimizer had already run are updated.
  bool skipped = false;
  double ended = 0;      // when the device had done it all, on the device's clock; 0 on sim
};

class TrainStep {
 public:
  // `updates` counts optimizer updates already in the store (Adam's step number).
  TrainStep(Device& device, const Network& network, HostStore& store, PipelineOptions pipeline, OptimizerOptions optimizer,
            int64_t updates);
  ~TrainStep();

  // Issues a step whose update will use `learning_rate`. The previous update runs under this forward. The batches'
  // memory must stay until finish() returns or throws.
  void begin(std::span<const MicroBatch> batches, double learning_rate);
  // Waits for the gradients and decides: the update is due now, and runs under the next begin() or in drain(). Throws what
  // failed on a stream: the update before may then be half done, so the store must not be read any more.
  StepResult finish();
  // Runs a due update now. Before anything that reads the store: checkpoint, validation, sampling, the end.
  void drain();

  int64_t updates() const { return updates_; }
  Pipeline& pipeline() { return *pipeline_; }
  // Squared gradient norms by module of the last step.
  const std::vector<double>& squared_norms() const { return squared_norms_; }

 private:
  Event update(int module, const Event& released);
  void gradient_ready(int module, const Event& event);
  Event enqueue_adamw(int module, double learning_rate, int64_t number);
  Event enqueue_on_device(int module, const AdamWStep& step);
  // On the host stream: whether a module may be updated by its own gradients alone, and by which factor on them.
  bool decide_alone(int module, float& clip);
  bool exact() const { return optimizer_.clip == ClipMode::kExact; }

  Device& device_;
  HostStore& store_;
  OptimizerOptions optimizer_;
  StateTraffic traffic_;
  std::unique_ptr<DeviceOptimizer> device_optimizer_;  // not set: on the host
  std::unique_ptr<Pipeline> pipeline_;
  int64_t updates_;
  double learning_rate_ = 0, pending_rate_ = 0;
  float clip_ = 1;
  double ended_ = 0;
  size_t microbatches_ = 0;
  std::vector<bool> due_;
  std::vector<double> squared_norms_;
  Event norms_done_, backward_done_;
  // Without the exact norm: what the modules of this step decided, and when their gradients' slabs are free again.
  struct Alone {
    int updated = 0, clipped = 0, skipped = 0;
  } alone_;
  std::vector<Event> slab_free_;
};

}  // namespace megaslide
