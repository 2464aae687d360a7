// How the clips of a step go through the modules whose weights are on the device: whole, or slab by slab. The schedule of
// weights and gradients is the Pipeline's; where inputs and activations lie is the pass's.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "model/layer.h"
#include "stream/micro_batch.h"
#include "stream/micro_buffers.h"
#include "stream/pipeline.h"
#include "stream/weight_slots.h"

namespace megaslide {

// What a pass shares with the schedule. All outlive the pass.
struct PassContext {
  Device& device;
  const Network& network;
  const PipelineOptions& options;
  WeightSlots& weights;
  Workspace& workspace;       // without memory until the pass is made, see Pass::measure
  float* gradient = nullptr;  // sums of the module in hand; nullptr without training
  bool simulated = false;
  TakeMemory take;
};

class Pass {
 public:
  using Batches = std::span<const MicroBatch>;
  virtual ~Pass() = default;

  // Issues every call there can be to a stream that runs nothing, so that `workspace` tells how high it grows.
  virtual void measure(Stream& stream, Workspace& workspace) = 0;

  // Inputs to the device, and through the embedding. keep: the layers' inputs stay for the backward; without it there is
  // one microbatch. Asks for the embedding's weights itself, once the inputs are on their way.
  virtual void embed(Batches batches, bool keep) = 0;
  // Whether the next layer's weights are to be asked for before a layer is queued, or after it. An upload that waits for the
  // optimizer stops those behind it.
  virtual bool weights_ahead() const = 0;

  // From here on the weights of the module in question are there.
  virtual void forward(Batches batches, int l, bool keep) = 0;
  // Head, loss and their gradients; `losses` of the microbatches are whole once the event has passed.
  virtual Event head_and_loss(Batches batches, double* losses) = 0;
  // The end of a pass without backward: the velocity to `out`, the loss to `loss`; nullptr: not wanted.
  virtual Event predict(const MicroBatch& batch, float* out, double* loss) = 0;
  virtual void backward(Batches batches, int l) = 0;
  virtual void backward_embedding(Batches batches) = 0;

  // The inputs of layer l are used next: where they do not lie on the device, their return is queued.
  virtual void fetch(int l) = 0;
  // The compute stream's calls so far are the last ones that read them.
  virtual void release(int l) = 0;

  // A pass is over once the event has passed: its inputs may be overwritten.
  void inputs_released(const Event& event) { inputs_released_ = event; }
  const Event& inputs_released() const { return inputs_released_; }

  // For probes.
  virtual Event read_output(int microbatch, float* out) = 0;
  virtual Event read_input_gradients(int microbatch, float* dlatent, float* dtext) = 0;

  // Host memory in which activations and their gradients wait.
  virtual int64_t host_bytes() const = 0;

 protected:
  // clips: with device memory for whole clips.
  Pass(const PassContext& context, bool clips);

  // The largest value over the shapes that are trained, or over all.
  template <class F>
  int64_t largest(F&& of_shape, bool all = false) const {
    int64_t m = 0;
    for (const auto& s : x_.options.shapes) m = std::max<int64_t>(m, of_shape(s));
    if (all)
      for (const auto& s : x_.options.predict_shapes) m = std::max<int64_t>(m, of_shape(s));
    return m;
  }
  float* floats(int64_t n, std::string_view name) const { return static_cast<float*>(x_.take(n * 4, name, MemoryCategory::kActivations)); }
  LayerCall call(const WeightSlot& slot, const BatchShape& shape) const;

  // Upload of what all layers and the loss read beside the clip. The caller has waited for inputs_released.
  void upload_conditioning(Batches batches);
  void condition(Batches batches);
  void clear_conditioning_gradients(const MicroBatch& batch, const MicroBuffers& m);
  void condition_backward(Batches batches);
  // The losses, once the compute stream is through.
  Event download_losses(double* losses, int64_t n);

  PassContext x_;
  std::vector<MicroBuffers> micro_;
  double* loss_ = nullptr;  // a microbatch, on the device
  Event inputs_released_;
  Event results_sent_;      // what the pass before returned has left: head and loss may overwrite it
};

std::unique_ptr<Pass> make_whole_pass(const PassContext& context);
// Throws a usage Error where a layer cannot compute a part of a clip.
std::unique_ptr<Pass> make_slab_pass(const PassContext& context);

}  // namespace megaslide
