// Clips go through every layer whole: inputs, outputs and gradients of a clip lie on the device, layers' inputs in the stash.
#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "kernels/memory/memory.h"
#include "stream/pass.h"

namespace megaslide {
namespace {

class WholePass final : public Pass {
 public:
  explicit WholePass(const PassContext& context) : Pass(context, true), layers_(static_cast<int>(x_.network.layers.size())) {
    const PipelineOptions& o = x_.options;
    const auto rows = [](const BatchShape& s) { return s.rows(); };
    ActivationStash::Sizes sizes{.layers = 1, .elements_to_pass = largest(rows, true) * x_.network.width};
    if (o.training) sizes = {layers_, o.max_microbatches, largest(rows) * x_.network.width, sizes.elements_to_pass};
    stash_ = std::make_unique<ActivationStash>(x_.device, o.training ? o.stash : StashOptions{}, sizes, x_.simulated,
                                               [&](int64_t n, const char* name) { return floats(n, name); });
    head_saved_ = x_.take(largest([&](const BatchShape& s) { return x_.network.head->saved_bytes(s, o.compute_dtype); }, true), "head saved",
                          MemoryCategory::kActivations);
    if (!o.training) return;
    dout_ = floats(largest([&](const BatchShape& s) { return latent_elements(x_.network, s, x_.network.out_channels); }), "output gradient");
    recomputed_ = floats(largest(rows) * x_.network.width, "recomputed output");
    int64_t bytes = 0;
    for (const auto& l : x_.network.layers) bytes = std::max(bytes, largest([&](const BatchShape& s) { return l->saved_bytes(s, o.compute_dtype); }));
    saved_ = x_.take(bytes, "layer saved", MemoryCategory::kActivations);
  }

  void measure(Stream& stream, Workspace& workspace) override {
    for (const auto& s : x_.options.shapes) measure(stream, workspace, s, x_.options.training);
    for (const auto& s : x_.options.predict_shapes) measure(stream, workspace, s, false);
  }

  bool weights_ahead() const override { return true; }

  void embed(Batches batches, bool keep) override {
    Stream& c = x_.device.compute();
    inputs_.clear();
    shapes_.clear();
    for (const auto& b : batches) inputs_.push_back(b.shape.rows() * x_.network.width), shapes_.push_back(b.shape);
    x_.device.set_phase("inputs");
    const Event inputs_here = upload(batches);
    x_.weights.load_embedding();
    x_.weights.load_layer(0, false, layers_);
    x_.device.wait(c, inputs_here);
    x_.device.wait(c, x_.weights.embedding().ready);
    x_.device.set_phase("forward embedding");
    condition(batches);
    if (keep) stash_->before_write(0);
    for (size_t a = 0; a < batches.size(); ++a)
      x_.network.embedding->tokens_forward(call(x_.weights.embedding(), batches[a].shape), micro_[a].latent, stash_->at(static_cast<int>(a), 0));
    if (keep) stash_->written(0, inputs_);
  }

  void forward(Batches batches, int l, bool keep) override {
    if (!keep) return forward(batches, l, [&](int) { return stash_->pass(l % 2); }, [&](int) { return stash_->pass(1 - l % 2); });
    stash_->wait(l);
    stash_->before_write(l + 1);
    forward(batches, l, [&](int a) { return stash_->at(a, l); }, [&](int a) { return stash_->at(a, l + 1); });
    stash_->written(l + 1, inputs_);
  }

  Event head_and_loss(Batches batches, double* losses) override {
    x_.device.wait(x_.device.compute(), results_sent_);
    const Head& head = *x_.network.head;
    for (size_t a = 0; a < batches.size(); ++a) {
      const BatchShape& s = batches[a].shape;
      MicroBuffers& m = micro_[a];
      const float* tokens = stash_->at(static_cast<int>(a), layers_);
      clear_conditioning_gradients(batches[a], m);
      head.forward(call(x_.weights.head(), s), tokens, m.time, m.output, head_saved_);
      measure_loss(batches[a], m, loss_ + a, dout_, 1.0f / static_cast<float>(batches.size()));
      head.backward(call(x_.weights.head(), s), tokens, m.time, head_saved_, dout_, m.dtokens, m.dtime, x_.gradient);
    }
    return download_losses(losses, static_cast<int64_t>(batches.size()));
  }

  Event predict(const MicroBatch& batch, float* out, double* loss) override {
    Stream &c = x_.device.compute(), &d = x_.device.download();
    x_.device.wait(c, results_sent_);
    MicroBuffers& m = micro_[0];
    x_.network.head->forward(call(x_.weights.head(), batch.shape), stash_->pass(layers_ % 2), m.time, m.output, head_saved_);
    if (loss) measure_loss(batch, m, loss_, nullptr, 1.0f);
    x_.device.wait(d, x_.device.record(c));
    if (out) x_.device.copy(d, out, m.output, latent_elements(x_.network, batch.shape, x_.network.out_channels) * 4, CopyKind::kDownload, "download output");
    if (loss) x_.device.copy(d, loss, loss_, 8, CopyKind::kDownload, "download loss");
    return results_sent_ = x_.device.record(d);
  }

  void fetch(int l) override { stash_->fetch(l, inputs_); }
  void release(int l) override { stash_->release(l); }

  void backward(Batches batches, int l) override {
    stash_->wait(l);
    const Layer& layer = *x_.network.layers[static_cast<size_t>(l)];
    for (size_t a = 0; a < batches.size(); ++a) {
      MicroBuffers& m = micro_[a];
      const float* input = stash_->at(static_cast<int>(a), l);
      const Conditioning conditioning{m.context, m.modulation, m.dcontext, m.dmodulation};
      layer.forward(layer_call(x_.weights.layer(l), batches[a], m), conditioning, input, recomputed_, saved_);
      const WeightSlot& slot = x_.weights.differentiated(l);
      x_.device.wait(x_.device.compute(), slot.ready);
      layer.backward(layer_call(slot, batches[a], m), conditioning, input, saved_, m.dtokens, m.dtokens, x_.gradient);
    }
  }

  void backward_embedding(Batches batches) override {
    condition_backward(batches);
    for (size_t a = 0; a < batches.size(); ++a) {
      const MicroBuffers& m = micro_[a];
      x_.network.embedding->tokens_backward(call(x_.weights.embedding(), batches[a].shape), m.latent, m.dtokens, m.dlatent, x_.gradient);
    }
  }

  Event read_output(int microbatch, float* out) override {
    const auto a = static_cast<size_t>(microbatch);
    return download({{out, micro_[a].output, latent_elements(x_.network, shapes_[a], x_.network.out_channels)}});
  }
  Event read_input_gradients(int microbatch, float* dlatent, float* dtext) override {
    const auto a = static_cast<size_t>(microbatch);
    const BatchShape& s = shapes_[a];
    return download({{dlatent, micro_[a].dlatent, latent_elements(x_.network, s, x_.network.in_channels)},
                     {dtext, micro_[a].dtext, s.batch * s.context_rows * x_.network.text_width}});
  }

  int64_t host_bytes() const override { return stash_->host_bytes(); }

 private:
  void measure(Stream& stream, Workspace& dry, const BatchShape& s, bool backward) const {
    auto* any = reinterpret_cast<float*>(uintptr_t{1} << 46);  // NOLINT(performance-no-int-to-ptr): a dry run only compares it with null
    auto* if_probed = x_.options.input_gradients ? any : nullptr;
    const Conditioning conditioning{any, any, any, any};
    const LayerCall with{stream, dry, s, x_.options.compute_dtype, any, any};
    const Network& n = x_.network;
    n.embedding->conditioning_forward(with, any, any, any, any, any, any);
    n.embedding->tokens_forward(with, any, any);
    for (const auto& l : n.layers) {
      l->forward(with, conditioning, any, any, nullptr);
      if (!backward) continue;
      l->forward(with, conditioning, any, any, any);
      l->backward(with, conditioning, any, any, any, any, any);
    }
    n.head->forward(with, any, any, any, any);
    if (!backward) return;
    n.head->backward(with, any, any, any, any, any, any, any);
    n.embedding->conditioning_backward(with, any, any, any, any, any, if_probed, any);
    n.embedding->tokens_backward(with, any, any, if_probed, any);
  }

  LayerCall layer_call(const WeightSlot& slot, const MicroBatch& b, const MicroBuffers& m) const {
    LayerCall c = call(slot, b.shape);
    if (b.shots) c.t_lo = m.shots, c.t_hi = m.shots + b.shape.batch * b.shape.frames;
    c.displacement = m.displacement;
    return c;
  }

  Event upload(Batches batches) {
    Stream& s = x_.device.upload();
    x_.device.wait(s, inputs_released_);
    for (size_t a = 0; a < batches.size(); ++a) {
      const MicroBatch& b = batches[a];
      const MicroBuffers& m = micro_[a];
      const auto up = [&](void* dst, const void* src, int64_t n) { x_.device.copy(s, dst, src, n * 4, CopyKind::kUpload, "upload inputs"); };
      up(m.latent, b.latent, latent_elements(x_.network, b.shape, x_.network.in_channels));
      if (b.target) up(m.target, b.target, latent_elements(x_.network, b.shape, x_.network.out_channels));
      if (x_.network.needs_displacement) up(m.displacement, b.displacement, 2 * b.shape.rows() * b.shape.frames);
      if (b.shots) up(m.shots, b.shots, 2 * b.shape.batch * b.shape.frames);
    }
    upload_conditioning(batches);
    return x_.device.record(s);
  }

  template <class In, class Out>
  void forward(Batches batches, int l, In&& input, Out&& output) {
    for (size_t a = 0; a < batches.size(); ++a) {
      MicroBuffers& m = micro_[a];
      x_.network.layers[static_cast<size_t>(l)]->forward(layer_call(x_.weights.layer(l), batches[a], m), {m.context, m.modulation, nullptr, nullptr},
                                                         input(static_cast<int>(a)), output(static_cast<int>(a)), nullptr);
    }
  }

  void measure_loss(const MicroBatch& b, const MicroBuffers& m, double* loss, float* dout, float scale) const {
    const BatchShape& s = b.shape;
    const LossGrid grid{s.batch, x_.network.out_channels, s.frames, s.height * x_.network.patch_height * s.width * x_.network.patch_width};
    velocity_loss(x_.device.compute(), loss, dout, m.output, m.target, b.loss_weights ? m.loss_weights : nullptr, grid, x_.options.loss, scale);
  }

  Event download(std::initializer_list<std::tuple<float*, const float*, int64_t>> copies) {
    Stream& d = x_.device.download();
    x_.device.wait(d, x_.device.record(x_.device.compute()));
    for (const auto& [dst, src, n] : copies)
      if (dst) x_.device.copy(d, dst, src, n * 4, CopyKind::kDownload, "download result");
    return results_sent_ = x_.device.record(d);
  }

  int layers_;
  std::unique_ptr<ActivationStash> stash_;
  std::vector<BatchShape> shapes_;  // of the last pass
  std::vector<int64_t> inputs_;     // elements of a layer's input, of each microbatch of the last pass
  void *saved_ = nullptr, *head_saved_ = nullptr;
  float *recomputed_ = nullptr, *dout_ = nullptr;
};

}  // namespace

std::unique_ptr<Pass> make_whole_pass(const PassContext& context) { return std::make_unique<WholePass>(context); }

}  // namespace megaslide
