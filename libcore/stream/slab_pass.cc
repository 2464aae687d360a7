// Clips go through every layer slab by slab (spec engine.md §3): frames [0, n), [n, 2n), … of one sample after the other.
// Layers' inputs and their gradients lie in host memory; the device holds the slab in hand, the next one on its way and the
// one before it leaving, each with the frames beside it that self-attention sees.
//
// A backward call yields the gradient at all rows that it sees. Those that the next slab sees too are carried to it; the
// others are whole, and leave. Sums over slabs are in the order of time.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "kernels/memory/memory.h"
#include "stream/pass.h"

namespace megaslide {
namespace {

// Two places of device memory that take turns.
struct Lane {
  float* memory[2] = {};
  Event free[2];
  size_t hand = 0;
};

// Rows of a microbatch in host memory, (B·N, D) fp32.
struct HostRows {
  float* rows = nullptr;
  std::vector<Event> there;  // a slab: its own rows are whole
};

class SlabPass final : public Pass {
 public:
  explicit SlabPass(const PassContext& context)
      : Pass(context, false), layers_(static_cast<int>(x_.network.layers.size())), slab_(x_.options.slab_frames), width_(x_.network.width),
        shared_(x_.device.shares_host_memory()), segment_(std::min(x_.options.stash.segment, layers_)), host_(x_.simulated) {
    MS_CHECK(!x_.options.input_gradients && !x_.options.upload_again);
    find_sizes();
    allocate_host();
    allocate_device();
  }

  void measure(Stream& stream, Workspace& dry) override {
    auto* any = reinterpret_cast<float*>(uintptr_t{1} << 46);  // NOLINT(performance-no-int-to-ptr): a dry run only compares it with null
    const auto with = [&](const BatchShape& s) { return LayerCall{stream, dry, s, x_.options.compute_dtype, any, any}; };
    const Network& n = x_.network;
    for_shapes(true, [&](const BatchShape& clip, bool trained) {
      n.embedding->conditioning_forward(with(clip), any, any, any, any, any, any);
      if (trained) n.embedding->conditioning_backward(with(clip), any, any, any, any, any, nullptr, any);
      for (const BatchShape& s : own_shapes(clip)) {
        n.embedding->tokens_forward(with(s), any, any);
        n.head->forward(with(s), any, any, any, any);
        if (!trained) continue;
        n.head->backward(with(s), any, any, any, any, any, any, any);
        n.embedding->tokens_backward(with(s), any, any, nullptr, any);
      }
      for (int l = 0; l < layers_; ++l)
        for (const BatchShape& s : seen_shapes(l, clip)) {
          const Layer& layer = this->layer(l);
          const Conditioning given{any, any, any, any};
          layer.forward(with(s), given, any, any, nullptr);
          if (!trained) continue;
          layer.forward(with(s), given, any, any, any);
          layer.backward(with(s), given, any, any, any, any, any);
        }
    });
  }

  bool weights_ahead() const override { return false; }

  void embed(Batches batches, bool keep) override {
    Stream &c = x_.device.compute(), &u = x_.device.upload();
    if (shot_tables_.size() > kShotTables) {
      x_.device.synchronize(inputs_released_);
      shot_tables_.clear();
    }
    x_.device.set_phase("inputs");
    x_.device.wait(u, inputs_released_);
    upload_conditioning(batches);
    const Event here = x_.device.record(u);
    x_.weights.load_embedding();
    x_.weights.announce_layer(0);
    x_.device.wait(c, here);
    x_.device.wait(c, x_.weights.embedding().ready);
    x_.device.set_phase("forward embedding");
    condition(batches);
    for_slabs(batches, [&](size_t a, const MicroBatch& b, int64_t sample, FrameRange own) {
      const float* latent = bring_latent(latents_, b.latent, x_.network.in_channels, b.shape, sample, own);
      HostRows& to = input_of(a, 0, keep);
      x_.network.embedding->tokens_forward(call(x_.weights.embedding(), b.shape.slab(own, own)), latent,
                                           room(outputs_, to, b.shape, sample, own));
      done(latents_);
      leave(outputs_, to, b.shape, sample, own);
    });
  }

  void forward(Batches batches, int l, bool keep) override {
    const Layer& layer = this->layer(l);
    for_slabs(batches, [&](size_t a, const MicroBatch& b, int64_t sample, FrameRange own) {
      const FrameRange seen = *layer.sees(b.shape.frames, own);
      const float* input = bring(inputs_, input_of(a, l, keep), b.shape, sample, seen);
      HostRows& to = input_of(a, l + 1, keep);
      layer.forward(layer_call(l, b, sample, seen, own), conditioning(micro_[a], b.shape, sample, seen), input,
                    room(outputs_, to, b.shape, sample, own), nullptr);
      done_layer(b);
      leave(outputs_, to, b.shape, sample, own);
    });
  }

  Event head_and_loss(Batches batches, double* losses) override {
    x_.device.wait(x_.device.compute(), results_sent_);
    for (size_t a = 0; a < batches.size(); ++a) clear_conditioning_gradients(batches[a], micro_[a]);
    const Head& head = *x_.network.head;
    for_slabs(batches, [&](size_t a, const MicroBatch& b, int64_t sample, FrameRange own) {
      const float* tokens = bring(inputs_, input_of(a, layers_, true), b.shape, sample, own);
      const LayerCall with = call(x_.weights.head(), b.shape.slab(own, own));
      const int64_t time = timestep(b.shape, sample, own) * width_;
      float* velocity = next(velocities_);
      head.forward(with, tokens, micro_[a].time + time, velocity, head_saved_);
      measure_loss(b, micro_[a], sample, own, velocity, loss_ + a, dout_, 1.0f / static_cast<float>(batches.size()));
      float* dtokens = next(gradients_);
      head.backward(with, tokens, micro_[a].time + time, head_saved_, dout_, dtokens, micro_[a].dtime + time, x_.gradient);
      done(inputs_);
      send_gradient(dtokens, a, b.shape, sample, own);
    });
    return download_losses(losses, static_cast<int64_t>(batches.size()));
  }

  Event predict(const MicroBatch& batch, float* out, double* loss) override {
    x_.device.wait(x_.device.compute(), results_sent_);
    Stream& d = x_.device.download();
    for_slabs({&batch, 1}, [&](size_t, const MicroBatch& b, int64_t sample, FrameRange own) {
      const float* tokens = bring(inputs_, input_of(0, layers_, false), b.shape, sample, own);
      float* velocity = next(velocities_);
      x_.network.head->forward(call(x_.weights.head(), b.shape.slab(own, own)), tokens,
                               micro_[0].time + timestep(b.shape, sample, own) * width_, velocity, head_saved_);
      done(inputs_);
      if (loss) measure_loss(b, micro_[0], sample, own, velocity, loss_, nullptr, 1.0f);
      if (!out) return;
      x_.device.wait(d, x_.device.record(x_.device.compute()));
      for_channels(x_.network.out_channels, b.shape, sample, own, [&](int64_t at, int64_t of_clip, int64_t n) {
        x_.device.copy(d, out + of_clip, velocity + at, n * 4, CopyKind::kDownload, "download output");
      });
      velocities_.free[velocities_.hand] = x_.device.record(d);
    });
    if (loss) return download_losses(loss, 1);
    return results_sent_ = x_.device.record(d);
  }

  void backward(Batches batches, int l) override {
    const Layer& layer = this->layer(l);
    int64_t carried = 0;  // rows of the slab before that this one sees too
    for_slabs(batches, [&](size_t a, const MicroBatch& b, int64_t sample, FrameRange own) {
      const BatchShape& s = b.shape;
      const FrameRange seen = *layer.sees(s.frames, own);
      const float* input = bring(inputs_, input_of(a, l, true), s, sample, seen);
      const float* dy = bring(incoming_, clip_gradients_[a], s, sample, own);
      float* dx = next(gradients_);
      const LayerCall with = layer_call(l, b, sample, seen, own);
      const Conditioning given = conditioning(micro_[a], s, sample, seen);
      layer.forward(with, given, input, recomputed_, saved_);
      layer.backward(with, given, input, saved_, dy, dx, x_.gradient);
      done_layer(b);
      done(incoming_);
      const FrameRange whole{seen.begin, own.end == s.frames ? s.frames : layer.sees(s.frames, next_slab(s, own))->begin};
      const int64_t row = s.height * s.width * width_;
      Stream& c = x_.device.compute();
      if (carried > 0) add_in_place(c, dx, carry_, carried * row);
      carried = seen.end - whole.end;
      if (carried > 0) copy_memory(c, carry_, dx + whole.count() * row, carried * row * 4);
      send_gradient(dx, a, s, sample, whole);
    });
  }

  void backward_embedding(Batches batches) override {
    condition_backward(batches);
    for_slabs(batches, [&](size_t a, const MicroBatch& b, int64_t sample, FrameRange own) {
      const float* latent = bring_latent(latents_, b.latent, x_.network.in_channels, b.shape, sample, own);
      const float* dtokens = bring(incoming_, clip_gradients_[a], b.shape, sample, own);
      x_.network.embedding->tokens_backward(call(x_.weights.embedding(), b.shape.slab(own, own)), latent, dtokens, nullptr, x_.gradient);
      done(latents_);
      done(incoming_);
    });
  }

  void fetch(int) override {}
  void release(int) override {}
  Event read_output(int, float*) override { MS_CHECK(false, "probes take whole clips"); }
  Event read_input_gradients(int, float*, float*) override { MS_CHECK(false, "probes take whole clips"); }
  int64_t host_bytes() const override { return host_bytes_; }

 private:
  // ---- slabs -------------------------------------------------------------------------------------------------------

  const Layer& layer(int l) const { return *x_.network.layers[static_cast<size_t>(l)]; }
  int64_t slabs(const BatchShape& s) const { return (s.frames + slab_ - 1) / slab_; }
  FrameRange slab(const BatchShape& s, int64_t i) const { return {i * slab_, std::min(s.frames, (i + 1) * slab_)}; }
  FrameRange next_slab(const BatchShape& s, FrameRange own) const { return slab(s, own.begin / slab_ + 1); }

  // body(microbatch, batch, sample, own frames)
  template <class F>
  void for_slabs(Batches batches, F&& body) const {
    for (size_t a = 0; a < batches.size(); ++a)
      for (int64_t sample = 0; sample < batches[a].shape.batch; ++sample)
        for (int64_t i = 0; i < slabs(batches[a].shape); ++i) body(a, batches[a], sample, slab(batches[a].shape, i));
  }
  // body(clip, whether it is trained)
  template <class F>
  void for_shapes(bool all, F&& body) const {
    for (const auto& s : x_.options.shapes) body(s, x_.options.training);
    if (all)
      for (const auto& s : x_.options.predict_shapes) body(s, false);
  }
  // Calls for a clip that differ in size, and the largest there can be for a longer one.
  std::vector<BatchShape> own_shapes(const BatchShape& clip) const {
    std::vector<BatchShape> shapes{slab_of(clip, slab_)};
    for (const int64_t i : {int64_t{0}, slabs(clip) - 1}) shapes.push_back(clip.slab(slab(clip, i), slab(clip, i)));
    return shapes;
  }
  std::vector<BatchShape> seen_shapes(int l, const BatchShape& clip) const {
    std::vector<BatchShape> shapes{slab_of(clip, seen_of_[static_cast<size_t>(l)])};
    std::set<std::array<int64_t, 3>> sizes;
    for (int64_t i = 0; i < slabs(clip); ++i) {
      const BatchShape s = clip.slab(*layer(l).sees(clip.frames, slab(clip, i)), slab(clip, i));
      if (sizes.insert({s.frames, s.own_begin, s.own_frames}).second) shapes.push_back(s);
    }
    return shapes;
  }
  // A whole slab of a clip of `seen` frames.
  BatchShape slab_of(BatchShape clip, int64_t seen) const {
    if (clip.times != 1) clip.times = seen;
    clip.frames = seen;
    return clip.slab({0, seen}, {0, slab_});
  }

  // What a slab of a clip of any length sees, and what two share: memory does not depend on how long the clips are.
  void find_sizes() {
    constexpr int64_t kLong = int64_t{1} << 20;
    constexpr int64_t kSlabs = 1024;  // windows of up to so many frames lie in every way across the slabs
    for (int l = 0; l < layers_; ++l) {
      int64_t& most = seen_of_.emplace_back(0);
      std::optional<FrameRange> before;
      for (int64_t i = 0; i < kSlabs; ++i) {
        const auto seen = layer(l).sees(kLong, {i * slab_, (i + 1) * slab_});
        if (!seen)
          throw usage_error(fmt::format("block {} cannot compute a part of a clip, which stream.slabs asks for", l),
                            "every block's attention must be window, or dsa without model.dsa.pooled and without given offsets; or set stream.slabs=off");
        most = std::max(most, seen->count());
        if (before) shared_frames_ = std::max(shared_frames_, before->end - seen->begin);
        before = seen;
      }
      seen_frames_ = std::max(seen_frames_, most);
    }
  }

  // ---- memory ------------------------------------------------------------------------------------------------------

  void allocate_host() {
    const auto rows = [](const BatchShape& s) { return s.rows(); };
    const int64_t trained = largest(rows) * width_ * 4, passed = largest(rows, true) * width_ * 4;
    const int kept = x_.options.training ? layers_ / segment_ + segment_ : 2;
    for (int a = 0; a < x_.options.max_microbatches; ++a) {
      auto& places = clip_inputs_.emplace_back(static_cast<size_t>(kept));
      for (int i = 0; i < kept; ++i) {
        const bool passes = a == 0 && (i == place(0) || i == place(1));
        places[static_cast<size_t>(i)].rows = static_cast<float*>(host_.allocate(passes ? std::max(passed, trained) : trained, host_bytes_));
      }
      if (x_.options.training) clip_gradients_.emplace_back().rows = static_cast<float*>(host_.allocate(trained, host_bytes_));
    }
    pinned_ = PinnedMemory(x_.device, host_.spans());
  }

  void allocate_lane(Lane& lane, int places, int64_t elements, std::string_view name) {
    for (int i = 0; i < places; ++i) lane.memory[i] = floats(elements, name);
  }

  void allocate_device() {
    const Network& n = x_.network;
    const DType dtype = x_.options.compute_dtype;
    const bool training = x_.options.training;
    const auto area = [](const BatchShape& s) { return s.height * s.width; };
    const auto cells = [&](const BatchShape& s) { return area(s) * n.patch_height * n.patch_width * slab_; };
    const int64_t all_area = largest(area, true), seen = seen_frames_ * all_area * width_, own = slab_ * all_area * width_;
    allocate_lane(latents_, 2, largest(cells, true) * n.in_channels, "latent of a slab");
    allocate_lane(targets_, 2, largest(cells, true) * n.out_channels, "target of a slab");
    allocate_lane(velocities_, 2, largest(cells, true) * n.out_channels, "output of a slab");
    if (!shared_) {
      allocate_lane(inputs_, 2, seen, "input of a slab");
      allocate_lane(outputs_, 2, own, "result of a slab");
    }
    allocate_lane(shots_, 2, 2 * seen_frames_, "shots of a slab");
    head_saved_ = take_largest("head saved", true, [&](const BatchShape& clip) {
      int64_t bytes = 0;
      for (const auto& s : own_shapes(clip)) bytes = std::max(bytes, n.head->saved_bytes(s, dtype));
      return bytes;
    });
    if (!training) return;
    const int64_t trained = largest(area) * width_;
    if (!shared_) allocate_lane(incoming_, 2, slab_ * trained, "gradient of a slab, coming");
    allocate_lane(gradients_, shared_ ? 1 : 2, seen_frames_ * trained, "gradient of a slab");
    if (shared_frames_ > 0) carry_ = floats(shared_frames_ * trained, "gradient carried to the next slab");
    dout_ = floats(largest(cells) * n.out_channels, "output gradient");
    recomputed_ = floats(slab_ * trained, "recomputed output");
    saved_ = take_largest("layer saved", false, [&](const BatchShape& clip) {
      int64_t bytes = 0;
      for (int l = 0; l < layers_; ++l)
        for (const auto& s : seen_shapes(l, clip)) bytes = std::max(bytes, layer(l).saved_bytes(s, dtype));
      return bytes;
    });
  }
  template <class F>
  void* take_largest(std::string_view name, bool all, F&& bytes) {
    return x_.take(largest(bytes, all), name, MemoryCategory::kActivations);
  }

  // Index of the inputs of layer l: one for each segment, and those of the segment in hand.
  int place(int l) const { return l % segment_ == 0 ? l / segment_ : layers_ / segment_ + l % segment_; }
  // keep false: a pass goes to and fro between two of them.
  HostRows& input_of(size_t a, int l, bool keep) { return clip_inputs_[a][static_cast<size_t>(keep ? place(l) : x_.options.training ? place(l % 2) : l % 2)]; }

  // ---- rows on their way -------------------------------------------------------------------------------------------

  int64_t first_row(const BatchShape& s, int64_t sample, int64_t frame) const { return (sample * s.frames + frame) * s.height * s.width * width_; }
  int64_t elements(const BatchShape& s, FrameRange frames) const { return frames.count() * s.height * s.width * width_; }

  // The next place of a lane, for the compute stream to write to.
  float* next(Lane& lane) {
    if (lane.memory[1]) lane.hand = 1 - lane.hand;
    x_.device.wait(x_.device.compute(), lane.free[lane.hand]);
    return lane.memory[lane.hand];
  }
  // The compute stream's calls so far are the last ones that read the place in hand.
  void done(Lane& lane) { lane.free[lane.hand] = x_.device.record(x_.device.compute()); }

  void done_layer(const MicroBatch& b) {
    done(inputs_);
    if (b.shots) done(shots_);
  }

  // The next place of a lane, filled by copies(upload stream, place), for the compute stream to read.
  template <class F>
  const float* upload(Lane& lane, F&& copies) {
    Stream& u = x_.device.upload();
    lane.hand = 1 - lane.hand;
    x_.device.wait(u, lane.free[lane.hand]);
    copies(u, lane.memory[lane.hand]);
    x_.device.wait(x_.device.compute(), x_.device.record(u));
    return lane.memory[lane.hand];
  }

  // Frames of a sample for the compute stream to read.
  const float* bring(Lane& lane, const HostRows& from, const BatchShape& s, int64_t sample, FrameRange frames) {
    const float* host = from.rows + first_row(s, sample, frames.begin);
    if (shared_) return host;
    return upload(lane, [&](Stream& u, float* to) {
      // Slabs arrive in order.
      x_.device.wait(u, from.there[static_cast<size_t>(sample * slabs(s) + (frames.end - 1) / slab_)]);
      x_.device.copy(u, to, host, elements(s, frames) * 4, CopyKind::kUpload, "upload slab");
    });
  }

  // Where the compute stream writes frames of a sample that leave() takes to the host.
  float* room(Lane& lane, const HostRows& to, const BatchShape& s, int64_t sample, FrameRange frames) {
    return shared_ ? to.rows + first_row(s, sample, frames.begin) : next(lane);
  }
  void leave(Lane& lane, HostRows& to, const BatchShape& s, int64_t sample, FrameRange frames) {
    to.there.resize(static_cast<size_t>(s.batch * slabs(s)));
    if (shared_) return;
    download(lane, to.rows + first_row(s, sample, frames.begin), elements(s, frames));
    to.there[static_cast<size_t>(sample * slabs(s) + frames.begin / slab_)] = lane.free[lane.hand];
  }
  void download(Lane& lane, float* host, int64_t n) {
    Stream& d = x_.device.download();
    x_.device.wait(d, x_.device.record(x_.device.compute()));
    x_.device.copy(d, host, lane.memory[lane.hand], n * 4, CopyKind::kDownload, "download slab");
    lane.free[lane.hand] = x_.device.record(d);
  }

  // Gradients of frames that no later slab adds to, from the place in hand. They take the place of those at the layer's
  // result, which have been read: no layer's whole rows end beyond its own.
  void send_gradient(const float* dx, size_t a, const BatchShape& s, int64_t sample, FrameRange frames) {
    HostRows& to = clip_gradients_[a];
    to.there.resize(static_cast<size_t>(s.batch * slabs(s)));
    if (frames.count() == 0) return;
    float* host = to.rows + first_row(s, sample, frames.begin);
    if (shared_) return copy_memory(x_.device.compute(), host, dx, elements(s, frames) * 4);
    download(gradients_, host, elements(s, frames));
    for (int64_t i = frames.begin / slab_; i < slabs(s) && slab(s, i).end <= frames.end; ++i)
      to.there[static_cast<size_t>(sample * slabs(s) + i)] = gradients_.free[gradients_.hand];
  }

  // body(element of the slab, element of the clip, elements) for each channel of frames of a sample.
  template <class F>
  void for_channels(int64_t channels, const BatchShape& s, int64_t sample, FrameRange frames, F&& body) const {
    const int64_t area = s.height * x_.network.patch_height * s.width * x_.network.patch_width, n = frames.count() * area;
    for (int64_t c = 0; c < channels; ++c) body(c * n, ((sample * channels + c) * s.frames + frames.begin) * area, n);
  }
  const float* bring_latent(Lane& lane, const float* host, int64_t channels, const BatchShape& s, int64_t sample, FrameRange frames) {
    return upload(lane, [&](Stream& u, float* to) {
      for_channels(channels, s, sample, frames, [&](int64_t at, int64_t of_clip, int64_t n) {
        x_.device.copy(u, to + at, host + of_clip, n * 4, CopyKind::kUpload, "upload inputs");
      });
    });
  }

  // ---- calls -------------------------------------------------------------------------------------------------------

  static int64_t timestep(const BatchShape& s, int64_t sample, FrameRange frames) { return sample * s.times + (s.times == 1 ? 0 : frames.begin); }

  Conditioning conditioning(const MicroBuffers& m, const BatchShape& s, int64_t sample, FrameRange seen) const {
    const int64_t context = sample * s.context_rows * width_, modulation = timestep(s, sample, seen) * 6 * width_;
    return {m.context + context, m.modulation + modulation, m.dcontext ? m.dcontext + context : nullptr,
            m.dmodulation ? m.dmodulation + modulation : nullptr};
  }

  LayerCall layer_call(int l, const MicroBatch& b, int64_t sample, FrameRange seen, FrameRange own) {
    LayerCall c = call(x_.weights.layer(l), b.shape.slab(seen, own));
    if (!b.shots) return c;
    // A shot that goes on beyond what is seen ends there: what is computed does not reach that far.
    const int64_t n = seen.count();
    std::vector<int32_t> table(static_cast<size_t>(2 * n));
    for (int64_t t = 0; t < n; ++t)
      for (int64_t end = 0; end < 2; ++end)
        table[static_cast<size_t>(end * n + t)] = static_cast<int32_t>(
            std::clamp<int64_t>(b.shots[(end * b.shape.batch + sample) * b.shape.frames + seen.begin + t] - seen.begin, 0, n - 1));
    const std::vector<int32_t>& kept = *shot_tables_.insert(std::move(table)).first;
    c.t_lo = reinterpret_cast<const int32_t*>(
        upload(shots_, [&](Stream& u, float* to) { x_.device.copy(u, to, kept.data(), 8 * n, CopyKind::kUpload, "upload inputs"); }));
    c.t_hi = c.t_lo + n;
    return c;
  }

  void measure_loss(const MicroBatch& b, const MicroBuffers& m, int64_t sample, FrameRange own, const float* velocity, double* loss,
                    float* dout, float scale) {
    const BatchShape& s = b.shape;
    const float* target = bring_latent(targets_, b.target, x_.network.out_channels, s, sample, own);
    const LossGrid grid{1, x_.network.out_channels, own.count(), s.height * x_.network.patch_height * s.width * x_.network.patch_width,
                        latent_elements(x_.network, s, x_.network.out_channels), sample > 0 || own.begin > 0};
    velocity_loss(x_.device.compute(), loss, dout, velocity, target, b.loss_weights ? m.loss_weights + sample * s.frames + own.begin : nullptr,
                  grid, x_.options.loss, scale);
    done(targets_);
  }

  static constexpr size_t kShotTables = 4096;
  int layers_;
  int64_t slab_, width_;  // frames; D
  bool shared_;           // the device reads and writes host memory in place
  int segment_;
  std::vector<int64_t> seen_of_;  // frames, a layer
  int64_t seen_frames_ = 0, shared_frames_ = 0;
  HostMemory host_;
  PinnedMemory pinned_;  // after it, so that it goes first
  int64_t host_bytes_ = 0;
  std::vector<std::vector<HostRows>> clip_inputs_;  // [microbatch][place]
  std::vector<HostRows> clip_gradients_;            // of the layer in hand, at its result, then at its input
  Lane latents_, targets_, velocities_, inputs_, outputs_, incoming_, gradients_, shots_;
  void *saved_ = nullptr, *head_saved_ = nullptr;
  float *recomputed_ = nullptr, *dout_ = nullptr, *carry_ = nullptr;
  std::set<std::vector<int32_t>> shot_tables_;  // what uploads may still read
};

}  // namespace

std::unique_ptr<Pass> make_slab_pass(const PassContext& context) { return std::make_unique<SlabPass>(context); }

}  // namespace megaslide
