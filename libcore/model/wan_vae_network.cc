#include "model/wan_vae_network.h"

#include <array>

#include "base/error.h"
#include "kernels/frame/frame_ops.h"

namespace megaslide {
namespace {
using Kind = WanVaeStep::Kind;

// Frames of zeros for a network, or only their sizes.
class FrameMemory {
 public:
  explicit FrameMemory(ModelMemory* memory) : memory_(memory) {}
  explicit FrameMemory(bool device) : count_only_(true), device_(device) {}
  void* take(const FrameLayout& layout) {
    bytes_ += device_ ? ModelMemory::rounded(layout.bytes()) : layout.bytes();
    if (count_only_) return nullptr;
    frames_.emplace_back(memory_, layout.bytes(), "codec: a frame");
    return frames_.back().data();
  }
  int64_t bytes() const { return bytes_; }

 private:
  ModelMemory* memory_ = nullptr;
  bool count_only_ = false, device_ = false;
  int64_t bytes_ = 0;
  std::vector<ModelBuffer> frames_;
};

// The last three frames of a series, where they were written.
class Ring {
 public:
  void reserve(FrameMemory& memory, const FrameLayout& layout, int64_t frames) {
    for (int64_t i = 0; i < frames; ++i) slots_.push_back(memory.take(layout));
  }
  void* next() const { return slots_[static_cast<size_t>(count_) % slots_.size()]; }
  void advance() { ++count_; }
  int64_t count() const { return count_; }
  // The frame `back` before the last one; nullptr before frame `first`.
  const void* at(int64_t back, int64_t first = 0) const {
    const int64_t t = count_ - 1 - back;
    return t < first ? nullptr : slots_[static_cast<size_t>(t) % slots_.size()];
  }

 private:
  std::vector<void*> slots_;
  int64_t count_ = 0;
};

struct Run {
  Stream& stream;
  ModelMemory* memory;
  const WanVaeObserver* observer;
  const std::function<void(const void*, const FrameLayout&)>& sink;
};

// Where a step wants its next input frame, and in which forms.
struct Inlet {
  FrameLayout layout;
  void* raw = nullptr;
  void* normed = nullptr;
  const float* gamma = nullptr;
  bool silu = true;
};

class Step {
 public:
  virtual ~Step() = default;
  virtual Inlet inlet() const = 0;
  virtual void push(Run& run) = 0;  // the frame is in the inlet

  Step* next = nullptr;
  std::string stage;

 protected:
  // What a convolution is told so that its results are the next step's input.
  FrameFinish to_next() const {
    const Inlet i = next->inlet();
    FrameFinish f;
    f.out = i.layout;
    f.raw = i.raw;
    f.normed = i.normed;
    f.gamma = i.gamma;
    f.silu = i.silu;
    return f;
  }
  void pass_on(Run& run) {
    if (run.observer && !stage.empty()) show(run);
    next->push(run);
  }

 private:
  void show(Run& run) const {
    const Inlet i = next->inlet();
    HostTensor frame(DType::kF32, {i.layout.channels, i.layout.height, i.layout.width});
    const FramePlanes planes{
        .plane = i.layout.height * i.layout.width, .width = i.layout.width, .count = i.layout.channels};
    if (run.memory) {
      ModelBuffer there(run.memory, frame.bytes(), "codec: a frame to show");
      frame_to_planes(run.stream, there.f32(), i.raw, i.layout, planes);
      run.memory->wait(run.memory->download(frame.data(), there.data(), frame.bytes()));
    } else {
      frame_to_planes(run.stream, frame.f32(), i.raw, i.layout, planes);
    }
    (*run.observer)(stage, frame);
  }
};

FrameConv convolution(const PackedConv& c, const FrameLayout& in, FrameFinish finish) {
  FrameConv call;
  call.shape = c.shape;
  call.packed = c.packed.data();
  call.in = in;
  call.rows = in.height;
  call.columns = in.width;
  // Around the cell; a window of one or two cells starts where its caller says.
  call.dy = call.dx = c.shape.kh == 3 ? -1 : 0;
  finish.bias = c.bias.f32();
  call.finish = finish;
  return call;
}

void run_convolution(Run& run, const PackedConv& c, const FrameLayout& in, const void* frame,
                     const FrameFinish& finish) {
  FrameConv call = convolution(c, in, finish);
  call.frames[0] = frame;
  frame_conv(run.stream, call);
}

void run_causal(Run& run, const PackedConv& c, const FrameLayout& in, const Ring& ring, const FrameFinish& finish,
                int64_t first = 0) {
  FrameConv call = convolution(c, in, finish);
  for (int64_t i = 0; i < 3; ++i) call.frames[i] = ring.at(2 - i, first);
  frame_conv(run.stream, call);
}

FrameFinish finish_into(const FrameLayout& out, void* raw) {
  FrameFinish f;
  f.out = out;
  f.raw = raw;
  return f;
}

class ConvStep final : public Step {
 public:
  ConvStep(FrameMemory& m, const FrameLayout& in, const WanVaeStep& s, const WanVaeStepWeights* w) : in_(in), w_(w) {
    frames_.reserve(m, in_, s.pointwise ? 1 : 3);
    pointwise_ = s.pointwise;
  }
  Inlet inlet() const override { return {.layout = in_, .raw = frames_.next()}; }
  void push(Run& run) override {
    frames_.advance();
    if (pointwise_)
      run_convolution(run, w_->convolutions[0], in_, frames_.at(0), to_next());
    else
      run_causal(run, w_->convolutions[0], in_, frames_, to_next());
    pass_on(run);
  }

 private:
  FrameLayout in_;
  const WanVaeStepWeights* w_;
  Ring frames_;
  bool pointwise_ = false;
};

// The shortcut around a stage of the encoder: collects the means that its output frames get.
class AverageShortcut {
 public:
  void reserve(FrameMemory& m, const WanVaeStep& s, const Step& from, const FrameLayout& out) {
    from_ = &from;
    factors_ = {s.time_factor, s.space_factor};
    out_ = out;
    frame_ = m.take(out_);
  }
  // The stage's input frame t is still where it came in. The first one has a frame of zeros before it where the
  // number of frames is halved.
  void add(Run& run, const Inlet& input, int64_t t) {
    const int64_t ft = factors_[0], a = ft == 1 || t % 2 == 0 ? ft - 1 : 0;
    frame_average(run.stream, frame_, out_, input.raw, input.layout, ft, factors_[1], a, a == 1 && t > 0);
  }
  const Step* from() const { return from_; }
  const void* frame() const { return frame_; }

 private:
  const Step* from_ = nullptr;
  std::array<int64_t, 2> factors_{1, 1};
  FrameLayout out_;
  void* frame_ = nullptr;
};

class ResidualStep final : public Step {
 public:
  ResidualStep(FrameMemory& m, const FrameLayout& in, const WanVaeStep& s, const WanVaeStepWeights* w, const Step* from)
      : in_(in), out_(in), w_(w) {
    out_.channels = s.out;
    x_ = m.take(in_);
    first_.reserve(m, in_, 3);
    second_.reserve(m, out_, 3);
    if (s.in != s.out) shortcut_ = m.take(out_);
    if (s.from >= 0) stage_shortcut_.reserve(m, s, from ? *from : *this, out_);
  }
  Inlet inlet() const override {
    return {.layout = in_, .raw = x_, .normed = first_.next(), .gamma = w_->gamma1.f32()};
  }
  void push(Run& run) override {
    first_.advance();
    FrameFinish middle;
    middle.out = out_;
    middle.normed = second_.next();
    middle.gamma = w_->gamma2.f32();
    run_causal(run, w_->convolutions[0], in_, first_, middle);
    second_.advance();
    FrameFinish finish = to_next();
    finish.residual = x_;
    if (shortcut_) {
      run_convolution(run, w_->convolutions[2], in_, x_, finish_into(out_, shortcut_));
      finish.residual = shortcut_;
    }
    if (const Step* from = stage_shortcut_.from()) {
      stage_shortcut_.add(run, from->inlet(), first_.count() - 1);
      finish.residual2 = stage_shortcut_.frame();
    }
    run_causal(run, w_->convolutions[1], out_, second_, finish);
    pass_on(run);
  }

 private:
  FrameLayout in_, out_;
  const WanVaeStepWeights* w_;
  void *x_ = nullptr, *shortcut_ = nullptr;
  Ring first_, second_;
  AverageShortcut stage_shortcut_;
};

class AttentionStep final : public Step {
 public:
  AttentionStep(FrameMemory& m, const FrameLayout& in, const WanVaeStepWeights* w)
      : in_(in), qkv_(in), out_(in), w_(w) {
    qkv_.border = out_.border = 0;
    qkv_.channels = 3 * in.channels;
    qkv_.dtype = DType::kF32;
    x_ = m.take(in_);
    normed_ = m.take(in_);
    q_ = m.take(qkv_);
    result_ = m.take(out_);
  }
  Inlet inlet() const override {
    return {.layout = in_, .raw = x_, .normed = normed_, .gamma = w_->gamma1.f32(), .silu = false};
  }
  void push(Run& run) override {
    run_convolution(run, w_->convolutions[0], in_, normed_, finish_into(qkv_, q_));
    frame_attention(run.stream, result_, out_, static_cast<const float*>(q_), qkv_);
    FrameFinish finish = to_next();
    finish.residual = x_;
    run_convolution(run, w_->convolutions[1], out_, result_, finish);
    pass_on(run);
  }

 private:
  FrameLayout in_, qkv_, out_;
  const WanVaeStepWeights* w_;
  void *x_ = nullptr, *normed_ = nullptr, *q_ = nullptr, *result_ = nullptr;
};

class DownStep final : public Step {
 public:
  DownStep(FrameMemory& m, const FrameLayout& in, const WanVaeStep& s, const WanVaeStepWeights* w, const Step* from)
      : in_(in), half_(in), w_(w), temporal_(s.temporal) {
    half_.height /= 2;
    half_.width /= 2;
    half_.channels = s.out;
    x_ = m.take(in_);
    if (temporal_) halves_.reserve(m, half_, 3);
    if (s.from >= 0) shortcut_.reserve(m, s, *from, half_);
  }
  Inlet inlet() const override { return {.layout = in_, .raw = x_}; }
  void push(Run& run) override {
    const int64_t t = count_++;
    if (const Step* from = shortcut_.from()) shortcut_.add(run, from->inlet(), t);
    if (!temporal_) {
      halve(run, with_shortcut());
      return pass_on(run);
    }
    halve(run, finish_into(half_, halves_.next()));
    halves_.advance();
    if (t == 0) {
      frame_finish(run.stream, halves_.at(0), with_shortcut());
      pass_on(run);
    } else if (t % 2 == 0) {
      run_causal(run, w_->convolutions[1], half_, halves_, with_shortcut());
      pass_on(run);
    }
  }

 private:
  FrameFinish with_shortcut() const {
    FrameFinish f = to_next();
    f.residual = shortcut_.frame();
    return f;
  }
  // Padded with zeros on the right and below only.
  void halve(Run& run, const FrameFinish& finish) {
    FrameConv call = convolution(w_->convolutions[0], in_, finish);
    call.frames[0] = x_;
    call.stride = 2;
    call.dy = call.dx = 0;
    call.rows = half_.height;
    call.columns = half_.width;
    frame_conv(run.stream, call);
  }
  FrameLayout in_, half_;
  const WanVaeStepWeights* w_;
  bool temporal_;
  void* x_ = nullptr;
  Ring halves_;
  AverageShortcut shortcut_;
  int64_t count_ = 0;
};

class UpStep final : public Step {
 public:
  UpStep(FrameMemory& m, const FrameLayout& in, const WanVaeStep& s, const WanVaeStepWeights* w, const Step* from)
      : in_(in), out_(in), w_(w), from_(from), time_factor_(s.temporal ? 2 : 1) {
    out_.height *= 2;
    out_.width *= 2;
    out_.channels = s.out;
    frames_.reserve(m, in_, s.temporal ? 3 : 1);
    if (s.temporal) between_ = m.take(in_);
    if (s.from >= 0) repeated_ = m.take(out_);
  }
  Inlet inlet() const override { return {.layout = in_, .raw = frames_.next()}; }
  void push(Run& run) override {
    frames_.advance();
    if (time_factor_ == 1 || frames_.count() == 1) return enlarge(run, frames_.at(0), time_factor_ - 1);
    for (int64_t a = 0; a < 2; ++a) {
      // The first frame is no history of the second: the convolution starts from zeros there (C.4, rule 3).
      run_causal(run, w_->convolutions[static_cast<size_t>(4 + a)], in_, frames_, finish_into(in_, between_), 1);
      enlarge(run, between_, a);
    }
  }

 private:
  void enlarge(Run& run, const void* frame, int64_t a) {
    FrameFinish finish = to_next();
    finish.step = 2;
    if (repeated_) {
      const Inlet input = from_->inlet();
      frame_repeat(run.stream, repeated_, out_, input.raw, input.layout, time_factor_, 2, a);
      finish.residual = repeated_;
    }
    for (int64_t phase = 0; phase < 4; ++phase) {
      finish.y = phase / 2;
      finish.x = phase % 2;
      FrameConv call = convolution(w_->convolutions[static_cast<size_t>(phase)], in_, finish);
      call.frames[0] = frame;
      call.dy = finish.y - 1;
      call.dx = finish.x - 1;
      frame_conv(run.stream, call);
    }
    pass_on(run);
  }
  FrameLayout in_, out_;
  const WanVaeStepWeights* w_;
  const Step* from_;
  int64_t time_factor_;
  Ring frames_;
  void *between_ = nullptr, *repeated_ = nullptr;
};

class HeadStep final : public Step {
 public:
  HeadStep(FrameMemory& m, const FrameLayout& in, const WanVaeStepWeights* w, bool observed) : in_(in), w_(w) {
    frames_.reserve(m, in_, 3);
    if (observed) raw_ = m.take(in_);
  }
  Inlet inlet() const override {
    return {.layout = in_, .raw = raw_, .normed = frames_.next(), .gamma = w_->gamma1.f32()};
  }
  void push(Run& run) override {
    frames_.advance();
    run_causal(run, w_->convolutions[0], in_, frames_, to_next());
    pass_on(run);
  }

 private:
  FrameLayout in_;
  const WanVaeStepWeights* w_;
  Ring frames_;
  void* raw_ = nullptr;
};

class SinkStep final : public Step {
 public:
  SinkStep(FrameMemory& m, FrameLayout layout) : layout_(layout) {
    layout_.dtype = DType::kF32;
    frame_ = m.take(layout_);
  }
  Inlet inlet() const override { return {.layout = layout_, .raw = frame_}; }
  void push(Run& run) override { run.sink(frame_, layout_); }

 private:
  FrameLayout layout_;
  void* frame_ = nullptr;
};

// All steps, last to sink; `weights` may be nullptr where only memory is counted.
std::vector<std::unique_ptr<Step>> build(FrameMemory& m, const std::vector<WanVaeStep>& plan,
                                         const std::vector<WanVaeStepWeights>* weights, FrameLayout layout,
                                         bool observed) {
  std::vector<std::unique_ptr<Step>> steps;
  for (size_t i = 0; i < plan.size(); ++i) {
    const WanVaeStep& s = plan[i];
    const WanVaeStepWeights* w = weights ? &(*weights)[i] : nullptr;
    const Step* from =
        s.from >= 0 && static_cast<size_t>(s.from) < i ? steps[static_cast<size_t>(s.from)].get() : nullptr;
    layout.channels = s.in;
    switch (s.kind) {
      case Kind::kConv:
        steps.push_back(std::make_unique<ConvStep>(m, layout, s, w));
        break;
      case Kind::kResidual:
        steps.push_back(std::make_unique<ResidualStep>(m, layout, s, w, from));
        break;
      case Kind::kAttention:
        steps.push_back(std::make_unique<AttentionStep>(m, layout, w));
        break;
      case Kind::kDown:
        steps.push_back(std::make_unique<DownStep>(m, layout, s, w, from));
        break;
      case Kind::kUp:
        steps.push_back(std::make_unique<UpStep>(m, layout, s, w, from));
        break;
      case Kind::kHead:
        steps.push_back(std::make_unique<HeadStep>(m, layout, w, observed));
        break;
    }
    steps.back()->stage = s.stage;
    if (s.kind == Kind::kDown) {
      layout.height /= 2;
      layout.width /= 2;
    } else if (s.kind == Kind::kUp) {
      layout.height *= 2;
      layout.width *= 2;
    }
    layout.channels = s.out;
  }
  steps.push_back(std::make_unique<SinkStep>(m, layout));
  for (size_t i = 0; i + 1 < steps.size(); ++i) steps[i]->next = steps[i + 1].get();
  return steps;
}

FrameLayout first_layout(const std::vector<WanVaeStep>& plan, int64_t height, int64_t width, DType dtype) {
  return {.height = height, .width = width, .channels = plan.front().in, .dtype = dtype};
}

}  // namespace

struct WanVaeNetwork::Impl {
  explicit Impl(ModelMemory* m) : place(m), memory(m) {}
  ModelMemory* place;
  FrameMemory memory;
  FrameLayout layout;
  const WanVaeObserver* observer = nullptr;
  std::vector<std::unique_ptr<Step>> steps;
};

WanVaeNetwork::WanVaeNetwork(const std::vector<WanVaeStep>& steps, const std::vector<WanVaeStepWeights>& weights,
                             int64_t height, int64_t width, DType dtype, const WanVaeObserver* observer,
                             ModelMemory* memory)
    : impl_(std::make_unique<Impl>(memory)) {
  MS_CHECK(steps.size() == weights.size());
  impl_->layout = first_layout(steps, height, width, dtype);
  impl_->observer = observer;
  impl_->steps = build(impl_->memory, steps, &weights, impl_->layout, observer != nullptr);
}

WanVaeNetwork::~WanVaeNetwork() = default;

void* WanVaeNetwork::input() { return impl_->steps.front()->inlet().raw; }
const FrameLayout& WanVaeNetwork::input_layout() const { return impl_->layout; }

void WanVaeNetwork::push(Stream& stream, const std::function<void(const void*, const FrameLayout&)>& sink) {
  Run run{stream, impl_->place, impl_->observer, sink};
  impl_->steps.front()->push(run);
}

int64_t WanVaeNetwork::working_bytes(const std::vector<WanVaeStep>& steps, int64_t height, int64_t width, DType dtype,
                                     bool device) {
  FrameMemory memory(device);
  build(memory, steps, nullptr, first_layout(steps, height, width, dtype), false);
  return memory.bytes();
}

}  // namespace megaslide
