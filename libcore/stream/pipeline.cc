#include "stream/pipeline.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/memory/memory.h"
#include "stream/gradient_return.h"
#include "stream/pass.h"
#include "stream/weight_slots.h"

namespace megaslide {

struct Pipeline::Impl {
  Device& device;
  const Network& network;
  HostStore& store;
  const PipelineOptions options;
  int layers;
  std::vector<void*> allocations;
  std::unique_ptr<WeightSlots> weights;
  std::unique_ptr<GradientReturn> gradients;  // of a pipeline that trains
  std::unique_ptr<Pass> pass;
  Workspace workspace;
  PinnedMemory pinned;
  std::vector<double> losses;
  Event losses_here;

  Impl(Device& d, const Network& n, HostStore& s, PipelineOptions o, PipelineHooks hooks)
      : device(d), network(n), store(s), options(std::move(o)), layers(static_cast<int>(n.layers.size())),
        losses(static_cast<size_t>(options.max_microbatches), 0) {
    MS_CHECK(!options.shapes.empty() && options.max_microbatches >= 1 && options.slots >= 2);
    MS_CHECK(!options.training || store.options().training);
    MS_CHECK(options.compute_dtype == store.options().compute_dtype);
    const TakeMemory take = [this](int64_t bytes, std::string_view name, MemoryCategory category) {
      allocations.push_back(device.allocate(bytes, name, category));
      return allocations.back();
    };
    pinned = store.pin(device, false);
    weights = std::make_unique<WeightSlots>(device, network, store, options.training, options.slots, options.training && options.upload_again,
                                            WeightSlots::Hooks{std::move(hooks.before_upload), std::move(hooks.updated_weights)}, take);
    if (options.training)
      gradients = std::make_unique<GradientReturn>(device, store, std::move(hooks.before_gradient), std::move(hooks.gradient_ready), take);
    const PassContext context{device, network, options, *weights, workspace, gradients ? gradients->sums() : nullptr,
                              store.options().simulated, take};
    pass = options.slab_frames ? make_slab_pass(context) : make_whole_pass(context);
    // The same calls on a device that runs nothing tell how high the stack of temporaries grows.
    Workspace dry;
    pass->measure(make_sim_device({.target = device.compute().target()})->compute(), dry);
    workspace = Workspace(take(dry.high_water(), "workspace", MemoryCategory::kWorkspace), dry.high_water());
  }
  ~Impl() {
    try {
      device.synchronize();
    } catch (const std::exception&) {
      // Reported where the step was waited for; here it only matters that nothing runs any more.
    }
    pinned.clear();
    for (void* p : allocations) device.release(p);
  }

  void check(const MicroBatch& b, bool keep) const {
    const auto among = [&](const std::vector<BatchShape>& shapes) { return std::find(shapes.begin(), shapes.end(), b.shape) != shapes.end(); };
    MS_CHECK(among(options.shapes) || (!keep && among(options.predict_shapes)), "a shape that the pipeline was not made for");
    if (network.needs_displacement && b.displacement == nullptr)
      throw usage_error("the model's offsets come from a known motion (dsa.offsets: net+given), which is not given here",
                        "train on a cache with data.displacement, or set model.dsa.offsets=net+motion");
  }

  // Layer l of all microbatches, of layers below `end`.
  void forward_layer(std::span<const MicroBatch> batches, int l, int end, bool keep) {
    weights->load_layer(l, false, end);
    if (pass->weights_ahead()) weights->load_layer(l + 1, false, end);
    else if (l + 1 < end) weights->announce_layer(l + 1);
    WeightSlot& slot = weights->layer(l);
    device.wait(device.compute(), slot.ready);
    pass->forward(batches, l, keep);
    slot.released = device.record(device.compute());
    weights->load_layer(l + 1, false, end);
  }

  // Up to the tokens that the head reads, and the head's weights. keep: the layers' inputs stay for the backward.
  void forward(std::span<const MicroBatch> batches, bool keep) {
    for (const auto& b : batches) check(b, keep);
    pass->embed(batches, keep);
    for (int l = 0; l < layers; ++l) {
      device.set_phase(fmt::format("forward {}", l));
      forward_layer(batches, l, layers, keep);
    }
    device.set_phase("head");
    weights->load_head();
    device.wait(device.compute(), weights->head().ready);
  }

  // A pass is over: inputs, embedding and head may be overwritten. Returns when the device is through.
  Event end_pass() {
    const Event end = device.record(device.compute());
    pass->inputs_released(end);
    weights->embedding().released = weights->head().released = end;
    return end;
  }

  Event predict(const MicroBatch& batch, float* out, double* loss) {
    forward({&batch, 1}, false);
    const Event sent = pass->predict(batch, out, loss);
    end_pass();
    return sent;
  }

  // `next`: the layer that comes after this one, to be differentiated, or the first one of layers that are computed again.
  void backward_layer(std::span<const MicroBatch> batches, int l, int next, bool next_backward) {
    device.set_phase(fmt::format("backward {}", l));
    weights->load_layer(l, true, layers);
    pass->fetch(l);
    WeightSlot& slot = weights->layer(l);
    device.wait(device.compute(), slot.ready);
    weights->load_again(l);
    gradients->clear(1 + l);
    pass->backward(batches, l);
    slot.released = weights->differentiated(l).released = device.record(device.compute());
    pass->release(l);
    // They may take the places of this layer's.
    weights->load_layer(next, next_backward, next_backward ? layers : l);
    pass->fetch(next);
    gradients->send(1 + l);
  }

  void backward_layers(std::span<const MicroBatch> batches) {
    const int k = std::min(options.stash.segment, layers);
    const auto segment_begin = [k](int l) { return l - l % k; };
    for (int end = layers; end > 0; end = segment_begin(end - 1)) {
      const int begin = segment_begin(end - 1), before = begin > 0 ? segment_begin(begin - 1) : -1;
      // The inputs of the last segment are those that the forward computed last.
      for (int l = begin; end < layers && l < end - 1; ++l) {
        device.set_phase(fmt::format("again {}", l));
        pass->fetch(l);
        forward_layer(batches, l, end, true);
      }
      for (int l = end - 1; l > begin; --l) backward_layer(batches, l, l - 1, true);
      backward_layer(batches, begin, before, before == begin - 1);
    }
  }

  Event train(std::span<const MicroBatch> batches) {
    MS_CHECK(options.training && !batches.empty() && batches.size() <= losses.size());
    forward(batches, true);
    gradients->clear(layers + 1);
    losses_here = pass->head_and_loss(batches, losses.data());
    gradients->send(layers + 1);
    pass->release(layers);
    backward_layers(batches);
    device.set_phase("backward embedding");
    gradients->clear(0);
    pass->backward_embedding(batches);
    gradients->send(0);
    const Event end = end_pass();
    Stream& d = device.download();
    device.wait(d, end);
    return device.record(d);
  }
};

Pipeline::Pipeline(Device& device, const Network& network, HostStore& store, PipelineOptions options, PipelineHooks hooks)
    : impl_(std::make_unique<Impl>(device, network, store, std::move(options), std::move(hooks))) {}
Pipeline::~Pipeline() = default;

Event Pipeline::train(std::span<const MicroBatch> batches) { return impl_->train(batches); }
Event Pipeline::losses_ready() const { return impl_->losses_here; }
const double* Pipeline::losses() const { return impl_->losses.data(); }
Event Pipeline::predict(const MicroBatch& batch, float* out) { return impl_->predict(batch, out, nullptr); }
Event Pipeline::evaluate(const MicroBatch& batch, double* loss) { return impl_->predict(batch, nullptr, loss); }
int64_t Pipeline::weight_uploads() const { return impl_->weights->uploads(); }
int64_t Pipeline::host_stash_bytes() const { return impl_->pass->host_bytes(); }
void Pipeline::invalidate_weights() { impl_->weights->invalidate(); }
Event Pipeline::read_output(int microbatch, float* out) { return impl_->pass->read_output(microbatch, out); }
Event Pipeline::read_input_gradients(int microbatch, float* dlatent, float* dtext) {
  return impl_->pass->read_input_gradients(microbatch, dlatent, dtext);
}

}  // namespace megaslide
