#include "train/training_data.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/philox.h"
#include "data/cache.h"
#include "diffusion/flow_matching.h"
#include "io/safetensors.h"

namespace megaslide {

HostBatch TrainingData::validation_batch(int64_t) const {
  MS_CHECK(false, "no validation data");
  __builtin_unreachable();
}

BatchShape batch_shape_of(const Shape& latent, int64_t batch, int64_t context_rows, const std::string& what) {
  if (latent.size() != 4 || latent[2] % 2 != 0 || latent[3] % 2 != 0)
    throw Error(fmt::format("{}: a latent [C, T, h, w] with even h and w is needed, this one is {}", what, to_string(latent)),
                "encode the clips again with a --size whose sides are multiples of twice the codec's stride");
  if (batch < 1 || context_rows < 1 || std::any_of(latent.begin(), latent.end(), [](int64_t n) { return n < 1; }))
    throw Error(fmt::format("{}: nothing to compute on: {} samples of {} with {} text rows", what, batch, to_string(latent), context_rows),
                "every size must be at least 1");
  return {batch, latent[1], latent[2] / 2, latent[3] / 2, context_rows};
}

namespace {

void require_channels(const Shape& latent, const ModelConfig& model, const std::string& what) {
  if (latent.empty() || latent[0] != model.in_channels)
    throw Error(fmt::format("{}: latents have {} channels, the model takes {}", what, latent.empty() ? 0 : latent[0], model.in_channels),
                "encode the clips with this model (encode-clips --model)");
}

HostBatch empty_batch(const BatchShape& shape, const ModelConfig& model) {
  HostBatch b;
  b.shape = shape;
  const Shape latent{shape.batch, model.in_channels, shape.frames, shape.height * 2, shape.width * 2};
  b.latent = HostTensor(DType::kF32, latent);
  b.target = HostTensor(DType::kF32, latent);
  b.timesteps = HostTensor(DType::kF32, {shape.batch});
  b.text = HostTensor(DType::kF32, {shape.batch, shape.context_rows, model.text_dim});
  b.tokens = shape.rows();
  return b;
}

std::span<float> sample_of(HostTensor& t, int64_t i) {
  const int64_t n = t.elements() / t.shape()[0];
  return {t.f32() + i * n, static_cast<size_t>(n)};
}

std::span<const float> floats_of(const TensorView& v) { return {reinterpret_cast<const float*>(v.data), static_cast<size_t>(v.elements())}; }

class CacheData final : public TrainingData {
 public:
  CacheData(const RunConfig& run, const ModelConfig& model, const ModelParts& parts) : run_(run), model_(model), cache_(LatentCache::open(run.data.cache)) {
    cache_.require_model(parts);
    if (cache_.size() == 0) throw Error(run.data.cache + ": the cache holds no clips", "encode-clips reports why clips were dropped");
    for (size_t i = 0; i < cache_.size(); ++i) {
      require_channels(cache_.info(i).latent, model, cache_.info(i).path);
      clips_.push_back(cache_.clip(i));
      require_intact(clips_.back());
      require_text_of(clips_.back(), model);
      bytes_ += clips_.back().latent.bytes() + clips_.back().text.bytes();
    }
    hold_out();
    distribution_.sampling = parse_timestep_sampling(run.train.timestep_sampling);
    distribution_.mean = run.train.logit_mean;
    distribution_.scale = run.train.logit_std;
    distribution_.shift = run.train.flow_shift.value_or(model.flow_shift);
    per_epoch_ = static_cast<int64_t>(make_epoch(0).size());
  }

  std::vector<BatchShape> shapes() const override {
    std::vector<BatchShape> all;
    auto add = [&](const Shape& latent, int64_t batch) {
      const BatchShape s = batch_shape_of(latent, batch, model_.text_len, run_.data.cache);
      if (std::find(all.begin(), all.end(), s) == all.end()) all.push_back(s);
    };
    for (const auto& batch : make_epoch(0)) add(cache_.info(batch.front()).latent, static_cast<int64_t>(batch.size()));
    for (const size_t clip : held_out_) add(cache_.info(clip).latent, 1);
    return all;
  }

  HostBatch batch(int64_t step, int micro) const override {
    const int64_t index = (step - 1) * run_.train.gradient_accumulation_steps + micro;
    const auto clips = clips_of(index / per_epoch_, index % per_epoch_);
    HostBatch b = empty_batch(batch_shape_of(cache_.info(clips.front()).latent, static_cast<int64_t>(clips.size()), model_.text_len, ""), model_);
    const auto seed = static_cast<uint64_t>(run_.train.seed);
    for (size_t i = 0; i < clips.size(); ++i) {
      const uint64_t series = sample_series(step, micro, static_cast<int64_t>(i));
      fill_sample(b, static_cast<int64_t>(i), clips[i], draw_sigma(distribution_, seed, series), seed, series,
                  draw_caption_dropout(run_.data.caption_dropout_rate, seed, series));
    }
    return b;
  }
  int microbatches(int64_t) const override { return max_microbatches(); }
  int max_microbatches() const override { return static_cast<int>(run_.train.gradient_accumulation_steps); }

  // Each held-out clip at five noise levels.
  int64_t validation_batches() const override { return static_cast<int64_t>(held_out_.size()) * 5; }
  HostBatch validation_batch(int64_t index) const override {
    const size_t clip = held_out_[static_cast<size_t>(index / 5)];
    HostBatch b = empty_batch(batch_shape_of(cache_.info(clip).latent, 1, model_.text_len, ""), model_);
    // Step 0 is never trained on, so these series are no training sample's.
    const double sigma = shift_sigma(0.1 + 0.2 * static_cast<double>(index % 5), distribution_.shift);
    fill_sample(b, 0, clip, sigma, static_cast<uint64_t>(run_.train.seed), sample_series(0, 0, index), false);
    return b;
  }
  int64_t host_bytes() const override { return bytes_; }

 private:
  using Batches = std::vector<std::vector<size_t>>;  // of clip numbers, all of one shape

  static void shuffle(auto& items, uint64_t seed, uint64_t series) {
    const Random random(seed, RandomPurpose::kShuffle);
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(series, i, i)]);
  }

  void hold_out() {
    std::vector<size_t> order(cache_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (run_.data.validation_fraction > 0) {
      shuffle(order, static_cast<uint64_t>(run_.train.seed), UINT64_MAX);
      const auto wanted = std::max<int64_t>(1, std::llround(run_.data.validation_fraction * static_cast<double>(cache_.size())));
      if (wanted >= static_cast<int64_t>(cache_.size()))
        throw usage_error(fmt::format("data.validation_fraction {} holds out all {} clips", run_.data.validation_fraction, cache_.size()),
                          "lower it, or add clips");
      held_out_.assign(order.begin(), order.begin() + wanted);
      order.erase(order.begin(), order.begin() + wanted);
      std::sort(held_out_.begin(), held_out_.end());
      std::sort(order.begin(), order.end());
    }
    std::map<Shape, std::vector<size_t>> by_shape;
    for (const size_t clip : order) by_shape[cache_.info(clip).latent].push_back(clip);
    for (auto& [shape, clips] : by_shape) buckets_.push_back(std::move(clips));
  }

  // Clips are shuffled within their bucket and cut into batches (the last may be smaller: no clip is left out), then
  // the batches are shuffled.
  Batches make_epoch(int64_t number) const {
    Batches batches;
    const auto seed = static_cast<uint64_t>(run_.train.seed);
    for (size_t b = 0; b < buckets_.size(); ++b) {
      std::vector<size_t> clips;
      for (int64_t r = 0; r < run_.data.num_repeats; ++r) clips.insert(clips.end(), buckets_[b].begin(), buckets_[b].end());
      shuffle(clips, seed, static_cast<uint64_t>(number) << 20 | (b + 1));
      for (size_t i = 0; i < clips.size(); i += static_cast<size_t>(run_.data.batch_size))
        batches.emplace_back(clips.begin() + static_cast<std::ptrdiff_t>(i),
                             clips.begin() + static_cast<std::ptrdiff_t>(std::min(clips.size(), i + static_cast<size_t>(run_.data.batch_size))));
    }
    shuffle(batches, seed, static_cast<uint64_t>(number) << 20);
    return batches;
  }

  std::vector<size_t> clips_of(int64_t epoch, int64_t index) const {
    std::lock_guard lock(mutex_);
    if (epoch != epoch_number_) {
      epoch_ = make_epoch(epoch);
      epoch_number_ = epoch;
    }
    return epoch_[static_cast<size_t>(index)];
  }

  void fill_sample(HostBatch& b, int64_t i, size_t clip, double sigma, uint64_t seed, uint64_t series, bool drop_caption) const {
    const auto x = sample_of(b.latent, i);
    fill_normal(x, seed, RandomPurpose::kNoise, series);
    add_noise(x, sample_of(b.target, i), floats_of(clips_[clip].latent), x, sigma);
    b.timesteps.f32()[i] = static_cast<float>(timestep_of_sigma(sigma));
    if (drop_caption) return;
    const auto text = floats_of(clips_[clip].text);
    std::copy(text.begin(), text.end(), sample_of(b.text, i).begin());
  }

  const RunConfig run_;
  const ModelConfig model_;
  LatentCache cache_;
  std::vector<LatentCache::Clip> clips_;
  std::vector<size_t> held_out_;
  std::vector<std::vector<size_t>> buckets_;
  TimestepDistribution distribution_;
  int64_t per_epoch_ = 1, bytes_ = 0;
  mutable std::mutex mutex_;
  mutable Batches epoch_;
  mutable int64_t epoch_number_ = -1;
};

// step<k>.micro<m>.{x0 [B,C,T,h,w], noise, sigma [B], text [B,S,text_dim]}
class ReplayData final : public TrainingData {
 public:
  ReplayData(const RunConfig& run, const ModelConfig& model)
      : model_(model), path_(run.data.replay), file_(SafetensorsFile::open(run.data.replay)), max_steps_(run.train.max_train_steps) {
    for (int64_t step = 1; file_.find(name(step, 0, "x0")); ++step) {
      int micro = 0;
      for (; file_.find(name(step, micro, "x0")); ++micro) {
        const BatchShape s = shape_of(step, micro);
        if (std::find(shapes_.begin(), shapes_.end(), s) == shapes_.end()) shapes_.push_back(s);
      }
      micro_.push_back(micro);
    }
    if (micro_.empty()) throw Error(path_ + ": no stored batches: step1.micro0.x0 is missing", "names are step<k>.micro<m>.{x0,noise,sigma,text}");
    if (static_cast<int64_t>(micro_.size()) < max_steps_)
      throw usage_error(fmt::format("{}: holds {} steps, train.max_train_steps is {}", path_, micro_.size(), max_steps_),
                        fmt::format("--set train.max_train_steps={}", micro_.size()));
  }

  std::vector<BatchShape> shapes() const override { return shapes_; }
  int microbatches(int64_t step) const override { return micro_[static_cast<size_t>(step - 1)]; }
  int max_microbatches() const override { return *std::max_element(micro_.begin(), micro_.end()); }
  HostBatch batch(int64_t step, int micro) const override {
    HostBatch b = empty_batch(shape_of(step, micro), model_);
    const HostTensor x0 = read(step, micro, "x0", b.latent.shape()), noise = read(step, micro, "noise", b.latent.shape());
    const HostTensor sigma = read(step, micro, "sigma", {b.shape.batch});
    for (int64_t i = 0; i < b.shape.batch; ++i)
      if (const float s = sigma.f32()[i]; !(s >= 0 && s <= 1))
        throw Error(fmt::format("{}: {} holds {}", path_, name(step, micro, "sigma"), s), "a noise level lies in 0..1");
    b.text = read(step, micro, "text", b.text.shape());
    const auto n = static_cast<size_t>(x0.elements() / b.shape.batch);
    for (int64_t i = 0; i < b.shape.batch; ++i) {
      const auto at = static_cast<size_t>(i) * n;
      add_noise(sample_of(b.latent, i), sample_of(b.target, i), {x0.f32() + at, n}, {noise.f32() + at, n}, sigma.f32()[i]);
      b.timesteps.f32()[i] = static_cast<float>(timestep_of_sigma(sigma.f32()[i]));
    }
    return b;
  }
  int64_t host_bytes() const override {
    int64_t bytes = 0;
    for (const auto& t : file_.tensors()) bytes += t.end - t.begin;
    return bytes;
  }

 private:
  static std::string name(int64_t step, int micro, const char* what) { return fmt::format("step{}.micro{}.{}", step, micro, what); }

  BatchShape shape_of(int64_t step, int micro) const {
    const Shape x0 = file_.view(name(step, micro, "x0")).shape, text = file_.view(name(step, micro, "text")).shape;
    if (x0.size() != 5 || text.size() != 3 || text[0] != x0[0] || text[2] != model_.text_dim)
      throw Error(fmt::format("{}: {} {} and its text {} do not go with the model (text_dim {})", path_, name(step, micro, "x0"),
                              to_string(x0), to_string(text), model_.text_dim));
    const Shape latent(x0.begin() + 1, x0.end());
    require_channels(latent, model_, path_);
    return batch_shape_of(latent, x0[0], text[1], path_);
  }

  HostTensor read(int64_t step, int micro, const char* what, const Shape& shape) const {
    const TensorView v = file_.view(name(step, micro, what));
    if (v.shape != shape)
      throw Error(fmt::format("{}: {} is {}, expected {}", path_, name(step, micro, what), to_string(v.shape), to_string(shape)));
    return read_f32(file_, name(step, micro, what));
  }

  const ModelConfig model_;
  std::string path_;
  SafetensorsFile file_;
  int64_t max_steps_;
  std::vector<BatchShape> shapes_;
  std::vector<int> micro_;
};

}  // namespace

std::unique_ptr<TrainingData> open_training_data(const RunConfig& run, const ModelConfig& model, const ModelParts& parts) {
  if (!run.data.replay.empty()) return std::make_unique<ReplayData>(run, model);
  return std::make_unique<CacheData>(run, model, parts);
}

}  // namespace megaslide
