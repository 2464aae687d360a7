#include "data/clip.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/md5.h"
#include "data/resize.h"
#include "data/shots.h"
#include "data/strip.h"
#include "io/json.h"
#include "io/video.h"

namespace megaslide {
namespace {

// Without "FILE: " in front: the report names the clip already.
std::string without_path(const Error& e, const std::string& file) {
  const std::string prefix = file + ": ";
  std::string text = e.message().compare(0, prefix.size(), prefix) == 0 ? e.message().substr(prefix.size()) : e.message();
  if (!e.context().empty() && e.context().front() != file) text = e.context().front() + ": " + text;
  return text;
}

class Loader {
 public:
  Loader(const std::string& file, const SelectionRule& rule, const LoadOptions& options) : file_(file), rule_(rule), options_(options) {}

  LoadedClip run() {
    std::unique_ptr<VideoReader> reader;
    try {
      reader = open_video(file_);
    } catch (const Error& e) {
      drop(without_path(e, file_));
      return std::move(clip_);
    }
    describe(reader->info());
    std::string reason;
    size_ = choose_size(rule_, facts().width, facts().height, reason);
    if (size_) most_ = most_frames(rule_, *size_);
    if (size_ || options_.md5 || options_.strips) read(*reader);
    if (size_) select();
    else drop(reason);
    if (options_.strips) make_strips();
    return std::move(clip_);
  }

 private:
  ClipFacts& facts() { return clip_.facts; }
  void drop(const std::string& reason) {
    facts().status = ClipStatus::kDropped;
    facts().reason = reason;
    frames_.clear();
  }

  void describe(const VideoInfo& info) {
    facts().frames_declared = info.declared_frames;
    facts().width = info.width;
    facts().height = info.height;
    facts().rotation = info.rotation;
    rate_known_ = info.rate_known;
  }

  void read(VideoReader& reader) {
    Retimer retimer(rate_known_ ? rule_.fps : 0, reader.info().tick);
    Picture picture;
    double time = 0;
    try {
      while (reader.next(picture, time)) {
        if (facts().frames_decoded++ > 0) emit(retimer.until(time));
        if (options_.strips) strip_.add(picture, retimer.outputs());
        if (options_.md5) clip_.md5.push_back(md5_hex(std::as_bytes(std::span(picture.rgb))));
        if (static_cast<int64_t>(frames_.size()) < most_) current_ = scaled(picture);
      }
    } catch (const Error& e) {
      damage_ = without_path(e, file_);
    }
    if (facts().frames_decoded > 0) emit(retimer.at_end(reader.end_time()));
    facts().frames_retimed = retimer.outputs();
    if (rate_known_ && reader.end_time() > 0) facts().fps = static_cast<double>(facts().frames_decoded) / reader.end_time();
    facts().notes = reader.warnings();
    if (facts().rotation != 0) facts().notes.push_back(fmt::format("turned by {} degrees, as its header says", facts().rotation));
  }

  std::vector<float> scaled(const Picture& p) {
    const int64_t plane = size_->width * size_->height;
    std::vector<float> out(static_cast<size_t>(3 * plane));
    resample(p, region_for(p.width, p.height, *size_), size_->width, size_->height, out.data(), plane);
    return out;
  }

  void emit(int64_t times) {
    if (times != 1) identity_ = false;
    for (; times > 0 && static_cast<int64_t>(frames_.size()) < most_; --times) {
      if (times == 1) frames_.push_back(std::move(current_));
      else frames_.push_back(current_);
    }
  }

  void select() {
    ClipFacts& f = facts();
    if (f.frames_decoded == 0) {
      return drop(damage_.empty() ? "holds no picture" : damage_);
    }
    int64_t smallest = 0;
    f.frames_used = choose_frames(rule_, *size_, f.frames_retimed, smallest);
    if (f.frames_used == 0) {
      return drop(fmt::format("too short: {} frame{}{} < {}, the smallest bucket{}", f.frames_retimed, f.frames_retimed == 1 ? "" : "s",
                       identity_ ? "" : " after re-timing", smallest, damage_.empty() ? "" : "; " + damage_));
    }
    if (!damage_.empty()) f.notes.push_back(damage_ + "; the intact pictures before it are used");
    f.used_width = size_->width;
    f.used_height = size_->height;
    f.used_fps = rate_known_ && rule_.fps > 0 ? rule_.fps : f.fps;
    explain();
    clip_.video = HostTensor(DType::kF32, {3, f.frames_used, size_->height, size_->width});
    const int64_t plane = size_->width * size_->height;
    for (int64_t t = 0; t < f.frames_used; ++t) {
      std::vector<float> frame = std::move(frames_[static_cast<size_t>(t)]);  // freed one by one: half the peak
      for (int64_t c = 0; c < 3; ++c)
        std::memcpy(clip_.video.f32() + (c * f.frames_used + t) * plane, frame.data() + c * plane, static_cast<size_t>(plane) * sizeof(float));
    }
    frames_.clear();
    f.cuts = find_cuts(clip_.video.view());
    if (!f.cuts.empty()) f.notes.push_back(fmt::format("{} shots: a cut before frame {}", f.cuts.size() + 1, fmt::join(f.cuts, ", ")));
  }

  void make_strips() {
    const ClipFacts& f = facts();
    clip_.source_strip = strip_.row(size_ ? region_for(f.width, f.height, *size_) : Region{}, f.frames_used);
    if (f.status != ClipStatus::kDropped) clip_.used_strip = strip_of(clip_.video.view());
  }

  // Status and reason of a clip that is used.
  void explain() {
    ClipFacts& f = facts();
    std::string parts;
    const auto say = [&](const std::string& part) { parts += (parts.empty() ? "" : "; ") + part; };
    f.status = ClipStatus::kKept;
    const Region region = region_for(f.width, f.height, *size_);
    const auto lost_w = static_cast<int64_t>(std::lround(static_cast<double>(f.width) - region.width));
    const auto lost_h = static_cast<int64_t>(std::lround(static_cast<double>(f.height) - region.height));
    const int64_t left = f.frames_retimed - f.frames_used;
    if (!identity_) {
      f.status = ClipStatus::kRetimed;
      say(fmt::format("re-timed from {:.5g} to {:.5g} frames a second: {} became {}", f.fps, f.used_fps, f.frames_decoded, f.frames_retimed));
    }
    if (left > 0) say(fmt::format("{} of {} frames left over", left, f.frames_retimed));
    const std::string columns = lost_w > 0 ? fmt::format("{} of {} columns", lost_w, f.width) : "", rows = lost_h > 0 ? fmt::format("{} of {} rows", lost_h, f.height) : "";
    if (lost_w > 0 || lost_h > 0) say(columns + (lost_w > 0 && lost_h > 0 ? " and " : "") + rows + " cut");
    if ((left > 0 || lost_w > 0 || lost_h > 0) && f.status == ClipStatus::kKept) f.status = ClipStatus::kCut;
    if (std::abs(region.width - static_cast<double>(size_->width)) > 1e-9)
      say(fmt::format("scaled by {:.4g} to {}x{}", static_cast<double>(size_->width) / region.width, size_->width, size_->height));
    f.reason = parts;
  }

  const std::string& file_;
  const SelectionRule& rule_;
  LoadOptions options_;
  LoadedClip clip_;
  std::optional<Size> size_;
  int64_t most_ = 0;
  bool rate_known_ = true, identity_ = true;
  std::vector<float> current_;
  std::vector<std::vector<float>> frames_;
  StripMaker strip_;
  std::string damage_;
};

}  // namespace

const char* clip_status_name(ClipStatus s) {
  switch (s) {
    case ClipStatus::kKept: return "kept";
    case ClipStatus::kCut: return "cut";
    case ClipStatus::kRetimed: return "retimed";
    case ClipStatus::kDropped: return "dropped";
  }
  return "";
}

std::string ClipFacts::bucket() const {
  return status == ClipStatus::kDropped ? "" : fmt::format("{}x{}x{}", used_width, used_height, frames_used);
}

nlohmann::json ClipFacts::to_json() const {
  return {{"status", clip_status_name(status)}, {"reason", reason}, {"notes", notes}, {"frames_declared", frames_declared},
          {"frames_decoded", frames_decoded}, {"frames_retimed", frames_retimed}, {"frames_used", frames_used},
          {"size_decoded", {width, height}}, {"size_used", {used_width, used_height}}, {"fps_decoded", fps}, {"fps", used_fps}, {"rotation", rotation}, {"cuts", cuts}};
}

ClipFacts ClipFacts::from_json(const nlohmann::json& json) {
  ClipFacts f;
  JsonFields r(json, "clip facts");
  size_t status = 0;
  r.read_choice("status", status, {"kept", "cut", "retimed", "dropped"});
  f.status = static_cast<ClipStatus>(status);
  r.read("reason", f.reason);
  for (const auto& n : r.array("notes")) f.notes.push_back(n.is_string() ? n.get<std::string>() : "");
  r.read("frames_declared", f.frames_declared);
  r.read("frames_decoded", f.frames_decoded);
  r.read("frames_retimed", f.frames_retimed);
  r.read("frames_used", f.frames_used);
  std::array<int64_t, 2> decoded{}, used{};
  r.read("size_decoded", decoded);
  r.read("size_used", used);
  f.width = decoded[0];
  f.height = decoded[1];
  f.used_width = used[0];
  f.used_height = used[1];
  r.read("fps_decoded", f.fps);
  r.read("fps", f.used_fps);
  int64_t rotation = 0;
  r.read("rotation", rotation);
  f.rotation = static_cast<int>(rotation);
  for (const auto& c : r.array("cuts")) f.cuts.push_back(c.is_number_integer() ? c.get<int64_t>() : 0);
  r.finish();
  return f;
}

LoadedClip load_clip(const std::string& file, const SelectionRule& rule, const LoadOptions& options) { return Loader(file, rule, options).run(); }

}  // namespace megaslide
