// Buckets, repeats, mixing of pictures and videos, and the remainders of accumulation.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "data/cache.h"
#include "io/model_directory.h"
#include "train/training_data.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing::error_of;
using testing::train;
using testing::Workplace;

const std::vector<Shape> kSeven(7, {16, 1, 4, 4});

std::unique_ptr<TrainingData> open(const Workplace& w, const std::vector<std::string>& sets) {
  auto all = sets;
  all.insert(all.begin(), {"data.batch_size=1", "data.caption_dropout_rate=0"});
  return open_training_data(w.run("out", all), w.config, w.config);
}

// How often each clip (by the first number of its caption) is in the steps.
std::map<float, int> counts(const TrainingData& data, int64_t from, int64_t to) {
  std::map<float, int> all;
  for (int64_t step = from; step <= to; ++step)
    for (const HostBatch& b : batches_of(data, step))
      for (int64_t i = 0; i < b.shape.batch; ++i) ++all[b.text.f32()[i * (b.text.elements() / b.shape.batch)]];
  return all;
}

bool each(const std::map<float, int>& all, size_t clips, int times) {
  return all.size() == clips && std::all_of(all.begin(), all.end(), [&](const auto& c) { return c.second == times; });
}

TEST(Epochs, GroupsRunAcrossThemAndTheLastIsWhatIsLeft) {
  const Workplace w(AttentionKind::kDense, kSeven);
  const auto data = open(w, {"train.gradient_accumulation_steps=4", "train.max_train_epochs=3"});
  EXPECT_EQ(data->last_step(), 6);
  for (int64_t step = 1; step <= 6; ++step) EXPECT_EQ(data->microbatches(step), step < 6 ? 4 : 1);
  EXPECT_TRUE(each(counts(*data, 1, 6), 7, 3));
  EXPECT_EQ(open(w, {"train.gradient_accumulation_steps=8", "train.max_train_epochs=1"})->last_step(), 1);
  EXPECT_EQ(open(w, {"train.gradient_accumulation_steps=8", "train.max_train_epochs=1"})->max_microbatches(), 7);
  EXPECT_EQ(train(w.run("run", {"data.batch_size=1", "train.gradient_accumulation_steps=4", "train.max_train_epochs=3"})).last_step, 6);
  EXPECT_EQ(train(w.run("few", {"data.batch_size=1", "train.gradient_accumulation_steps=8", "train.max_train_epochs=1"})).last_step, 1);
}

TEST(Epochs, AShortLastStepIsDividedByItsOwnSize) {
  // The same three samples: as the only step of three microbatches of four, and as a whole step.
  const Workplace w(AttentionKind::kDense, std::vector<Shape>(3, {16, 1, 4, 4}));
  const TrainSummary is_short = train(w.run("short", {"data.batch_size=1", "train.gradient_accumulation_steps=4", "train.max_train_epochs=1"}));
  const TrainSummary whole = train(w.run("whole", {"data.batch_size=1", "train.gradient_accumulation_steps=3", "train.max_train_steps=1"}));
  EXPECT_EQ(is_short.state_hash, whole.state_hash);
}

TEST(Epochs, ALongerRunGoesOnBehindTheShortStep) {
  const Workplace w(AttentionKind::kDense, kSeven);
  const std::vector<std::string> sets{"train.gradient_accumulation_steps=4", "train.max_train_epochs=2"};
  const auto data = open(w, sets);
  data->resume_after(2, 7);  // where one epoch of 4 + 3 ended
  EXPECT_EQ(data->last_step(), 4);
  EXPECT_TRUE(each(counts(*data, 3, 4), 7, 1)) << "the second epoch, whole";
  std::vector<std::string> run{"data.batch_size=1", "train.gradient_accumulation_steps=4", "train.max_train_epochs=1"};
  EXPECT_EQ(train(w.run("out", run)).last_step, 2);
  run.back() = "train.max_train_epochs=2";
  const TrainSummary s = train(w.run("out", run));
  EXPECT_EQ(s.last_step, 4);
  const std::string state = ModelDirectory::open(s.checkpoint).manifest().state;
  EXPECT_NE(state.find("\"position\":14"), std::string::npos) << state;
}

TEST(Epochs, RepeatsAreOfEachCache) {
  const Workplace w(AttentionKind::kDense, {{16, 3, 4, 4}, {16, 3, 4, 4}});
  testing::write_small_cache(w.folder / "pictures", w.config, {{16, 1, 4, 4}, {16, 1, 4, 4}, {16, 1, 4, 4}}, 2);
  const std::string caches = "data.cache=[" + (w.folder / "cache") + ", " + (w.folder / "pictures") + "]";
  const auto data = open(w, {caches, "data.num_repeats=[3, 1]", "train.max_train_epochs=1"});
  EXPECT_EQ(data->last_step(), 9);
  std::map<int, int> by_count;
  for (const auto& [clip, n] : counts(*data, 1, 9)) ++by_count[n];
  EXPECT_EQ(by_count, (std::map<int, int>{{1, 3}, {3, 2}}));
  EXPECT_TRUE(each(counts(*open(w, {caches, "data.num_repeats=2"}), 1, 10), 5, 2));
  EXPECT_NE(error_of([&] { open(w, {caches, "data.num_repeats=[1, 2, 3]"}); }).find("one a cache (2), got 3"), std::string::npos);
  EXPECT_NE(error_of([&] { open(w, {"data.num_repeats=1000000", caches}); }).find("no error"), std::string::npos) << "5 million samples are well";
}

TEST(Epochs, PicturesAndVideosMixByTokens) {
  // 4 tokens a picture, 12 and 16 a video.
  std::vector<Shape> shapes(10, {16, 1, 4, 4});
  shapes.insert(shapes.end(), 3, {16, 3, 4, 4});
  shapes.insert(shapes.end(), 2, {16, 4, 4, 4});
  const Workplace w(AttentionKind::kDense, shapes);
  const auto data = open(w, {"data.batch_tokens=30", "train.max_train_epochs=1"});
  // 10 pictures by 7, 3 videos by 2, 2 videos by 1.
  EXPECT_EQ(data->last_step(), 2 + 2 + 2);
  std::multiset<int64_t> sizes;
  std::vector<int64_t> frames;
  for (int64_t step = 1; step <= 6; ++step) {
    const HostBatch b = data->batch(step, 0);
    EXPECT_LE(b.tokens, 30);
    sizes.insert(100 * b.shape.frames + b.shape.batch);
    frames.push_back(b.shape.frames);
  }
  EXPECT_EQ(sizes, (std::multiset<int64_t>{107, 103, 302, 301, 401, 401}));
  EXPECT_FALSE(std::is_sorted(frames.begin(), frames.end())) << "buckets take turns";
  EXPECT_TRUE(each(counts(*data, 1, 6), 15, 1));
  EXPECT_EQ(data->shapes().size(), 5u);
  std::string lines;
  for (const auto& line : data->summary()) lines += line + "\n";
  EXPECT_NE(lines.find("bucket 16x1x4x4: 10 clips, 10 samples an epoch in 2 batches of 7, the last of 3"), std::string::npos) << lines;
  EXPECT_NE(lines.find("an epoch is 15 samples in 6 microbatches"), std::string::npos) << lines;
  EXPECT_EQ(open(w, {"data.batch_tokens=1"})->batch(1, 0).shape.batch, 1) << "at least one";
}

TEST(Epochs, WhatAShortRunDoesNotReachIsNamed) {
  const Workplace w(AttentionKind::kDense, kSeven);
  const auto last = [&](const std::string& steps) {
    const auto lines = open(w, {"train.max_train_steps=" + steps})->summary();
    return lines.back();
  };
  EXPECT_EQ(last("5"), "bucket 16x1x4x4: 2 of 7 samples are not reached in 5 steps");
  EXPECT_EQ(last("7"), "an epoch is 7 samples in 7 microbatches, 7.00 steps");
}

TEST(Epochs, TooManyRepeatsAreRefused) {
  const Workplace w(AttentionKind::kDense, std::vector<Shape>(17, {16, 1, 4, 4}));
  EXPECT_NE(error_of([&] { open(w, {"data.num_repeats=1000000"}); }).find("an epoch of more than 16777216 samples"), std::string::npos);
}

TEST(Epochs, MetricsOfAResumedRunAreOneLineAStep) {
  const Workplace w(AttentionKind::kDense, kSeven);
  train(w.run("out", {"train.max_train_steps=5", "output.save_every_n_steps=3"}));
  // As if the run had been killed before the checkpoint of step 5 was whole.
  std::filesystem::remove_all(w.folder / "out/checkpoints/step-00000005");
  train(w.run("out", {"train.max_train_steps=8", "output.save_every_n_steps=3"}));
  std::ifstream lines(w.folder / "out/metrics.jsonl");
  std::string line;
  int step = 0;
  while (std::getline(lines, line)) EXPECT_TRUE(line.starts_with(fmt::format("{{\"step\":{},", ++step))) << line;
  EXPECT_EQ(step, 8);
}

TEST(Epochs, BatchesHoldTheShotsOfTheirSamples) {
  const Workplace w(AttentionKind::kDsa, std::vector<Shape>(2, {16, 4, 4, 4}));
  const std::string path = w.folder / "cache";
  const LatentCache cache = LatentCache::open(path);
  std::vector<CachedClip> clips{cache.info(0), cache.info(1)};
  EXPECT_TRUE(open(w, {"data.batch_size=2"})->batch(1, 0).shots.empty());
  clips[1].latent_cuts = {1, 3};
  write_cache_index(path, cache_identity(w.config), clips);
  const auto data = open(w, {"data.batch_size=2", "train.max_train_steps=4"});
  for (int64_t step = 1; step <= 4; ++step) {
    const HostBatch b = data->batch(step, 0);
    ASSERT_EQ(b.shots.size(), 16u);
    EXPECT_EQ(b.view().shots, b.shots.data());
    const float second = cache.clip(1).text.elements() ? reinterpret_cast<const float*>(cache.clip(1).text.data)[0] : 0;
    for (size_t i = 0; i < 2; ++i) {
      const bool cut = b.text.f32()[static_cast<int64_t>(i) * (b.text.elements() / 2)] == second;
      const auto table = [&](size_t which) {
        const auto from = b.shots.begin() + static_cast<std::ptrdiff_t>(8 * which + 4 * i);
        return std::vector<int32_t>(from, from + 4);
      };
      EXPECT_EQ(table(0), cut ? (std::vector<int32_t>{0, 1, 1, 3}) : std::vector<int32_t>(4, 0));
      EXPECT_EQ(table(1), cut ? (std::vector<int32_t>{0, 2, 2, 3}) : std::vector<int32_t>(4, 3));
    }
  }
  const std::string cut = train(w.run("cut", {"data.batch_size=2", "train.max_train_steps=2"})).state_hash;
  clips[1].latent_cuts = {};
  write_cache_index(path, cache_identity(w.config), clips);
  EXPECT_NE(train(w.run("whole", {"data.batch_size=2", "train.max_train_steps=2"})).state_hash, cut) << "the model sees them";
}

}  // namespace
}  // namespace megaslide
