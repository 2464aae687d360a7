#include "data/encode.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "data/cache.h"
#include "data/cache_index.h"
#include "data/caption_rows.h"
#include "data/prefetch.h"
#include "data/resize.h"
#include "data/shots.h"
#include "diffusion/device_memory.h"
#include "io/json.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLatentDigits = 16, kTextDigits = 12;
// What files mean as pixels; part of a latent's hash. Raised when decoding changes.
constexpr const char* kPixels = "pixels-2";

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
  std::string latent_hash, text_hash;
  std::string caption_note;
  const Work* same = nullptr;  // an earlier entry with the same key: its files are this one's
  const Work* twin = nullptr;  // an earlier entry with the same latent and another caption
  std::string latent_file;     // that holds the latent already
  bool whole = false;          // ... and the caption's rows
};

class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

class Run {
 public:
  Run(const EncodeOptions& options, const ModelParts& parts, ThreadPool& pool, StopToken stop)
      : options_(options), parts_(parts), pool_(pool), stop_(stop), identity_(cache_identity(parts)) {}

  EncodeReport run() {
    Stopwatch whole, stage;
    Dataset dataset = read_datasets(options_.datasets, options_.dataset);
    prepare_folder();
    const CacheLock lock(options_.cache);
    for (const char* folder : {"", "/clips", "/captions"}) remove_temporaries(options_.cache + folder);
    find_present();
    note_other_model();
    works_.resize(dataset.entries.size());
    for_each_work([&](Work& w, size_t i) { identify(w, dataset.entries[i]); });
    share();
    for_each_work([&](Work& w, size_t) { find_latent(w); });
    seconds_.hash = stage.lap();
    encode_captions();
    seconds_.text = stage.lap();
    encode_clips();
    seconds_.wall = whole.lap();
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
    const auto make = [](const std::string& path, const char* what) {
      std::error_code failure;
      fs::create_directories(path, failure);
      if (failure) throw Error(fmt::format("{}: cannot make the {}: {}", path, what, failure.message()), "choose a folder that can be written");
    };
    make(options_.cache + "/clips", "cache folder");
    if (!options_.pictures.empty()) make(options_.pictures, "folder");
  }

  void find_present() {
    std::error_code ignored;
    for (const auto& e : fs::directory_iterator(options_.cache + "/clips", ignored)) {
      const std::string stem = e.path().stem().string();
      if (e.path().extension() != ".safetensors" || stem.size() < kLatentDigits + kTextDigits + 2) continue;
      present_[stem.substr(stem.size() - kTextDigits - 1 - kLatentDigits, kLatentDigits)] = stem;
      present_text_[stem.substr(stem.size() - kTextDigits)] = stem;
    }
  }

  // A folder holds the clips of one model: whose they were is said before its index goes.
  void note_other_model() {
    const std::string path = cache_index_file(options_.cache);
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return;
    CacheIdentity before;
    try {
      before = parse_cache_index(read_file(path, kMaxJsonBytes), path).identity;
    } catch (const Error&) {
      return;  // no index that any model could use
    }
    const auto differs = [&](const char* what, const std::string& had, const std::string& has) {
      if (had != has)
        other_model_ = fmt::format("{}: was made for {} \"{}\"; it now serves \"{}\", and no model with the other. Give each its folder", options_.cache, what, had, has);
    };
    differs("the text encoder", before.text_encoder, identity_.text_encoder);
    differs("the codec", before.codec, identity_.codec);
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
    // What is computed in another way than by default is another latent.
    const std::string codec = identity_.codec + (codec_options(options_.parts).encode_dtype == DType::kBF16 ? " bf16" : "") + (options_.parts.vae_tiling ? " tiled" : "") + "\n";
    const std::string encoder = identity_.text_encoder + (text_dtype(options_.parts) == DType::kBF16 ? "" : " fp32") + "\n";
    w.latent_hash = sha256_hex(codec + kPixels + "\n" + options_.rule.text() + "\n" + w.cached.source_sha256).substr(0, kLatentDigits);
    w.text_hash = sha256_hex(encoder + e.caption).substr(0, kTextDigits);
    w.cached.key = fmt::format("{}-{}-{}", readable_name(e.path), w.latent_hash, w.text_hash);
  }

  // Equal keys are worked on once, and equal latents are made once.
  void share() {
    std::map<std::string, const Work*> by_key, by_latent;
    for (Work& w : works_) {
      if (!w.report.facts.reason.empty()) continue;
      const auto [same, fresh] = by_key.emplace(w.cached.key, &w);
      if (!fresh) {
        w.same = same->second;
        continue;
      }
      const auto [twin, first] = by_latent.emplace(w.latent_hash, &w);
      if (!first) w.twin = twin->second;
    }
  }

  // The latent may be there already, with this caption or another.
  void find_latent(Work& w) {
    const auto it = present_.find(w.latent_hash);
    if (!w.report.facts.reason.empty() || w.same != nullptr || it == present_.end()) return;
    std::error_code ignored;
    const bool whole = fs::exists(cached_clip_file(options_.cache, w.cached.key), ignored);
    const std::string from = cached_clip_file(options_.cache, whole ? w.cached.key : it->second);
    try {
      const SafetensorsFile file = SafetensorsFile::open(from);
      const auto facts = file.metadata().find("facts");
      if (facts == file.metadata().end()) return;
      const TensorView latent = file.view("latent");
      require_intact({file, latent, file.view("text")});
      w.report.facts = ClipFacts::from_json(parse_json(facts->second, from));
      if (const auto note = file.metadata().find("caption_note"); whole && note != file.metadata().end()) w.caption_note = note->second;
      w.latent_file = from;
      w.whole = whole;
    } catch (const Error& e) {
      log_warning("{}; the clip is encoded again", e.message());
    }
  }

  bool has_work(const Work& w) const { return w.entry->problem.empty() && !w.latent_hash.empty() && w.same == nullptr; }
  bool wants_pictures() const { return options_.frame_md5 || options_.strips || !options_.pictures.empty(); }
  bool must_decode(const Work& w) const { return has_work(w) && (wants_pictures() || (w.latent_file.empty() && w.twin == nullptr)); }

  void encode_captions() {
    std::map<std::string, std::string> wanted;
    for (const Work& w : works_)
      if (has_work(w) && !w.whole) wanted[w.text_hash] = w.entry->caption;
    captions_.emplace(options_.cache, std::move(present_text_));
    texts_encoded_ = captions_->provide(wanted, parts_, text_dtype(options_.parts), pool_, stop_);
  }

  void encode_clips() {
    std::vector<size_t> decoded;
    for (size_t i = 0; i < works_.size(); ++i)
      if (must_decode(works_[i])) decoded.push_back(i);
    const size_t most_strips = options_.strips ? kMostStrips : 0;
    Prefetch<LoadedClip> clips(
        pool_.size(), decoded.size(), kDecodedAhead,
        [&](size_t k) {
          if (stop_.requested()) return LoadedClip{};
          Stopwatch watch;
          LoadedClip clip = load_clip(works_[decoded[k]].entry->file, options_.rule, {.md5 = options_.frame_md5, .strips = k < most_strips});
          const std::lock_guard guard(mutex_);
          seconds_.decode += watch.lap();
          seconds_.frames_decoded += clip.facts.frames_decoded;
          return clip;
        },
        [](const LoadedClip& clip) { return clip.video.bytes(); });
    Progress progress("encode", 0, "frames");
    size_t done = 0;
    int64_t frames = 0;
    for (Work& w : works_) {
      stop_.throw_if_requested();
      if (must_decode(w)) {
        process(w, clips.next());
        frames += w.report.facts.frames_used;
        ++done;
        progress.set_total(static_cast<double>(frames) * static_cast<double>(decoded.size()) / static_cast<double>(done));  // the others are like these
        progress.update(static_cast<double>(frames), fmt::format("{} of {} clips, {}", done, decoded.size(), w.report.path));
      } else if (has_work(w)) {
        process(w, {});
      }
    }
    progress.finish();
  }

  void process(Work& w, LoadedClip clip) {
    if (w.latent_file.empty() && w.twin != nullptr) {
      w.report.facts = w.twin->report.facts;
      if (w.report.facts.status != ClipStatus::kDropped) w.latent_file = cached_clip_file(options_.cache, w.twin->cached.key);
    }
    if (must_decode(w)) {
      stop_.throw_if_requested();  // a clip that was not decoded for that reason is no dropped clip
      w.report.md5 = std::move(clip.md5);
      w.report.facts = std::move(clip.facts);
      if (!clip.source_strip.rgb.empty()) w.report.source_strip = encode_png(clip.source_strip);
      if (!clip.used_strip.rgb.empty()) w.report.used_strip = encode_png(clip.used_strip);
    }
    if (w.report.facts.status == ClipStatus::kDropped) return;
    if (!options_.pictures.empty()) write_pictures(w, clip.video);
    w.report.reused = !w.latent_file.empty();
    Stopwatch watch;
    if (w.report.reused) {
      const SafetensorsFile file = SafetensorsFile::open(w.latent_file);
      store(w, file.view("latent"));
    } else {
      if (codec_ == nullptr) {
        codec_device_.emplace(has_learned_codec(parts_) ? options_.parts.backend : Backend::kCpu, pool_.size());
        codec_ = make_codec(parts_, codec_options(options_.parts, codec_device_->memory()));
      }
      const HostTensor latent = codec_->encode(pool_, clip.video.view());
      seconds_.codec += watch.lap();
      clip.video = {};
      store(w, latent.view());
    }
    seconds_.write += watch.lap();
  }

  void write_pictures(Work& w, const HostTensor& video) {
    const Shape& s = video.shape();
    const int64_t plane = s[2] * s[3];
    w.report.pictures = options_.pictures + "/" + w.cached.key;
    const auto writer = create_video(w.report.pictures, s[3], s[2], w.report.facts.used_fps > 0 ? w.report.facts.used_fps : kUnknownRate);
    for (int64_t t = 0; t < s[1]; ++t) writer->write(picture_from_planes(video.f32() + t * plane, s[1] * plane, s[3], s[2]));
    writer->close();
  }

  void store(Work& w, const TensorView& latent) {
    const ClipFacts& f = w.report.facts;
    w.cached.latent = latent.shape;
    w.cached.frames = f.frames_used;
    w.cached.width = f.used_width;
    w.cached.height = f.used_height;
    w.cached.fps = f.used_fps;
    w.cached.latent_cuts = latent_cuts(f.cuts, latent.shape.at(1), options_.rule.temporal_stride);
    if (w.whole) {
      w.cached.text_rows = SafetensorsFile::open(w.latent_file).view("text").shape.at(0);
      return;
    }
    const CaptionRows::Rows rows = captions_->rows(w.text_hash);
    w.cached.text_rows = rows.text.shape()[0];
    w.caption_note = rows.note;
    std::map<std::string, std::string> metadata = {{"facts", f.to_json().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)}, {"format", "pt"}};
    if (!rows.note.empty()) metadata["caption_note"] = rows.note;
    write_cached_clip(options_.cache, w.cached.key, latent, rows.text.view(), metadata);
  }

  // Where no clip is left and some were only too short, one line with both lengths.
  void say_what_would_fit(EncodeReport& out) const {
    int64_t longest = 0, smallest = 0;
    for (const ClipReport& c : out.clips) longest = std::max(longest, c.facts.frames_retimed);
    for (const Bucket& b : options_.rule.buckets)
      if (b.frames > 0) smallest = smallest == 0 ? b.frames : std::min(smallest, b.frames);
    if (longest > 0 && longest < smallest)
      out.warnings.insert(out.warnings.begin() + static_cast<std::ptrdiff_t>(out.dataset_warnings++),
                          fmt::format("nothing fits: the longest clip has {} frames, the smallest bucket {}", longest, smallest));
  }

  // The report of an entry whose work another one did.
  void take_over(Work& w) const {
    if (w.same == nullptr) return;
    ClipReport copy = w.same->report;
    copy.path = w.report.path;
    copy.place = w.report.place;
    w.report = std::move(copy);
    w.cached = w.same->cached;
    w.caption_note = w.same->caption_note;
  }

  EncodeReport finish(Dataset& dataset) {
    EncodeReport out;
    out.warnings = std::move(dataset.warnings);
    if (!other_model_.empty()) out.warnings.insert(out.warnings.begin(), other_model_);
    out.dataset_warnings = out.warnings.size();
    out.texts_encoded = texts_encoded_;
    out.seconds = seconds_;
    std::vector<CachedClip> index;
    for (Work& w : works_) take_over(w);
    for (Work& w : works_) {
      ClipReport& r = w.report;
      for (const std::string& n : w.entry->notes) r.facts.notes.push_back(n);
      if (!w.caption_note.empty()) r.facts.notes.push_back(w.caption_note);
      const std::string name = r.path.empty() ? r.place : r.path;
      for (const std::string& n : r.facts.notes) out.warnings.push_back(name + ": " + n);
      if (r.facts.status == ClipStatus::kDropped) {
        ++out.dropped;
      } else {
        ++out.kept;
        out.encoded += r.reused || w.same != nullptr ? 0 : 1;
        r.key = w.cached.key;
        w.cached.path = r.path;
        w.cached.caption = r.caption;
        index.push_back(w.cached);
      }
      out.clips.push_back(std::move(r));
    }
    if (index.empty()) say_what_would_fit(out);
    else write_cache_index(options_.cache, identity_, index);
    for (const Work& w : works_)
      if (has_work(w) && !w.cached.latent.empty()) captions_->forget(w.text_hash);
    return out;
  }

  const EncodeOptions& options_;
  const ModelParts& parts_;
  ThreadPool& pool_;
  StopToken stop_;
  CacheIdentity identity_;
  std::string other_model_;  // a warning, or empty
  std::optional<PartDevice> codec_device_;
  std::unique_ptr<VideoCodec> codec_;    // made with the first clip that needs it
  std::optional<CaptionRows> captions_;
  std::vector<Work> works_;
  std::map<std::string, std::string> present_, present_text_;  // hash of a latent, of a caption -> key of some file that holds it
  int64_t texts_encoded_ = 0;
  std::mutex mutex_;  // over what decoding adds to seconds_
  StageSeconds seconds_;
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

CodecOptions codec_options(const PartOptions& options, ModelMemory* memory) {
  return {.encode_dtype = options.compute_dtype.value_or(DType::kF32), .decode_dtype = DType::kF32, .tiling = options.vae_tiling, .memory = memory};
}

EncodeReport encode_dataset(const EncodeOptions& options, const ModelParts& parts, ThreadPool& pool, StopToken stop) {
  return Run(options, parts, pool, stop).run();
}

}  // namespace megaslide
