// Runs a network from a HostStore on a Device: forward, or forward, loss and backward. The one schedule of training,
// sampling and planning (architecture.md "A training step", spec engine.md §2).
//
//   forward   for each layer l: [before_upload(l)] → upload into slot l mod S → all microbatches; inputs are stashed
//   backward  for each segment, last first: its inputs return or are computed again (stream/activation_stash.h); for each
//             layer l, last first: upload (unless still in its slot) → recompute, differentiate all microbatches →
//             gradients leave over the download stream → gradient_ready(l)
//
// Inside a layer clips go whole or slab by slab (stream/pass.h).
//
// Everything is issued without waiting; order between the streams is by events alone.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/device.h"
#include "kernels/loss/loss.h"
#include "model/layer.h"
#include "stream/activation_stash.h"
#include "stream/host_store.h"
#include "stream/micro_batch.h"

namespace megaslide {

struct PipelineOptions {
  DType compute_dtype = DType::kBF16;
  bool training = false;
  int slots = 2;                    // S ≥ 2; a layer still in its slot is not uploaded again
  std::vector<BatchShape> shapes;   // every shape that train() may be given, all of it where not `training`: buffers fit the largest
  std::vector<BatchShape> predict_shapes = {};  // further ones of predict() and evaluate(), which need far less
  int max_microbatches = 1;
  StashOptions stash = {};
  // Not 0: clips go through the layers in slabs of so many frames (spec engine.md §3), in the order of time. Activations then
  // lie in host memory, and the device holds no more than two slabs of them with what self-attention sees beside them.
  int64_t slab_frames = 0;
  bool input_gradients = false;     // also dlatent and dtext (probe)
  LossTerm loss = {};
  // Other programs' schedule, to be measured against: the backward of a layer uses weights uploaded once more under its
  // recomputation. 3L − S uploads instead of 2L − S, and a further slot.
  bool upload_again = false;
};

struct PipelineHooks {
  // Queues what must happen before module's weights may be uploaded (its optimizer, its reading from disk); the upload
  // waits for the event. Once `released` has passed, nothing reads what was last uploaded into the same slot.
  std::function<Event(int module, const Event& released)> before_upload = {};
  // Asked after `before_upload`: where in device memory the module's new weights are once all that is queued on the upload
  // stream is done; nullptr: in host memory.
  std::function<const void*(int module)> updated_weights = {};
  // The module's gradients may be written once the event has passed; not set: at once.
  std::function<Event(int module)> before_gradient = {};
  // The module's gradients are whole in host memory once `event` has passed.
  std::function<void(int module, const Event& event)> gradient_ready = {};
};

class Pipeline {
 public:
  Pipeline(Device& device, const Network& network, HostStore& store, PipelineOptions options, PipelineHooks hooks = {});
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Every shape must be one that the options listed.

  // Issues forward, loss and backward of a step. The loss is the mean over all elements of all microbatches, weighted, gradients
  // are those of that mean. Returns the event after which `losses()` holds.
  Event train(std::span<const MicroBatch> batches);
  Event losses_ready() const;    // during train()'s calls of `gradient_ready`: after this the losses hold
  const double* losses() const;  // of each microbatch of the last train(), its own mean

  // Issues a forward pass; `out` (B, Cout, T, h, w) in host memory holds the velocity once the event has passed.
  Event predict(const MicroBatch& batch, float* out);
  // As predict(), and the loss against batch.target; the loss is read through `loss`.
  Event evaluate(const MicroBatch& batch, double* loss);

  // The weights in host memory have changed: slots and resident modules are uploaded anew at the next use.
  void invalidate_weights();

  // Downloads of the last train() for probes, of clips that go whole, into host memory of the caller: `out` (B, Cout, T, h, w), dlatent and dtext
  // as in MicroBatch; nullptr is left out. The gradients need `input_gradients`.
  Event read_output(int microbatch, float* out);
  Event read_input_gradients(int microbatch, float* dlatent, float* dtext);

  // Layers uploaded since construction, embedding and head apart: with every layer's input kept 2L − S a step and no more,
  // with segments once more for each layer that is computed again.
  int64_t weight_uploads() const;
  // Host memory in which inputs of layers wait, and of slabs gradients too.
  int64_t host_stash_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megaslide
