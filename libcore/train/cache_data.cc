// Training on caches of encode-clips.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "data/cache.h"
#include "data/shots.h"
#include "train/data_sources.h"
#include "train/displacement.h"
#include "train/epoch.h"
#include "train/objective.h"

namespace megaslide {
namespace {

// Numbers of an epoch's samples are kept in memory.
constexpr int64_t kMostSamples = int64_t{1} << 24;
constexpr int64_t kMostInABatch = 65535;

// One clip of one of the caches.
struct CachedSource {
  size_t cache = 0;
  const CachedClip* info = nullptr;
  LatentCache::Clip clip;
  int64_t repeats = 1;
  HostTensor displacement;    // of models that need it
  uint32_t first_sample = 0;  // its samples in an epoch are first_sample … first_sample + repeats − 1
};

// What the text encoder makes of an empty prompt, or no rows where the cache does not say.
HostTensor read_empty_text(const LatentCache& cache, const ModelConfig& model) {
  const std::string path = cache.dir() + "/empty_text.safetensors";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  const auto file = SafetensorsFile::open(path);
  if (const auto encoder = file.metadata().find("text_encoder"); encoder != file.metadata().end() && encoder->second != cache.identity().text_encoder)
    throw Error(fmt::format("{}: made for the text encoder \"{}\", the clips for \"{}\"", path, encoder->second, cache.identity().text_encoder), "run encode-clips again");
  HostTensor rows = read_f32(file, "text");
  const Shape& s = rows.shape();
  if (s.size() != 2 || s[0] > model.text_len || s[1] != model.text_dim)
    throw Error(fmt::format("{}: text is {}, the model reads up to {} rows of {}", path, to_string(s), model.text_len, model.text_dim),
                "run encode-clips with this model into a new folder");
  if (!std::all_of(rows.f32(), rows.f32() + rows.elements(), [](float x) { return std::isfinite(x); }))
    throw Error(path + ": damaged: it holds values that are not finite", "run encode-clips again");
  return rows;
}

class CacheData final : public TrainingData {
 public:
  CacheData(const RunConfig& run, const ModelConfig& model, const ModelParts& parts)
      : run_(run), model_(model), objective_(run, model) {
    for (const std::string& path : run.data.cache) open_cache(path, parts);
    hold_out();
    number_samples();
    fill_buckets();
    for (const Bucket& b : buckets_) per_epoch_ += b.batches();
  }

  std::vector<BatchShape> shapes() const override {
    std::vector<BatchShape> all;
    const auto add = [&](const Shape& latent, int64_t batch) {
      const BatchShape s = shape_of(latent, batch);
      if (std::find(all.begin(), all.end(), s) == all.end()) all.push_back(s);
    };
    for (const Bucket& b : buckets_) {
      if (b.batches() > 1) add(b.latent, b.batch_size);
      add(b.latent, b.last_batch());
    }
    for (const uint32_t clip : held_out_) add(clips_[clip].info->latent, 1);
    return all;
  }

  int microbatches(int64_t step) const override { return static_cast<int>(position(step) - position(step - 1)); }
  int max_microbatches() const override {
    const int64_t a = run_.train.gradient_accumulation_steps;
    return static_cast<int>(total() ? std::min(a, total()) : a);
  }
  int64_t last_step() const override {
    if (!total()) return run_.train.max_train_steps;
    const int64_t a = run_.train.gradient_accumulation_steps;
    return base_step_ + (std::max<int64_t>(0, total() - base_position_) + a - 1) / a;
  }
  int64_t position(int64_t step) const override {
    const int64_t p = base_position_ + (step - base_step_) * run_.train.gradient_accumulation_steps;
    return total() ? std::min(p, std::max(total(), base_position_)) : p;
  }
  void resume_after(int64_t step, int64_t position) override {
    base_step_ = step;
    base_position_ = position;
  }

  HostBatch batch(int64_t step, int micro) const override {
    const int64_t index = position(step - 1) + micro;
    std::lock_guard lock(mutex_);
    const int64_t number = index / per_epoch_;
    if (!epoch_ || number != epoch_number_) epoch_.emplace(buckets_, seed(), number, run_.train.num_timestep_buckets > 0);
    epoch_number_ = number;
    const auto samples = epoch_->batch(static_cast<size_t>(index % per_epoch_));
    HostBatch b = objective_.empty_batch(shape_of(clip_of(samples.front()).info->latent, static_cast<int64_t>(samples.size())));
    for (size_t i = 0; i < samples.size(); ++i) {
      const CachedSource& clip = clip_of(samples[i]);
      // Series of epoch 0 are those of validation.
      const uint64_t series = sample_series((number + 1) & 0xFFFFFFFF, samples[i]);
      const int64_t strata = run_.train.num_timestep_buckets;
      const double sigma = strata ? draw_sigma(objective_.distribution(), seed(), series, epoch_->stratum(samples[i], strata), strata)
                                  : draw_sigma(objective_.distribution(), seed(), series);
      fill_sample(b, static_cast<int64_t>(i), clip, sigma, series, true);
      fill_shots(b, static_cast<int64_t>(i), clip);
      fill_displacement(b, static_cast<int64_t>(i), clip);
      fill_text(b, static_cast<int64_t>(i), clip, draw_caption_dropout(run_.data.caption_dropout_rate, seed(), series));
    }
    return b;
  }

  // Each held-out clip at five noise levels of the slice.
  int64_t validation_batches() const override { return static_cast<int64_t>(held_out_.size()) * 5; }
  HostBatch validation_batch(int64_t index) const override {
    const CachedSource& clip = clips_[held_out_[static_cast<size_t>(index / 5)]];
    HostBatch b = objective_.empty_batch(shape_of(clip.info->latent, 1));
    const TimestepDistribution& d = objective_.distribution();
    const double low = unshift_sigma(d.low, d.shift), high = unshift_sigma(d.high, d.shift), u = 0.1 + 0.2 * static_cast<double>(index % 5);
    fill_sample(b, 0, clip, shift_sigma(low + u * (high - low), d.shift), sample_series(0, index), false);
    fill_shots(b, 0, clip);
    fill_displacement(b, 0, clip);
    fill_text(b, 0, clip, false);
    return b;
  }

  std::vector<std::string> keys() const override {
    std::vector<std::string> all;
    for (const CachedSource& c : clips_) all.push_back(fmt::format("{}:{}", c.cache, c.info->key));
    return all;
  }

  std::vector<std::string> summary() const override {
    std::vector<std::string> lines;
    int64_t samples = 0;
    for (const Bucket& b : buckets_) {
      samples += static_cast<int64_t>(b.samples.size());
      lines.push_back(fmt::format("bucket {}: {} clips, {} samples an epoch in {} batches of {}{}", name_of(b), b.clips, b.samples.size(), b.batches(), b.batches() > 1 ? b.batch_size : b.last_batch(),
                                  b.batches() > 1 && b.last_batch() != b.batch_size ? fmt::format(", the last of {}", b.last_batch()) : ""));
    }
    lines.push_back(fmt::format("an epoch is {} samples in {} microbatches, {:.2f} steps", samples, per_epoch_,
                                static_cast<double>(per_epoch_) / static_cast<double>(run_.train.gradient_accumulation_steps)));
    add_unreached(lines);
    if (!held_out_.empty()) lines.push_back(fmt::format("{} clips are held out for validation", held_out_.size()));
    return lines;
  }
  int64_t host_bytes() const override { return bytes_; }

 private:
  uint64_t seed() const { return static_cast<uint64_t>(run_.train.seed); }
  int64_t total() const { return run_.train.max_train_epochs * per_epoch_; }

  static std::string name_of(const Bucket& b) { return fmt::format("{}x{}x{}x{}", b.latent[0], b.latent[1], b.latent[2], b.latent[3]); }

  // A run that ends within its first epoch leaves samples out: how many of which bucket.
  void add_unreached(std::vector<std::string>& lines) const {
    const int64_t reached = position(last_step());
    if (reached >= per_epoch_) return;
    std::vector<int64_t> left(buckets_.size());
    const Epoch epoch(buckets_, seed(), 0, false);
    for (int64_t i = reached; i < per_epoch_; ++i) {
      const auto samples = epoch.batch(static_cast<size_t>(i));
      for (size_t b = 0; b < buckets_.size(); ++b)
        if (clip_of(samples.front()).info->latent == buckets_[b].latent) left[b] += static_cast<int64_t>(samples.size());
    }
    for (size_t b = 0; b < buckets_.size(); ++b)
      if (left[b]) lines.push_back(fmt::format("bucket {}: {} of {} samples are not reached in {} steps", name_of(buckets_[b]), left[b], buckets_[b].samples.size(), last_step()));
  }

  void open_cache(const std::string& path, const ModelParts& parts) {
    const size_t number = caches_.size();
    caches_.push_back(std::make_unique<LatentCache>(LatentCache::open(path)));
    const LatentCache& cache = *caches_.back();
    cache.require_model(parts);
    for (size_t i = 0; i < cache.size(); ++i) {
      require_latent(cache.info(i).latent, model_, cache.info(i).path);
      clips_.push_back({number, &cache.info(i), cache.clip(i), run_.data.repeats_of(number), {}, 0});
      const LatentCache::Clip& clip = clips_.back().clip;
      require_intact(clip);
      require_text_of(clip, model_);
      bytes_ += clip.latent.bytes() + clip.text.bytes();
      if (!run_.data.displacement.empty()) {
        clips_.back().displacement = read_displacement(run_.data.displacement, cache.info(i), shape_of(cache.info(i).latent, 1));
        bytes_ += 4 * clips_.back().displacement.elements();
      }
    }
    empty_texts_.push_back(read_empty_text(cache, model_));
    bytes_ += empty_texts_.back().bytes();
    if (empty_texts_.back().empty() && model_.text_encoder == TextEncoderKind::kUmt5 && run_.data.caption_dropout_rate > 0)
      log_warning("{}: has no rows of the empty prompt: dropped captions are trained as zeros; encode-clips adds them", path);
  }

  // Of the numbers of clips, those that are trained on stay.
  void hold_out() {
    trained_.resize(clips_.size());
    std::iota(trained_.begin(), trained_.end(), uint32_t{0});
    if (run_.data.validation_fraction <= 0) return;
    shuffle(trained_, seed(), UINT64_MAX);
    const auto all = static_cast<int64_t>(clips_.size());
    const auto wanted = std::max<int64_t>(1, std::llround(run_.data.validation_fraction * static_cast<double>(all)));
    if (wanted >= all)
      throw usage_error(fmt::format("data.validation_fraction {} holds out all {} clips", run_.data.validation_fraction, all), "lower it, or add clips");
    held_out_.assign(trained_.begin(), trained_.begin() + wanted);
    trained_.erase(trained_.begin(), trained_.begin() + wanted);
    std::sort(held_out_.begin(), held_out_.end());
    std::sort(trained_.begin(), trained_.end());
  }

  void number_samples() {
    int64_t next = 0;
    for (const uint32_t clip : trained_) {
      clips_[clip].first_sample = static_cast<uint32_t>(next);
      next += clips_[clip].repeats;
      if (next > kMostSamples)
        throw usage_error(fmt::format("data.num_repeats: an epoch of more than {} samples", kMostSamples), "lower it: epochs follow each other anyway");
    }
    bytes_ += next * 16;
  }

  void fill_buckets() {
    std::map<Shape, std::vector<uint32_t>> by_shape;
    for (const uint32_t clip : trained_) by_shape[clips_[clip].info->latent].push_back(clip);
    for (const auto& [latent, clips] : by_shape) {
      Bucket b;
      b.latent = latent;
      b.clips = static_cast<int64_t>(clips.size());
      b.batch_size = run_.data.batch_size;
      if (run_.data.batch_tokens > 0) b.batch_size = std::clamp(run_.data.batch_tokens / shape_of(latent, 1).tokens(), int64_t{1}, kMostInABatch);
      for (const uint32_t clip : clips)
        for (int64_t r = 0; r < clips_[clip].repeats; ++r) b.samples.push_back(clips_[clip].first_sample + static_cast<uint32_t>(r));
      buckets_.push_back(std::move(b));
    }
  }

  const CachedSource& clip_of(uint32_t sample) const {
    const auto after = std::upper_bound(trained_.begin(), trained_.end(), sample, [&](uint32_t s, uint32_t clip) { return s < clips_[clip].first_sample; });
    return clips_[*std::prev(after)];
  }

  BatchShape shape_of(const Shape& latent, int64_t batch) const {
    return objective_.shape(batch_shape_of(latent, batch, model_.text_len, run_.data.cache.front()));
  }

  void fill_sample(HostBatch& b, int64_t i, const CachedSource& clip, double sigma, uint64_t series, bool weighted) const {
    const auto noise = sample_of(b.latent, i);
    fill_normal(noise, seed(), RandomPurpose::kNoise, series);
    objective_.fill(b, i, floats_of(clip.clip.latent), noise, sigma, weighted);
  }

  // Tables appear with the first sample that has a cut; the others then are one shot each.
  static void fill_shots(HostBatch& b, int64_t i, const CachedSource& clip) {
    const int64_t batch = b.shape.batch, frames = b.shape.frames;
    const auto fill = [&](int64_t sample, const std::vector<int64_t>& cuts) {
      shot_tables(cuts, frames, b.shots.data() + sample * frames, b.shots.data() + (batch + sample) * frames);
    };
    const std::vector<int64_t>& cuts = clip.info->latent_cuts;
    if (cuts.empty()) return;
    if (b.shots.empty()) {
      b.shots.resize(static_cast<size_t>(2 * batch * frames));
      for (int64_t sample = 0; sample < batch; ++sample) fill(sample, {});
    }
    fill(i, cuts);
  }

  static void fill_displacement(HostBatch& b, int64_t i, const CachedSource& clip) {
    if (clip.displacement.empty()) return;
    const int64_t n = clip.displacement.elements();
    b.displacement.resize(static_cast<size_t>(b.shape.batch * n));
    std::copy(clip.displacement.f32(), clip.displacement.f32() + n, b.displacement.begin() + i * n);
  }

  void fill_text(HostBatch& b, int64_t i, const CachedSource& clip, bool drop) const {
    const HostTensor& nothing = empty_texts_[clip.cache];
    const auto rows = !drop ? floats_of(clip.clip.text) : nothing.empty() ? std::span<const float>{} : floats_of(nothing.view());
    std::copy(rows.begin(), rows.end(), sample_of(b.text, i).begin());
  }

  const RunConfig run_;
  const ModelConfig model_;
  const Objective objective_;
  std::vector<std::unique_ptr<LatentCache>> caches_;
  std::vector<HostTensor> empty_texts_;  // one a cache
  std::vector<CachedSource> clips_;
  std::vector<uint32_t> trained_, held_out_;
  std::vector<Bucket> buckets_;
  int64_t per_epoch_ = 0, bytes_ = 0;  // microbatches; memory
  int64_t base_step_ = 0, base_position_ = 0;
  mutable std::mutex mutex_;
  mutable std::optional<Epoch> epoch_;
  mutable int64_t epoch_number_ = -1;
};

}  // namespace

std::unique_ptr<TrainingData> open_cache_data(const RunConfig& run, const ModelConfig& model, const ModelParts& parts) {
  return std::make_unique<CacheData>(run, model, parts);
}

}  // namespace megaslide
