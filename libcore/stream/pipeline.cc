#include "stream/pipeline.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/memory/memory.h"
#include "stream/micro_buffers.h"

namespace megaslide {
namespace {

// Weights of one module on the device.
struct Slot {
  const void* raw = nullptr;  // in place where the device shares host memory
  void* buffer = nullptr;
  void* packed = nullptr;
  int module = -1;
  bool packed_for_backward = false;
  Event ready, released;
};

}  // namespace

struct Pipeline::Impl {
  Device& device;
  const Network& network;
  HostStore& store;
  PipelineOptions options;
  PipelineHooks hooks;

  int layers;
  std::vector<Slot> slots;
  Slot embedding, head, again;
  std::vector<MicroBuffers> micro;
  std::unique_ptr<ActivationStash> stash;
  std::vector<BatchShape> shapes;  // of the last train()
  std::vector<int64_t> inputs;     // elements of a layer's input, of each microbatch of the last train()
  Workspace workspace;
  void *saved = nullptr, *head_saved = nullptr;
  float *recomputed = nullptr, *dout = nullptr, *gradient = nullptr;
  void* staging[2] = {};
  Event staging_free[2], inputs_released, results_sent;
  int staging_next = 0;
  double *loss_device = nullptr;
  std::vector<double> losses;
  std::vector<void*> allocations;
  int64_t uploads = 0;

  Impl(Device& d, const Network& n, HostStore& s, PipelineOptions o, PipelineHooks h)
      : device(d), network(n), store(s), options(std::move(o)), hooks(std::move(h)), layers(static_cast<int>(n.layers.size())) {
    MS_CHECK(!options.shapes.empty() && options.max_microbatches >= 1 && options.slots >= 2);
    MS_CHECK(!options.training || store.options().training);
    MS_CHECK(options.compute_dtype == store.options().compute_dtype);
    allocate_weights();
    allocate_activations();
    allocate_workspace();
  }
  ~Impl() {
    try {
      device.synchronize();
    } catch (const std::exception&) {
      // Reported where the step was waited for; here it only matters that nothing runs any more.
    }
    for (void* p : allocations) device.release(p);
  }

  // ---- memory ------------------------------------------------------------------------------------------------------

  void* take(int64_t bytes, std::string_view name, MemoryCategory category) {
    allocations.push_back(device.allocate(bytes, name, category));
    return allocations.back();
  }
  float* floats(int64_t n, std::string_view name, MemoryCategory category = MemoryCategory::kActivations) {
    return static_cast<float*>(take(n * 4, name, category));
  }
  // Over the shapes of train(), or over all.
  template <class F>
  int64_t largest(F&& of_shape, bool all = false) const {
    int64_t m = 0;
    for (const auto& s : options.shapes) m = std::max(m, of_shape(s));
    if (all)
      for (const auto& s : options.predict_shapes) m = std::max(m, of_shape(s));
    return m;
  }
  bool trains(const BatchShape& s) const { return std::find(options.shapes.begin(), options.shapes.end(), s) != options.shapes.end(); }
  bool knows(const BatchShape& s) const {
    return trains(s) || std::find(options.predict_shapes.begin(), options.predict_shapes.end(), s) != options.predict_shapes.end();
  }

  Slot make_slot(int64_t slab_elements, int64_t packed_bytes, const std::string& name) {
    Slot s;
    if (!device.shares_host_memory()) s.buffer = take(slab_elements * dtype_bytes(options.compute_dtype), name, MemoryCategory::kWeights);
    if (packed_bytes > 0) s.packed = take(packed_bytes, name + " packed", MemoryCategory::kWeights);
    return s;
  }

  void allocate_weights() {
    auto packed = [&](const Module& m) { return m.packed_bytes(options.compute_dtype, options.training); };
    embedding = make_slot(network.embedding->layout().elements, packed(*network.embedding), "embedding");
    head = make_slot(network.head->layout().elements, packed(*network.head), "head");
    int64_t elements = 0, bytes = 0;
    for (const auto& l : network.layers) {
      elements = std::max(elements, l->layout().elements);
      bytes = std::max(bytes, packed(*l));
    }
    for (int i = 0; i < std::min(options.slots, layers); ++i) slots.push_back(make_slot(elements, bytes, fmt::format("weight slot {}", i)));
    if (!options.training) return;
    if (options.upload_again) again = make_slot(elements, bytes, "weights once more");
    elements = std::max({elements, network.embedding->layout().elements, network.head->layout().elements});
    gradient = floats(elements, "gradient sums", MemoryCategory::kGradients);
    if (!device.shares_host_memory())
      for (auto& p : staging) p = take(elements * dtype_bytes(store.options().gradients), "gradient on its way", MemoryCategory::kGradients);
  }

  void allocate_stash() {
    const auto rows = [](const BatchShape& s) { return s.rows(); };
    ActivationStash::Sizes sizes{.elements_to_pass = largest(rows, true) * network.width};
    sizes.layers = 1;
    if (options.training) sizes = {layers, options.max_microbatches, largest(rows) * network.width, sizes.elements_to_pass};
    stash = std::make_unique<ActivationStash>(device, options.training ? options.stash : StashOptions{}, sizes, store.options().simulated,
                                              [&](int64_t n, const char* name) { return floats(n, name); });
  }

  void allocate_activations() {
    const auto dt = options.compute_dtype;
    // Only the first microbatch's are used by predict() and evaluate().
    MicroBufferNeeds needs{options.shapes, options.predict_shapes, dt, options.training, options.input_gradients};
    for (int a = 0; a < options.max_microbatches; ++a, needs.passed = {})
      micro.push_back(make_micro_buffers(network, needs, [&](int64_t bytes, std::string_view name) {
        return take(bytes, name, MemoryCategory::kActivations);
      }));
    allocate_stash();
    loss_device = static_cast<double*>(take(8 * options.max_microbatches, "loss", MemoryCategory::kOther));
    head_saved = take(largest([&](const BatchShape& s) { return network.head->saved_bytes(s, dt); }, true), "head saved",
                      MemoryCategory::kActivations);
    losses.assign(static_cast<size_t>(options.max_microbatches), 0);
    if (!options.training) return;
    dout = floats(largest([&](const BatchShape& s) { return latent_elements(network, s, network.out_channels); }), "output gradient");
    recomputed = floats(largest([](const BatchShape& s) { return s.rows(); }) * network.width, "recomputed output");
    int64_t bytes = 0;
    for (const auto& l : network.layers) bytes = std::max(bytes, largest([&](const BatchShape& s) { return l->saved_bytes(s, dt); }));
    saved = take(bytes, "layer saved", MemoryCategory::kActivations);
  }

  void dry_run(Stream& stream, Workspace& dry, const BatchShape& s, bool backward) {
    auto* anything = reinterpret_cast<float*>(uintptr_t{1} << 46);
    auto* if_probed = options.input_gradients ? anything : nullptr;
    const Conditioning conditioning{anything, anything, anything, anything};
    const LayerCall call{stream, dry, s, options.compute_dtype, anything, anything};
    network.embedding->forward(call, anything, anything, anything, anything, anything, anything, anything, anything);
    for (const auto& l : network.layers) {
      l->forward(call, conditioning, anything, anything, nullptr);
      if (!backward) continue;
      l->forward(call, conditioning, anything, anything, anything);
      l->backward(call, conditioning, anything, anything, anything, anything, anything);
    }
    network.head->forward(call, anything, anything, anything, anything);
    if (!backward) return;
    network.head->backward(call, anything, anything, anything, anything, anything, anything, anything);
    network.embedding->backward(call, anything, anything, anything, anything, anything, anything, anything, if_probed, if_probed, anything);
  }

  // The same calls on a device that runs nothing tell how high the stack of temporaries grows.
  void allocate_workspace() {
    Workspace dry;
    const auto dry_device = make_sim_device({});
    for (const auto& s : options.shapes) dry_run(dry_device->compute(), dry, s, options.training);
    for (const auto& s : options.predict_shapes) dry_run(dry_device->compute(), dry, s, false);
    workspace = Workspace(take(dry.high_water(), "workspace", MemoryCategory::kWorkspace), dry.high_water());
  }

  // ---- weights -----------------------------------------------------------------------------------------------------

  const Module& module(int i) const { return *store.module(i).module; }

  // Uploads and packs module `index` into `slot` once its last reader is done and its optimizer has run.
  void load(Slot& slot, int index, bool backward) {
    const bool for_backward = options.training && backward;
    if (slot.module == index && (slot.packed_for_backward || !for_backward)) return;
    Stream& s = device.upload();
    const bool resident_copy = slot.module == index;
    // What the hook queues on this stream need not wait for the slot.
    const Event before = hooks.before_upload && !resident_copy ? hooks.before_upload(index, slot.released) : Event{};
    device.wait(s, slot.released);
    if (!resident_copy) {
      const void* updated = hooks.updated_weights ? hooks.updated_weights(index) : nullptr;
      if (!updated) device.wait(s, before);
      const void* host = store.module(index).weights;
      const int64_t bytes = module(index).layout().elements * dtype_bytes(options.compute_dtype);
      slot.raw = slot.buffer ? slot.buffer : host;
      if (updated) device.copy(s, slot.buffer, updated, bytes, CopyKind::kWithinDevice, "new weights");
      else if (slot.buffer) device.copy(s, slot.buffer, host, bytes, CopyKind::kUpload, "upload weights");
      if (index >= 1 && index <= layers) ++uploads;
    }
    if (slot.packed) module(index).pack(s, options.compute_dtype, for_backward, slot.raw, slot.packed);
    slot.module = index;
    slot.packed_for_backward = for_backward;
    slot.ready = device.record(s);
  }

  Slot& slot_of(int layer) { return slots[static_cast<size_t>(layer) % slots.size()]; }
  // A forward through layers below `end` leaves its last S of them for the backward, so those are packed for both at once.
  void load_layer(int layer, bool backward, int end) {
    if (layer < 0 || layer >= end) return;
    load(slot_of(layer), 1 + layer, backward || layer + static_cast<int>(slots.size()) >= end);
  }

  LayerCall call(const Slot& slot, const BatchShape& shape) {
    return {device.compute(), workspace, shape, options.compute_dtype, slot.raw, slot.packed};
  }

  LayerCall layer_call(const Slot& slot, const MicroBatch& b, const MicroBuffers& m) {
    LayerCall c = call(slot, b.shape);
    if (b.shots) c.t_lo = m.shots, c.t_hi = m.shots + b.shape.batch * b.shape.frames;
    c.displacement = m.displacement;
    return c;
  }

  // ---- forward -----------------------------------------------------------------------------------------------------

  Event upload_inputs(std::span<const MicroBatch> batches) {
    Stream& s = device.upload();
    device.wait(s, inputs_released);
    for (size_t a = 0; a < batches.size(); ++a) {
      const MicroBatch& b = batches[a];
      const MicroBuffers& m = micro[a];
      auto up = [&](void* dst, const void* src, int64_t n) { device.copy(s, dst, src, n * 4, CopyKind::kUpload, "upload inputs"); };
      up(m.latent, b.latent, latent_elements(network, b.shape, network.in_channels));
      up(m.timesteps, b.timesteps, b.shape.timesteps());
      up(m.text, b.text, b.shape.batch * b.shape.context_rows * network.text_width);
      if (b.target) up(m.target, b.target, latent_elements(network, b.shape, network.out_channels));
      if (network.needs_displacement) up(m.displacement, b.displacement, 2 * b.shape.rows() * b.shape.frames);
      if (b.shots) up(m.shots, b.shots, 2 * b.shape.batch * b.shape.frames);
      if (b.target && b.loss_weights) up(m.loss_weights, b.loss_weights, b.shape.batch * b.shape.frames);
    }
    return device.record(s);
  }

  // Layer l of all microbatches, from `input` to `output`; the layer after it is uploaded meanwhile, if it is below `end`.
  template <class In, class Out>
  void forward_layer(std::span<const MicroBatch> batches, int l, int end, In&& input, Out&& output) {
    load_layer(l, false, end);
    load_layer(l + 1, false, end);
    Slot& slot = slot_of(l);
    device.wait(device.compute(), slot.ready);
    for (size_t a = 0; a < batches.size(); ++a) {
      MicroBuffers& m = micro[a];
      network.layers[static_cast<size_t>(l)]->forward(layer_call(slot, batches[a], m), {m.context, m.modulation, nullptr, nullptr},
                                                      input(static_cast<int>(a)), output(static_cast<int>(a)), nullptr);
    }
    slot.released = device.record(device.compute());
  }
  // With all inputs in the stash.
  void forward_layer(std::span<const MicroBatch> batches, int l, int end) {
    stash->before_write(l + 1);
    forward_layer(batches, l, end, [&](int a) { return stash->at(a, l); }, [&](int a) { return stash->at(a, l + 1); });
    stash->written(l + 1, inputs);
  }

  // Up to the tokens that the head reads, and the head's weights. keep: the layers' inputs stay for the backward.
  void forward(std::span<const MicroBatch> batches, bool keep) {
    Stream& c = device.compute();
    for (const auto& b : batches) {
      MS_CHECK(keep ? trains(b.shape) : knows(b.shape), "a shape that the pipeline was not made for");
      if (network.needs_displacement && b.displacement == nullptr)
        throw usage_error("the model's offsets come from a known motion (dsa.offsets: net+given), which is not given here",
                          "train on a cache with data.displacement, or set model.dsa.offsets=net+motion");
    }
    device.set_phase("inputs");
    const Event inputs_here = upload_inputs(batches);
    load(embedding, 0, true);
    load_layer(0, false, layers);
    device.wait(c, inputs_here);
    device.wait(c, embedding.ready);
    device.set_phase("forward embedding");
    if (keep) stash->before_write(0);
    for (size_t a = 0; a < batches.size(); ++a) {
      MicroBuffers& m = micro[a];
      network.embedding->forward(call(embedding, batches[a].shape), m.latent, m.timesteps, m.text, stash->at(static_cast<int>(a), 0), m.context,
                                 m.time, m.modulation, m.embedding_saved);
    }
    if (keep) stash->written(0, inputs);
    for (int l = 0; l < layers; ++l) {
      device.set_phase(fmt::format("forward {}", l));
      if (keep) forward_layer(batches, l, layers);
      else forward_layer(batches, l, layers, [&](int) { return stash->pass(l % 2); }, [&](int) { return stash->pass(1 - l % 2); });
    }
    device.set_phase("head");
    load(head, layers + 1, true);
    device.wait(c, head.ready);
    device.wait(c, results_sent);  // the head and the loss overwrite what the pass before returned
  }

  void measure_loss(const MicroBatch& b, const MicroBuffers& m, double* loss, float* gradient_out, float scale) {
    const BatchShape& s = b.shape;
    const LossGrid grid{s.batch, network.out_channels, s.frames, s.height * network.patch_height * s.width * network.patch_width};
    velocity_loss(device.compute(), loss, gradient_out, m.output, m.target, b.loss_weights ? m.loss_weights : nullptr, grid, options.loss, scale);
  }

  Event predict(const MicroBatch& batch, float* out, double* loss) {
    forward({&batch, 1}, false);
    Stream& d = device.download();
    MicroBuffers& m = micro[0];
    network.head->forward(call(head, batch.shape), stash->pass(layers % 2), m.time, m.output, head_saved);
    const int64_t n = latent_elements(network, batch.shape, network.out_channels);
    if (loss) measure_loss(batch, m, loss_device, nullptr, 1.0f);
    release_residents();
    device.wait(d, inputs_released);
    if (out) device.copy(d, out, m.output, n * 4, CopyKind::kDownload, "download output");
    if (loss) device.copy(d, loss, loss_device, 8, CopyKind::kDownload, "download loss");
    return results_sent = device.record(d);
  }

  // A pass is over: inputs, embedding and head may be overwritten.
  void release_residents() { inputs_released = embedding.released = head.released = device.record(device.compute()); }

  // ---- backward ----------------------------------------------------------------------------------------------------

  void clear_gradient(int index) { fill_zero(device.compute(), gradient, module(index).layout().elements * 4); }

  // The sums of a module leave in the gradient codec.
  void send_gradient(int index) {
    Stream &c = device.compute(), &d = device.download();
    const int64_t n = module(index).layout().elements;
    const DType dtype = store.options().gradients;
    void* host = store.module(index).gradient;
    const Event free = hooks.before_gradient ? hooks.before_gradient(index) : Event{};
    Event done;
    if (device.shares_host_memory()) {
      device.wait(c, free);
      cast_operand(c, host, gradient, n, dtype);
      done = device.record(c);
    } else {
      const auto k = static_cast<size_t>(std::exchange(staging_next, 1 - staging_next));
      device.wait(c, staging_free[k]);
      cast_operand(c, staging[k], gradient, n, dtype);
      device.wait(d, device.record(c));
      device.wait(d, free);
      device.copy(d, host, staging[k], n * dtype_bytes(dtype), CopyKind::kDownload, "download gradient");
      done = staging_free[k] = device.record(d);
    }
    if (hooks.gradient_ready) hooks.gradient_ready(index, done);
  }

  void head_and_loss(std::span<const MicroBatch> batches) {
    Stream& c = device.compute();
    clear_gradient(layers + 1);
    for (size_t a = 0; a < batches.size(); ++a) {
      const BatchShape& s = batches[a].shape;
      MicroBuffers& m = micro[a];
      const int64_t d = network.width;
      fill_zero(c, m.dcontext, s.batch * s.context_rows * d * 4);
      fill_zero(c, m.dtime, s.timesteps() * d * 4);
      fill_zero(c, m.dmodulation, s.timesteps() * 6 * d * 4);
      network.head->forward(call(head, s), stash->at(static_cast<int>(a), layers), m.time, m.output, head_saved);
      measure_loss(batches[a], m, loss_device + a, dout, 1.0f / static_cast<float>(batches.size()));
      network.head->backward(call(head, s), stash->at(static_cast<int>(a), layers), m.time, head_saved, dout, m.dtokens, m.dtime, gradient);
    }
    Stream& down = device.download();
    device.wait(down, device.record(c));
    device.copy(down, losses.data(), loss_device, 8 * static_cast<int64_t>(batches.size()), CopyKind::kDownload, "download loss");
    results_sent = device.record(down);
    send_gradient(layers + 1);
  }

  // `next`: the layer that comes after this one, to be differentiated, or the first one of layers that are computed again.
  void backward_layer(std::span<const MicroBatch> batches, int l, int next, bool next_backward) {
    Stream& c = device.compute();
    device.set_phase(fmt::format("backward {}", l));
    load_layer(l, true, layers);
    stash->fetch(l, inputs);
    Slot& slot = slot_of(l);
    device.wait(c, slot.ready);
    Slot& differentiated = options.upload_again ? again : slot;
    if (options.upload_again) {
      again.module = -1;
      load(again, 1 + l, true);
    }
    stash->wait(l);
    clear_gradient(1 + l);
    const Layer& layer = *network.layers[static_cast<size_t>(l)];
    for (size_t a = 0; a < batches.size(); ++a) {
      MicroBuffers& m = micro[a];
      const float* input = stash->at(static_cast<int>(a), l);
      const LayerCall with = layer_call(slot, batches[a], m);
      const Conditioning conditioning{m.context, m.modulation, m.dcontext, m.dmodulation};
      layer.forward(with, conditioning, input, recomputed, saved);
      device.wait(c, differentiated.ready);
      layer.backward(layer_call(differentiated, batches[a], m), conditioning, input, saved, m.dtokens, m.dtokens, gradient);
    }
    slot.released = again.released = device.record(c);
    stash->release(l);
    // They may take the places of this layer's.
    load_layer(next, next_backward, next_backward ? layers : l);
    stash->fetch(next, inputs);
    send_gradient(1 + l);
  }

  void backward_layers(std::span<const MicroBatch> batches) {
    for (int end = layers; end > 0; end = stash->segment_begin(end - 1)) {
      const int begin = stash->segment_begin(end - 1), before = begin > 0 ? stash->segment_begin(begin - 1) : -1;
      // The inputs of the last segment are those that the forward computed last.
      for (int l = begin; end < layers && l < end - 1; ++l) {
        device.set_phase(fmt::format("again {}", l));
        stash->fetch(l, inputs);
        stash->wait(l);
        forward_layer(batches, l, end);
      }
      for (int l = end - 1; l > begin; --l) backward_layer(batches, l, l - 1, true);
      backward_layer(batches, begin, before, before == begin - 1);
    }
  }

  Event train(std::span<const MicroBatch> batches) {
    MS_CHECK(options.training && !batches.empty() && batches.size() <= micro.size());
    shapes.clear();
    inputs.clear();
    for (const auto& b : batches) {
      shapes.push_back(b.shape);
      inputs.push_back(b.shape.rows() * network.width);
    }
    forward(batches, true);
    head_and_loss(batches);
    stash->release(layers);
    backward_layers(batches);
    device.set_phase("backward embedding");
    clear_gradient(0);
    for (size_t a = 0; a < batches.size(); ++a) {
      MicroBuffers& m = micro[a];
      network.embedding->backward(call(embedding, batches[a].shape), m.latent, m.text, m.embedding_saved, m.dtokens, m.dcontext,
                                  m.dtime, m.dmodulation, m.dlatent, m.dtext, gradient);
    }
    send_gradient(0);
    release_residents();
    Stream& d = device.download();
    device.wait(d, inputs_released);
    return device.record(d);
  }

  Event download(std::initializer_list<std::tuple<float*, const float*, int64_t>> copies) {
    Stream& d = device.download();
    device.wait(d, device.record(device.compute()));
    for (const auto& [dst, src, n] : copies)
      if (dst) device.copy(d, dst, src, n * 4, CopyKind::kDownload, "download result");
    return results_sent = device.record(d);
  }
};

Pipeline::Pipeline(Device& device, const Network& network, HostStore& store, PipelineOptions options, PipelineHooks hooks)
    : impl_(std::make_unique<Impl>(device, network, store, std::move(options), std::move(hooks))) {}
Pipeline::~Pipeline() = default;

Event Pipeline::train(std::span<const MicroBatch> batches) { return impl_->train(batches); }
Event Pipeline::losses_ready() const { return impl_->results_sent; }
const double* Pipeline::losses() const { return impl_->losses.data(); }
Event Pipeline::predict(const MicroBatch& batch, float* out) { return impl_->predict(batch, out, nullptr); }
Event Pipeline::evaluate(const MicroBatch& batch, double* loss) { return impl_->predict(batch, nullptr, loss); }
int64_t Pipeline::weight_uploads() const { return impl_->uploads; }
int64_t Pipeline::host_stash_bytes() const { return impl_->stash->host_bytes(); }

void Pipeline::invalidate_weights() {
  for (auto& s : impl_->slots) s.module = -1;
  impl_->embedding.module = impl_->head.module = -1;
}

Event Pipeline::read_output(int microbatch, float* out) {
  const auto a = static_cast<size_t>(microbatch);
  return impl_->download({{out, impl_->micro[a].output, latent_elements(impl_->network, impl_->shapes[a], impl_->network.out_channels)}});
}

Event Pipeline::read_input_gradients(int microbatch, float* dlatent, float* dtext) {
  const auto a = static_cast<size_t>(microbatch);
  const BatchShape& s = impl_->shapes[a];
  const MicroBuffers& m = impl_->micro[a];
  return impl_->download({{dlatent, m.dlatent, latent_elements(impl_->network, s, impl_->network.in_channels)},
                          {dtext, m.dtext, s.batch * s.context_rows * impl_->network.text_width}});
}

}  // namespace megaslide
