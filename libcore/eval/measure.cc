#include "eval/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace megaslide {
namespace {

constexpr int64_t kThumbnailSide = 192;

// The reference beside the video, until it fails or ends.
class ReferenceTrack {
 public:
  explicit ReferenceTrack(const OpenVideo& open) {
    if (!open) return;
    wanted_ = true;
    guarded([&] { reader_ = open(); });
  }

  // The picture that belongs to `picture`, or null.
  const Picture* next(const Picture& picture, int64_t index) {
    if (!reader_) return nullptr;
    bool more = false;
    double time = 0;
    guarded([&] { more = reader_->next(picture_, time); });
    if (!reader_) return nullptr;
    if (!more) {
      reader_.reset();
      warning_ = fmt::format("the reference ends after {} frames: only those are compared", index);
      if (index == 0) reason_ = "n/a: the reference has no frame";
      return nullptr;
    }
    if (picture_.width != picture.width || picture_.height != picture.height) {
      reader_.reset();
      reason_ = fmt::format("n/a: the reference is {}x{}, the video {}x{}", picture_.width, picture_.height,
                            picture.width, picture.height);
      return nullptr;
    }
    return &picture_;
  }

  // After the last picture of the video.
  void end(int64_t frames) {
    if (!reader_) return;
    double time = 0;
    bool more = false;
    guarded([&] { more = reader_->next(picture_, time); });
    if (more)
      warning_ = fmt::format("the reference is longer than the video: only its first {} frames are compared", frames);
  }

  bool wanted() const { return wanted_; }
  const std::string& warning() const { return warning_; }
  const std::string& reason() const { return reason_; }  // why there is no score, empty when there is one

 private:
  template <class F>
  void guarded(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      reader_.reset();
      reason_ = fmt::format("n/a: the reference cannot be read: {}", e.message());
    }
  }

  bool wanted_ = false;
  std::unique_ptr<VideoReader> reader_;
  Picture picture_;
  std::string warning_, reason_;
};

// First, largest jump, last. Shrinks only when a frame becomes the record, which is rare.
class ThumbnailCollector {
 public:
  void add(const FrameContext& f) {
    if (f.previous == nullptr) first_ = small(f.picture);
    if (f.previous != nullptr && (jump_at_ == 0 || f.difference > jump_)) {
      jump_ = f.difference, jump_at_ = f.index;
      before_ = small(*f.previous), after_ = small(f.picture);
    }
  }
  std::vector<Thumbnail> finish(const Picture& last, int64_t frames) {
    std::vector<Thumbnail> out;
    out.push_back({std::move(first_), "first"});
    if (jump_at_ > 0) {
      out.push_back({std::move(before_), fmt::format("frame {}", jump_at_ - 1)});
      out.push_back({std::move(after_), fmt::format("frame {}: largest step", jump_at_)});
    }
    if (frames > 1) out.push_back({small(last), "last"});
    return out;
  }

 private:
  static Picture small(const Picture& p) { return to_picture(shrink(p, kThumbnailSide)); }
  Picture first_, before_, after_;
  uint64_t jump_ = 0;
  int64_t jump_at_ = 0;
};

void require_whole(const Picture& p, const Picture* previous, int64_t index) {
  MS_CHECK(p.rgb.size() == static_cast<size_t>(3 * p.width * p.height));
  if (p.width < 1 || p.height < 1) throw Error(fmt::format("frame {} is empty", index));
  if (previous != nullptr && (p.width != previous->width || p.height != previous->height)) {
    throw Error(fmt::format("frame {} is {}x{}, the frames before are {}x{}", index, p.width, p.height, previous->width,
                            previous->height),
                "bring all frames to one size");
  }
}

// A metric and the dimensions that it serves.
struct Served {
  std::vector<std::string> names;
  std::unique_ptr<Metric> metric;
  std::string failed = {};  // why it has no score: what it cannot do with a picture costs its dimensions, never the rest

  template <class F>
  void guarded(F&& f) {
    if (!failed.empty()) return;
    try {
      f(*metric);
    } catch (const Error& e) {
      failed = fmt::format("n/a: {}", e.message());
    }
  }
};

std::vector<Served> make_metrics(const MeasureOptions& options, double fps) {
  std::vector<Served> all;
  MetricContext context = options.context;
  context.fps = fps;
  for (const std::string& name : options.metrics) {
    const auto same = std::ranges::find_if(all, [&](const Served& s) { return shared_metric(s.names[0]) == shared_metric(name); });
    if (same == all.end()) all.push_back({{name}, make_metric(name, context)});
    else same->names.push_back(name);
  }
  return all;
}

// Frames that metrics choose by their count.
void decode_again(std::vector<Served>& metrics, int64_t count, const OpenVideo& open, ThreadPool& pool) {
  std::map<int64_t, std::vector<Served*>> wanted;
  for (Served& s : metrics)
    for (const int64_t i : s.metric->frames_again(count)) wanted[i].push_back(&s);
  if (wanted.empty()) return;
  MS_CHECK(open, "frames of a video that cannot be opened again");
  const std::unique_ptr<VideoReader> video = open();
  Picture picture;
  double time = 0;
  for (int64_t n = 0; n <= wanted.rbegin()->first; ++n) {
    if (!video->next(picture, time)) throw Error(fmt::format("{} frames at first, {} when it was read again", count, n), "let nothing write to it meanwhile");
    if (const auto at = wanted.find(n); at != wanted.end())
      for (Served* s : at->second) s->guarded([&](Metric& m) { m.add_again(n, picture, pool); });
  }
}

}  // namespace

VideoMeasures measure_video(VideoReader& video, const OpenVideo& open_reference, const MeasureOptions& options,
                            ThreadPool& pool) {
  VideoMeasures out;
  const VideoInfo& info = video.info();
  const double fps = info.rate_known ? info.fps : 0;
  std::vector<Served> metrics = make_metrics(options, fps);
  const bool references = std::ranges::any_of(options.metrics, metric_needs_reference);
  ReferenceTrack reference(references ? open_reference : OpenVideo{});
  AlarmCollector alarms;
  DriftCollector drift;
  ThumbnailCollector thumbnails;
  Picture current, previous;
  double time = 0;
  int64_t n = 0;
  for (; video.next(current, time); ++n) {
    const Picture* before = n > 0 ? &previous : nullptr;
    require_whole(current, before, n);
    const uint64_t difference =
        before ? sum_abs_difference(current.rgb.data(), before->rgb.data(), static_cast<int64_t>(current.rgb.size()))
               : 0;
    const FrameContext frame{n, current, before, difference, reference.next(current, n), pool};
    for (Served& s : metrics) s.guarded([&](Metric& m) { m.add(frame); });
    alarms.add(frame);
    drift.add(current);
    if (options.thumbnails) thumbnails.add(frame);
    out.times.push_back(time);
    out.brightness.push_back(mean_level(current));
    std::swap(current, previous);
  }
  if (n == 0) throw Error("no frame could be decoded");
  reference.end(n);
  out.facts = {previous.width, previous.height, n, fps, info.codec, info.declared_frames};
  decode_again(metrics, n, options.open_again, pool);
  for (Served& s : metrics) {
    Score score;
    s.guarded([&](Metric& m) { score = m.finish(); });
    if (!s.failed.empty()) score = {std::nullopt, s.failed};
    if (metric_needs_reference(s.names[0]) && !reference.reason().empty()) score = {std::nullopt, reference.reason()};
    for (const std::string& name : s.names) out.scores.emplace(name, score);
  }
  out.alarms = alarms.finish();
  out.drift = drift.finish();
  if (options.thumbnails) out.thumbnails = thumbnails.finish(previous, n);
  out.warnings = video.warnings();
  if (!reference.warning().empty()) out.warnings.push_back(reference.warning());
  return out;
}

}  // namespace megaslide
