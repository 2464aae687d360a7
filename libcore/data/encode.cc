#include "data/encode.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "data/cache.h"
#include "data/resize.h"
#include "io/json.h"
#include "model/text_encoder.h"
#include "model/video_codec.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLatentDigits = 16, kTextDigits = 12;

// Content of a file, or of a folder's pictures in order.
std::string content_hash(const std::string& file, int64_t& bytes) {
  std::error_code ignored;
  if (!fs::is_directory(file, ignored)) {
    bytes = static_cast<int64_t>(fs::file_size(file, ignored));
    return sha256_file(file);
  }
  Sha256 all;
  for (const std::string& p : frame_folder_pictures(file)) {
    bytes += static_cast<int64_t>(fs::file_size(p, ignored));
    all.update(sha256_file(p) + "\n");
  }
  return all.hex();
}

// Letters of the clip's name that are safe in any file system.
std::string readable_name(const std::string& path) {
  std::string name = fs::path(path).stem().string();
  if (name.size() > 40) name.resize(40);
  for (char& c : name)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-')) c = '_';
  return name.empty() || name[0] == '-' ? "_" + name : name;
}

struct Work {
  const DatasetEntry* entry = nullptr;
  ClipReport report;
  CachedClip cached;
  std::string latent_hash;
  const Work* same = nullptr;  // another entry with the same key does the work
};

class Run {
 public:
  Run(const EncodeOptions& options, const ModelParts& parts, ThreadPool& pool, StopToken stop)
      : options_(options), pool_(pool), stop_(stop), codec_(make_codec(parts)), text_(make_text_encoder(parts)) {}

  EncodeReport run() {
    Dataset dataset = read_datasets(options_.datasets, options_.dataset);
    prepare_folder();
    works_.resize(dataset.entries.size());
    Progress progress("encode", static_cast<double>(works_.size()), "clips");
    for_each_work([&](Work& w, size_t i) { identify(w, dataset.entries[i]); });
    share();
    for_each_work([&](Work& w, size_t) {
      if (w.same == nullptr && w.report.facts.reason.empty()) process(w);
      const std::lock_guard lock(mutex_);
      progress.add(1, w.report.path);
    });
    progress.finish();
    return finish(dataset);
  }

 private:
  template <class F>
  void for_each_work(F&& f) {
    pool_.parallel_for(static_cast<int64_t>(works_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        stop_.throw_if_requested();
        f(works_[static_cast<size_t>(i)], static_cast<size_t>(i));
      }
    });
  }

  void prepare_folder() {
    std::error_code failure;
    fs::create_directories(options_.cache + "/clips", failure);
    if (failure) throw Error(fmt::format("{}: cannot make the cache folder: {}", options_.cache, failure.message()), "choose a folder that can be written");
    if (!options_.pictures.empty()) fs::create_directories(options_.pictures, failure);
    if (failure) throw Error(fmt::format("{}: cannot make the folder: {}", options_.pictures, failure.message()), "choose a folder that can be written");
    for (const auto& e : fs::directory_iterator(options_.cache + "/clips", failure)) {
      const std::string stem = e.path().stem().string();
      if (e.path().extension() != ".safetensors" || stem.size() < kLatentDigits + kTextDigits + 2) continue;
      present_[stem.substr(stem.size() - kTextDigits - 1 - kLatentDigits, kLatentDigits)] = stem;
    }
  }

  void identify(Work& w, const DatasetEntry& e) {
    w.entry = &e;
    w.report.path = e.path;
    w.report.place = e.place;
    w.report.caption = e.caption;
    w.report.facts.reason = e.problem;
    if (!e.problem.empty()) return;
    try {
      w.cached.source_sha256 = content_hash(e.file, w.cached.source_bytes);
    } catch (const Error& failure) {
      w.report.facts.reason = failure.message();
      return;
    }
    w.latent_hash = sha256_hex(codec_->identity() + "\n" + options_.rule.text() + "\n" + w.cached.source_sha256).substr(0, kLatentDigits);
    const std::string text_hash = sha256_hex(text_->identity() + "\n" + e.caption).substr(0, kTextDigits);
    w.cached.key = fmt::format("{}-{}-{}", readable_name(e.path), w.latent_hash, text_hash);
  }

  // Entries with equal keys are worked on once: two threads must not write one file.
  void share() {
    std::map<std::string, Work*> first;
    for (Work& w : works_) {
      if (!w.report.facts.reason.empty()) continue;
      const auto [it, fresh] = first.emplace(w.cached.key, &w);
      if (!fresh) w.same = it->second;
    }
  }

  void process(Work& w) {
    if (options_.frame_md5 || !options_.pictures.empty()) {
      LoadedClip loaded = load_clip(w.entry->file, options_.rule, options_.frame_md5);
      w.report.md5 = std::move(loaded.md5);
      if (!options_.pictures.empty()) write_pictures(w, loaded);
      store(w, std::move(loaded));
    } else if (!reuse(w)) {
      store(w, load_clip(w.entry->file, options_.rule));
    }
  }

  void write_pictures(Work& w, const LoadedClip& loaded) {
    if (loaded.facts.status == ClipStatus::kDropped) return;
    const Shape& s = loaded.video.shape();
    const int64_t plane = s[2] * s[3];
    w.report.pictures = options_.pictures + "/" + w.cached.key;
    const auto writer = create_video(w.report.pictures, s[3], s[2], loaded.facts.used_fps > 0 ? loaded.facts.used_fps : kUnknownRate);
    for (int64_t t = 0; t < s[1]; ++t)
      writer->write(picture_from_planes(loaded.video.f32() + t * plane, s[1] * plane, s[3], s[2]));
    writer->close();
  }

  // True when the latent is in the cache already, with this caption or another.
  bool reuse(Work& w) {
    const auto it = present_.find(w.latent_hash);
    if (it == present_.end()) return false;
    std::error_code ignored;
    const bool whole = fs::exists(cached_clip_file(options_.cache, w.cached.key), ignored);
    const std::string from = cached_clip_file(options_.cache, whole ? w.cached.key : it->second);
    try {
      const SafetensorsFile file = SafetensorsFile::open(from);
      const auto facts = file.metadata().find("facts");
      if (facts == file.metadata().end()) return false;
      w.report.facts = ClipFacts::from_json(parse_json(facts->second, from));
      const TensorView latent = file.view("latent");
      if (latent.dtype != DType::kF32 || latent.shape.size() != 4) return false;
      require_intact({file, latent, file.view("text")});
      if (whole) note_shapes(w, latent.shape, file.view("text").shape.at(0));
      else write(w, latent);
      thumbnails(w, latent);
      w.report.reused = true;
      return true;
    } catch (const Error& e) {
      log_warning("{}; the clip is encoded again", e.message());
      w.report.facts = {};
      return false;
    }
  }

  void store(Work& w, LoadedClip loaded) {
    w.report.facts = std::move(loaded.facts);
    if (w.report.facts.status == ClipStatus::kDropped) return;
    const HostTensor latent = codec_->encode(pool_, loaded.video.view());
    write(w, latent.view());
    thumbnails(w, latent.view());
  }

  void write(Work& w, const TensorView& latent) {
    const EncodedText text = text_->encode(pool_, w.entry->caption);
    if (text.cut > 0) log_warning("{}: the caption's last {} words are left out: the model takes {}", w.report.path, text.cut, text.ids.size());
    write_cached_clip(options_.cache, w.cached.key, latent, text.rows.view(),
                      {{"facts", w.report.facts.to_json().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)}, {"format", "pt"}});
    note_shapes(w, latent.shape, text.rows.shape()[0]);
  }

  void note_shapes(Work& w, const Shape& latent, int64_t text_rows) {
    const ClipFacts& f = w.report.facts;
    w.cached.latent = latent;
    w.cached.text_rows = text_rows;
    w.cached.frames = f.frames_used;
    w.cached.width = f.used_width;
    w.cached.height = f.used_height;
    w.cached.fps = f.used_fps;
  }

  void thumbnails(Work& w, const TensorView& latent) {
    if (options_.thumbnails == 0) return;
    const HostTensor video = codec_->decode(pool_, latent);
    const int64_t frames = video.shape()[1], height = video.shape()[2], width = video.shape()[3], plane = height * width;
    const int64_t shown = std::min(options_.thumbnails, frames);
    for (int64_t i = 0; i < shown; ++i) {
      const int64_t t = shown == 1 ? 0 : i * (frames - 1) / (shown - 1);
      w.report.thumbnails.push_back(picture_from_planes(video.f32() + t * plane, frames * plane, width, height));
    }
  }

  // Where no clip is left and some were only too short, one line with both lengths.
  void say_what_would_fit(EncodeReport& out) const {
    int64_t longest = 0, smallest = 0;
    for (const ClipReport& c : out.clips) longest = std::max(longest, c.facts.frames_retimed);
    for (const Bucket& b : options_.rule.buckets)
      if (b.frames > 0) smallest = smallest == 0 ? b.frames : std::min(smallest, b.frames);
    if (longest > 0 && longest < smallest)
      out.warnings.push_back(fmt::format("nothing fits: the longest clip has {} frames, the smallest bucket {}", longest, smallest));
  }

  EncodeReport finish(Dataset& dataset) {
    EncodeReport out;
    out.warnings = std::move(dataset.warnings);
    std::vector<CachedClip> index;
    std::map<const Work*, ClipReport> shared;  // before the notes of the entry and the move below
    for (const Work& w : works_)
      if (w.same != nullptr) shared.emplace(w.same, w.same->report);
    for (Work& w : works_) {
      if (w.same != nullptr) {
        const std::string path = w.report.path, place = w.report.place;
        w.report = shared.at(w.same);
        w.report.path = path;
        w.report.place = place;
        w.cached = w.same->cached;
      }
      ClipReport& r = w.report;
      for (const std::string& n : w.entry->notes) r.facts.notes.push_back(n);
      const std::string name = r.path.empty() ? r.place : r.path;
      for (const std::string& n : r.facts.notes) out.warnings.push_back(name + ": " + n);
      if (r.facts.status == ClipStatus::kDropped) {
        ++out.dropped;
      } else {
        ++out.kept;
        out.encoded += r.reused ? 0 : 1;
        r.key = w.cached.key;
        w.cached.path = r.path;
        w.cached.caption = r.caption;
        index.push_back(w.cached);
      }
      out.clips.push_back(std::move(r));
    }
    if (index.empty()) say_what_would_fit(out);
    if (!index.empty()) write_cache_index(options_.cache, {codec_->identity(), text_->identity()}, index);
    return out;
  }

  const EncodeOptions& options_;
  ThreadPool& pool_;
  StopToken stop_;
  std::unique_ptr<VideoCodec> codec_;
  std::unique_ptr<TextEncoder> text_;
  std::vector<Work> works_;
  std::map<std::string, std::string> present_;  // latent hash -> key of some file that holds it
  std::mutex mutex_;
};

}  // namespace

SelectionRule make_selection_rule(const ModelConfig& model, int64_t width, int64_t height, int64_t num_frames, double fps,
                                  const std::string& buckets_text, const std::string& buckets_name) {
  SelectionRule rule;
  rule.temporal_stride = model.temporal_stride();
  rule.size_multiple = std::max<int64_t>(16, 2 * model.spatial_stride());
  rule.max_frames = num_frames > 0 ? num_frames : model.num_frames;
  rule.fps = fps;
  check_bucket({width, height, 0}, model, "--size");
  if (buckets_name.empty()) rule.buckets = {{width, height, 0}};
  else rule.buckets = parse_buckets(buckets_text, buckets_name, model, width, height);
  return rule;
}

EncodeReport encode_dataset(const EncodeOptions& options, const ModelParts& parts, ThreadPool& pool, StopToken stop) {
  return Run(options, parts, pool, stop).run();
}

}  // namespace megaslide
