#include "eval/network_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "base/error.h"
#include "eval/statistics.h"
#include "vision/dynamic.h"
#include "vision/frame_choice.h"
#include "vision/preprocess.h"

namespace megaslide {
namespace {

// A feature over its norm, in fp64.
std::vector<double> direction(const float* feature, int64_t n) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(feature[i]) * static_cast<double>(feature[i]);
  if (!(squares > 0) || !std::isfinite(squares)) throw Error("a network gave features that are 0 or not finite", "check its weights");
  std::vector<double> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i)] = static_cast<double>(feature[i]) / std::sqrt(squares);
  return out;
}
std::vector<double> direction(const HostTensor& t) { return direction(t.f32(), t.elements()); }
double dot(const std::vector<double>& a, const std::vector<double>& b) {
  MS_CHECK(a.size() == b.size(), "features of {} and {} values", a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Frames become features some at a time: products of more rows are faster. Which frames go together depends on their indices alone.
class FeatureStream {
 public:
  using Preprocess = std::function<HostTensor(const Picture&, ThreadPool&)>;             // F32 [3,h,w], of one size in a video
  using Network = std::function<HostTensor(const Place&, const HostTensor& /*[N,3,h,w]*/)>;  // F32 [N, width]
  FeatureStream(const EvalNetworks& networks, Preprocess preprocess, Network network)
      : networks_(networks), preprocess_(std::move(preprocess)), network_(std::move(network)) {}

  // Each returns the directions of the features that are ready, a vector a frame, in the order of the frames.
  std::vector<std::vector<double>> add(const Picture& picture, ThreadPool& pool) {
    waiting_.push_back(preprocess_(picture, pool));
    pool_ = &pool;
    return waiting_.size() == kTogether ? rest() : std::vector<std::vector<double>>{};
  }
  std::vector<std::vector<double>> rest() {
    std::vector<std::vector<double>> out;
    if (waiting_.empty()) return out;
    Shape shape = waiting_[0].shape();
    const int64_t values = waiting_[0].elements();
    shape.insert(shape.begin(), static_cast<int64_t>(waiting_.size()));
    HostTensor pixels(DType::kF32, shape);
    for (size_t i = 0; i < waiting_.size(); ++i) std::copy_n(waiting_[i].f32(), values, pixels.f32() + static_cast<int64_t>(i) * values);
    waiting_.clear();
    const HostTensor features = network_(EvalNetworks::Turn(networks_, *pool_).place(), pixels);
    const int64_t width = features.elements() / shape[0];
    for (int64_t i = 0; i < shape[0]; ++i) out.push_back(direction(features.f32() + i * width, width));
    return out;
  }

 private:
  static constexpr size_t kTogether = 8;
  const EvalNetworks& networks_;
  Preprocess preprocess_;
  Network network_;
  std::vector<HostTensor> waiting_;
  ThreadPool* pool_ = nullptr;
};

class ConsistencyMetric final : public Metric {
 public:
  ConsistencyMetric(FeatureStream features, std::string label) : features_(std::move(features)), label_(std::move(label)) {}

  void add(const FrameContext& f) override { take(features_.add(f.picture, f.pool)); }
  Score finish() override {
    take(features_.rest());
    if (scores_.empty()) return {std::nullopt, "n/a: needs at least 2 frames"};
    Score s{mean_of(scores_), "", std::move(trace_), label_};
    s.weight = static_cast<double>(scores_.size());
    return s;
  }

 private:
  void take(std::vector<std::vector<double>> ready) {
    for (std::vector<double>& now : ready) {
      if (trace_.empty()) {
        first_ = now;
        trace_.push_back(std::numeric_limits<double>::quiet_NaN());
      } else {
        scores_.push_back((std::max(0.0, dot(before_, now)) + std::max(0.0, dot(first_, now))) / 2);
        trace_.push_back(scores_.back());
      }
      before_ = std::move(now);
    }
  }
  FeatureStream features_;
  std::string label_;
  std::vector<double> first_, before_, scores_, trace_;
};

Score mean_over_frames(std::vector<double> trace, const std::string& label) {
  if (trace.empty()) return {std::nullopt, "n/a: needs a frame"};
  const double mean = mean_of(trace);
  return {mean, "", std::move(trace), label};
}

// The mean over frames of what is said of each one's feature.
class FeatureMeanMetric final : public Metric {
 public:
  using ScoreOf = std::function<double(const std::vector<double>& direction, ThreadPool&)>;
  FeatureMeanMetric(FeatureStream features, ScoreOf score, std::string label, bool over_frames)
      : features_(std::move(features)), score_(std::move(score)), label_(std::move(label)), over_frames_(over_frames) {}

  void add(const FrameContext& f) override {
    pool_ = &f.pool;
    take(features_.add(f.picture, f.pool));
  }
  Score finish() override {
    take(features_.rest());
    const auto frames = static_cast<double>(trace_.size());
    Score s = mean_over_frames(std::move(trace_), label_);
    if (over_frames_) s.weight = frames;
    return s;
  }

 private:
  void take(const std::vector<std::vector<double>>& ready) {
    for (const std::vector<double>& d : ready) trace_.push_back(score_(d, *pool_));
  }
  FeatureStream features_;
  ScoreOf score_;
  std::string label_;
  bool over_frames_;
  ThreadPool* pool_ = nullptr;
  std::vector<double> trace_;
};

class ImagingMetric final : public Metric {
 public:
  explicit ImagingMetric(const EvalNetworks& networks) : networks_(networks) {}
  void add(const FrameContext& f) override {
    trace_.push_back(networks_.musiq().score(EvalNetworks::Turn(networks_, f.pool).place(), f.picture));
  }
  Score finish() override { return mean_over_frames(std::move(trace_), "quality (0 to 100)"); }

 private:
  const EvalNetworks& networks_;
  std::vector<double> trace_;
};

FeatureStream clip_features(const EvalNetworks& networks, const ClipNetwork& clip, Preprocessing how) {
  return {networks, [&clip, how](const Picture& p, ThreadPool& pool) { return preprocess(p, how, clip.image_size(), pool); },
          [&clip](const Place& place, const HostTensor& pixels) { return clip.image_features(place, pixels); }};
}

class NotApplicable final : public Metric {
 public:
  explicit NotApplicable(std::string reason) : reason_(std::move(reason)) {}
  void add(const FrameContext&) override {}
  Score finish() override { return {std::nullopt, reason_}; }

 private:
  std::string reason_;
};

class SmoothnessMetric final : public Metric {
 public:
  explicit SmoothnessMetric(const EvalNetworks& networks) : networks_(networks) {}

  void add(const FrameContext& f) override {
    const Picture& p = f.picture;
    if (f.index == 0) reason_ = amt_not_applicable(p.width, p.height);
    trace_.push_back(std::numeric_limits<double>::quiet_NaN());
    if (!reason_.empty()) return;
    if (const std::optional<MotionTriple> t = motion_triple_ending_at(f.index)) {
      const EvalNetworks::Turn turn(networks_, f.pool);
      const std::vector<uint8_t> &before = kept_[parity(t->before)], &between = kept_[parity(t->between)];
      const std::vector<uint8_t> predicted = networks_.amt().between(turn.place(), before.data(), p.rgb.data(), p.width, p.height);
      differences_.push_back(mean_byte_difference(predicted.data(), between.data(), static_cast<int64_t>(predicted.size())));
      trace_[static_cast<size_t>(t->between)] = differences_.back();
    }
    kept_[parity(f.index)] = p.rgb;
  }
  Score finish() override {
    if (!reason_.empty()) return {std::nullopt, reason_};
    if (differences_.empty()) return {std::nullopt, "n/a: needs at least 3 frames"};
    return {motion_smoothness(differences_), "", std::move(trace_), "difference from the frame that its neighbours predict (levels of 255)"};
  }

 private:
  static size_t parity(int64_t index) { return static_cast<size_t>(index % 2); }
  const EvalNetworks& networks_;
  std::string reason_;
  std::array<std::vector<uint8_t>, 2> kept_;  // the last two frames, by the parity of their indices
  std::vector<double> differences_, trace_;
};

class DynamicMetric final : public Metric {
 public:
  DynamicMetric(const EvalNetworks& networks, double fps) : networks_(networks), interval_(dynamic_interval(fps)) {}

  void add(const FrameContext& f) override {
    trace_.push_back(std::numeric_limits<double>::quiet_NaN());
    if (f.index % interval_ != 0) return;
    width_ = f.picture.width, height_ = f.picture.height;
    ++frames_;
    if (f.index == 0) reason_ = raft_not_applicable(width_, height_);
    if (!reason_.empty()) return;
    const EvalNetworks::Turn turn(networks_, f.pool);
    RaftFrame now = networks_.raft().frame(turn.place(), f.picture.rgb.data(), width_, height_);
    if (before_) {
      motion_.push_back(largest_motion(networks_.raft().flow(turn.place(), *before_, now), kDynamicShare));
      trace_.back() = motion_.back();
    }
    before_ = std::move(now);
  }
  Score finish() override {
    if (!reason_.empty()) return {std::nullopt, reason_};
    if (frames_ == 0) return {std::nullopt, "n/a: needs a frame"};
    const DynamicVerdict v = dynamic_verdict(motion_, frames_, width_, height_);
    Score s{v.dynamic ? 1.0 : 0.0, "", std::move(trace_), "motion since the frame looked at before (pixels, mean of the largest 5%)"};
    s.extra = {{"moving_pairs", static_cast<double>(v.count)}, {"needed_pairs", static_cast<double>(v.needed)}, {"threshold_pixels", v.threshold}};
    return s;
  }

 private:
  const EvalNetworks& networks_;
  int64_t interval_, frames_ = 0, width_ = 0, height_ = 0;
  std::string reason_;
  std::optional<RaftFrame> before_;
  std::vector<double> motion_, trace_;
};

// The flows of neighbours on the way, those between the ends at the end.
class StaticFlickerMetric final : public Metric {
 public:
  explicit StaticFlickerMetric(const EvalNetworks& networks) : networks_(networks) {}

  void add(const FrameContext& f) override {
    flicker_->add(f);
    width_ = f.picture.width, height_ = f.picture.height, pool_ = &f.pool;
    if (f.index == 0) reason_ = raft_not_applicable(width_, height_);
    if (!reason_.empty()) return;
    const EvalNetworks::Turn turn(networks_, f.pool);
    const auto now = std::make_shared<const RaftFrame>(networks_.raft().frame(turn.place(), f.picture.rgb.data(), width_, height_));
    if (before_) motion_.push_back(motion(turn, *before_, *now));
    if (!first_) first_ = now;
    before_ = now;
  }
  Score finish() override {
    if (!reason_.empty()) return {std::nullopt, reason_};
    Score score = flicker_->finish();
    if (motion_.empty()) return score;
    const EvalNetworks::Turn turn(networks_, *pool_);
    motion_.push_back(motion(turn, *first_, *before_));
    motion_.push_back(motion(turn, *before_, *first_));
    const StaticVerdict v = static_verdict(motion_, width_, height_);
    if (v.is_static) return score;
    return {std::nullopt, fmt::format("filtered out: it moves, in {} pairs of frames by more than {:.3g} pixels, {} are allowed", v.count, v.threshold, v.allowed)};
  }

 private:
  double motion(const EvalNetworks::Turn& turn, const RaftFrame& a, const RaftFrame& b) const {
    return largest_motion(networks_.raft().flow(turn.place(), a, b), kStaticShare);
  }
  const EvalNetworks& networks_;
  std::unique_ptr<Metric> flicker_ = make_flicker_metric();
  int64_t width_ = 0, height_ = 0;
  ThreadPool* pool_ = nullptr;
  std::string reason_;
  std::shared_ptr<const RaftFrame> first_, before_;
  std::vector<double> motion_;
};

// Its frames are known when the last has been seen.
class ViclipMetric final : public Metric {
 public:
  ViclipMetric(const EvalNetworks& networks, std::string prompt) : networks_(networks), prompt_(std::move(prompt)) {}

  void add(const FrameContext&) override {}
  std::vector<int64_t> frames_again(int64_t count) override {
    wanted_ = middle_frames(count, networks_.viclip().frames());
    std::vector<int64_t> once = wanted_;
    once.erase(std::unique(once.begin(), once.end()), once.end());
    return once;
  }
  void add_again(int64_t index, const Picture& picture, ThreadPool& pool) override {
    const int64_t side = networks_.viclip().image_size(), values = 3 * side * side;
    const HostTensor one = preprocess(picture, Preprocessing::kClipUint8, side, pool);
    if (pixels_.empty()) pixels_ = HostTensor(DType::kF32, {static_cast<int64_t>(wanted_.size()), 3, side, side});
    for (size_t i = 0; i < wanted_.size(); ++i)
      if (wanted_[i] == index) std::copy_n(one.f32(), values, pixels_.f32() + static_cast<int64_t>(i) * values);
    pool_ = &pool;
  }
  Score finish() override {
    if (prompt_.empty()) return {std::nullopt, "n/a: the video has no prompt"};
    if (pixels_.empty()) return {std::nullopt, "n/a: needs a frame"};
    const std::vector<float> text = networks_.viclip_text(prompt_, *pool_);
    const EvalNetworks::Turn turn(networks_, *pool_);
    return {dot(direction(networks_.viclip().video_features(turn.place(), pixels_)), direction(text.data(), static_cast<int64_t>(text.size()))), ""};
  }

 private:
  const EvalNetworks& networks_;
  std::string prompt_;
  std::vector<int64_t> wanted_;
  HostTensor pixels_;
  ThreadPool* pool_ = nullptr;
};

}  // namespace

std::unique_ptr<Metric> make_subject_metric(const EvalNetworks& networks) {
  const DinoNetwork& dino = networks.dino();
  FeatureStream features(networks, [](const Picture& p, ThreadPool& pool) { return preprocess(p, Preprocessing::kDino, kDinoPixels, pool); },
                         [&dino](const Place& place, const HostTensor& pixels) { return dino.features(place, pixels); });
  return std::make_unique<ConsistencyMetric>(std::move(features), "likeness to the frame before and the first (cosine of DINO features)");
}

std::unique_ptr<Metric> make_background_metric(const EvalNetworks& networks) {
  return std::make_unique<ConsistencyMetric>(clip_features(networks, networks.clip_b32(), Preprocessing::kClipFloat),
                                             "likeness to the frame before and the first (cosine of CLIP features)");
}

std::unique_ptr<Metric> make_aesthetic_metric(const EvalNetworks& networks) {
  const AestheticHead& head = networks.aesthetic_head();
  const auto score = [&head](const std::vector<double>& direction, ThreadPool&) { return head.score(direction); };
  return std::make_unique<FeatureMeanMetric>(clip_features(networks, networks.clip_l14(), Preprocessing::kClipFloat), score, "aesthetic score over 10", false);
}

std::unique_ptr<Metric> make_appearance_metric(const EvalNetworks& networks, const std::string& style) {
  if (style.empty())
    return std::make_unique<NotApplicable>("n/a: no style phrase is stated (appearance_style of a manifest, auxiliary_info of --prompts)");
  const ClipNetwork& clip = networks.clip_b32();
  const auto score = [&networks, &clip, style, text = std::vector<double>()](const std::vector<double>& image, ThreadPool& pool) mutable {
    if (text.empty()) {
      const std::vector<float> feature = networks.clip_text(style, pool);
      text = direction(feature.data(), static_cast<int64_t>(feature.size()));
    }
    return clip.logit_scale() * dot(image, text) / 100;
  };
  return std::make_unique<FeatureMeanMetric>(clip_features(networks, clip, Preprocessing::kClipPil), score, "likeness to the style phrase (CLIP's logit over 100)", true);
}

std::unique_ptr<Metric> make_smoothness_metric(const EvalNetworks& networks) { return std::make_unique<SmoothnessMetric>(networks); }

std::unique_ptr<Metric> make_dynamic_metric(const EvalNetworks& networks, double fps) { return std::make_unique<DynamicMetric>(networks, fps); }

std::unique_ptr<Metric> make_static_flicker_metric(const EvalNetworks& networks) { return std::make_unique<StaticFlickerMetric>(networks); }

std::unique_ptr<Metric> make_imaging_metric(const EvalNetworks& networks) { return std::make_unique<ImagingMetric>(networks); }

std::unique_ptr<Metric> make_viclip_metric(const EvalNetworks& networks, const std::string& prompt) {
  return std::make_unique<ViclipMetric>(networks, prompt);
}

}  // namespace megaslide
