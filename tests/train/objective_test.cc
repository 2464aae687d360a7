// What the samples of a run are: noise levels, the clean first frame, loss weights, captions; and that they depend on nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "data/cache.h"
#include "io/model_directory.h"
#include "model/wan.h"
#include "train/objective.h"
#include "train/step.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing::error_of;
using testing::Workplace;

// A sample by the first number of its caption, which tells the clips apart.
float caption_of(const HostBatch& b, int64_t i) { return b.text.f32()[i * (b.text.elements() / b.shape.batch)]; }

// One row a sample: caption, timestep, latent.
std::map<float, std::vector<float>> samples_of(const TrainingData& data, int64_t steps) {
  std::map<float, std::vector<float>> all;
  for (int64_t step = 1; step <= steps; ++step)
    for (int a = 0; a < data.microbatches(step); ++a) {
      const HostBatch b = data.batch(step, a);
      const int64_t n = b.latent.elements() / b.shape.batch;
      for (int64_t i = 0; i < b.shape.batch; ++i) {
        std::vector<float> x(b.latent.f32() + i * n, b.latent.f32() + (i + 1) * n);
        x.push_back(b.timesteps.f32()[i]);
        EXPECT_TRUE(all.emplace(caption_of(b, i), std::move(x)).second) << "a clip twice";
      }
    }
  return all;
}

std::unique_ptr<TrainingData> open(const Workplace& w, const std::vector<std::string>& sets) {
  auto all = sets;
  all.insert(all.begin(), {"data.batch_size=1", "data.caption_dropout_rate=0"});
  return open_training_data(w.run("out", all), w.config, w.config);
}

TEST(Objective, ASampleDependsOnNeitherBatchNorAccumulation) {
  const Workplace w;
  for (const std::string buckets : {"0", "4"}) {
    const std::string strata = "train.num_timestep_buckets=" + buckets;
    const auto one = samples_of(*open(w, {strata}), 5);
    EXPECT_EQ(one.size(), 5u);
    EXPECT_EQ(samples_of(*open(w, {strata, "data.batch_size=3"}), 2), one);
    EXPECT_EQ(samples_of(*open(w, {strata, "train.gradient_accumulation_steps=5"}), 1), one);
    EXPECT_EQ(samples_of(*open(w, {strata, "data.batch_size=1", "data.batch_tokens=100"}), 3), one);
    EXPECT_NE(samples_of(*open(w, {strata, "train.seed=5"}), 5), one);
  }
}

TEST(Objective, TheOrderOfABucketDoesNotDependOnTheBatchSize) {
  const Workplace w(AttentionKind::kDense, std::vector<Shape>(7, {16, 1, 4, 4}));
  std::vector<float> ones, threes;
  const auto one = open(w, {}), three = open(w, {"data.batch_size=3"});
  for (int64_t step = 1; step <= 14; ++step) ones.push_back(caption_of(one->batch(step, 0), 0));
  for (int64_t step = 1; step <= 6; ++step) {
    const HostBatch b = three->batch(step, 0);
    EXPECT_EQ(b.shape.batch, step % 3 ? 3 : 1);
    for (int64_t i = 0; i < b.shape.batch; ++i) threes.push_back(caption_of(b, i));
  }
  EXPECT_EQ(ones, threes);
  EXPECT_NE(std::vector<float>(ones.begin(), ones.begin() + 7), std::vector<float>(ones.begin() + 7, ones.end())) << "epochs have orders of their own";
}

TEST(Objective, BucketsOfTimestepsAreCoveredEvenly) {
  const Workplace w(AttentionKind::kDense, std::vector<Shape>(12, {16, 1, 4, 4}));
  for (const int64_t buckets : {4, 12, 36}) {
    const auto data = open(w, {fmt::format("train.num_timestep_buckets={}", buckets), "train.timestep_sampling=uniform", "train.flow_shift=1"});
    std::map<int64_t, int> all;
    for (int64_t epoch = 0; epoch < 20; ++epoch) {
      std::map<int64_t, int> count;
      for (int64_t i = 1; i <= 12; ++i) ++count[static_cast<int64_t>(data->batch(12 * epoch + i, 0).timesteps.f32()[0] / 1000 * static_cast<float>(buckets))];
      for (const auto& [bucket, n] : count) {
        EXPECT_EQ(n, std::max<int64_t>(1, 12 / buckets)) << bucket;
        all[bucket] += n;
      }
    }
    EXPECT_EQ(static_cast<int64_t>(all.size()), buckets) << "none is left out of every epoch";
  }
}

TEST(Objective, TimestepsStayInTheSlice) {
  const Workplace w(AttentionKind::kDense, {{16, 1, 4, 4}});
  const auto data = open(w, {"train.min_timestep=300", "train.max_timestep=400.5"});
  for (int64_t step = 1; step <= 300; ++step) {
    const float t = data->batch(step, 0).timesteps.f32()[0];
    ASSERT_GE(t, 300);
    ASSERT_LT(t, 400.5);
  }
}

TEST(Objective, ExpertsTakeTheirSideOfTheBoundary) {
  Workplace w(AttentionKind::kDense, {{16, 1, 4, 4}});
  w.config.boundary = 0.875;
  const auto high = open(w, {"model.expert=high"}), low = open(w, {"model.expert=low", "train.min_timestep=100"});
  float lowest = 1000, highest = 0;
  for (int64_t step = 1; step <= 500; ++step) {
    lowest = std::min(lowest, high->batch(step, 0).timesteps.f32()[0]);
    const float t = low->batch(step, 0).timesteps.f32()[0];
    ASSERT_GE(t, 100);
    highest = std::max(highest, t);
  }
  EXPECT_GE(lowest, 875);
  EXPECT_LT(lowest, 890);
  EXPECT_LT(highest, 875);
  EXPECT_GT(highest, 860);
  EXPECT_NE(error_of([&] { open(w, {}); }).find("model.expert says which is trained"), std::string::npos);
  EXPECT_NE(error_of([&] { open(w, {"model.expert=high", "train.max_timestep=500"}); }).find("no timestep is left"), std::string::npos);
  w.config.boundary = 0;
  EXPECT_NE(error_of([&] { open(w, {"model.expert=low"}); }).find("has one network"), std::string::npos);
}

TEST(Objective, TheFirstFrameIsCleanAtTimeZeroAndNotLearnt) {
  const Workplace w(AttentionKind::kDense, {{16, 3, 4, 4}, {16, 1, 4, 4}});
  const auto noised = open(w, {}), clean = open(w, {"train.first_frame=clean", "train.weighting_scheme=cosmap"});
  const auto shapes = clean->shapes();
  const LatentCache cache = LatentCache::open(w.folder / "cache");
  int videos = 0;
  for (int64_t step = 1; step <= 2; ++step) {
    const HostBatch a = noised->batch(step, 0), b = clean->batch(step, 0);
    EXPECT_NE(std::find(shapes.begin(), shapes.end(), b.shape), shapes.end());
    const double sigma = a.timesteps.f32()[0] / 1000.0, weight = 2 / (3.141592653589793 * (1 - 2 * sigma + 2 * sigma * sigma));
    EXPECT_EQ(std::memcmp(a.target.data(), b.target.data(), static_cast<size_t>(a.target.bytes())), 0);
    EXPECT_TRUE(a.loss_weights.empty());
    if (b.shape.frames == 1) {  // a picture is nothing but its first frame
      EXPECT_EQ(b.shape.times, 1);
      EXPECT_EQ(std::memcmp(a.latent.data(), b.latent.data(), static_cast<size_t>(a.latent.bytes())), 0);
      EXPECT_NEAR(b.loss_weights.f32()[0], weight, 1e-5 * weight);
      continue;
    }
    ++videos;
    EXPECT_EQ(b.shape.times, 3);
    const float t = a.timesteps.f32()[0];
    EXPECT_EQ(std::vector<float>(b.timesteps.f32(), b.timesteps.f32() + 3), (std::vector<float>{0, t, t}));
    EXPECT_EQ(b.loss_weights.f32()[0], 0);
    EXPECT_NEAR(b.loss_weights.f32()[1], 1.5 * weight, 1e-5 * weight) << "the mean stays one over the frames that are learnt";
    const LatentCache::Clip clip = cache.clip(0);
    const auto* x0 = reinterpret_cast<const float*>(clip.latent.data);
    for (int64_t i = 0; i < b.latent.elements(); ++i) ASSERT_EQ(b.latent.f32()[i], i / 16 % 3 == 0 ? x0[i] : a.latent.f32()[i]) << i;
  }
  EXPECT_EQ(videos, 1);
}

// Through the engine: what the first frame should be has no influence on loss and gradients.
TEST(Objective, TheFirstFramesTargetHasNoGradient) {
  const Workplace w(AttentionKind::kDense, {{16, 3, 4, 4}});
  const auto run = w.run("out", {"train.first_frame=clean", "data.batch_size=1"});
  const auto data = open_training_data(run, w.config, w.config);
  const Network network = make_wan_network(w.config);
  const auto step = [&](float first_target) {
    HostStore store(network, {.training = true});
    ThreadPool pool(1);
    load_state(store, ModelDirectory::open(w.folder / "model"), pool, false);
    const auto device = make_cpu_device({});
    PipelineOptions options;
    options.shapes = data->shapes();
    TrainStep train(*device, network, store, options, {}, 0);
    std::vector<HostBatch> batches = batches_of(*data, 1);
    for (int64_t i = 0; i < batches[0].target.elements(); ++i)
      if (i / 16 % 3 == 0) batches[0].target.f32()[i] = first_target;
    const MicroBatch view = batches[0].view();
    train.begin({&view, 1}, 1e-3);
    return train.finish();
  };
  const StepResult a = step(0), b = step(1e30f);
  EXPECT_TRUE(std::isfinite(a.loss));
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
}

TEST(Objective, EveryLossAndWeightTrains) {
  const Workplace w(AttentionKind::kDense, {{16, 3, 8, 8}, {16, 1, 8, 8}});
  for (const char* set : {"train.loss_type=huber", "train.loss_type=smooth_l1", "train.weighting_scheme=bell", "train.weighting_scheme=logit_normal",
                          "train.weighting_scheme=mode", "train.weighting_scheme=sigma_sqrt", "train.first_frame=clean", "train.timestep_sampling=mode"}) {
    const TrainSummary s = testing::train(w.run(std::string("out-") + set, {set, "train.max_train_steps=4"}));
    EXPECT_TRUE(std::isfinite(s.last_loss) && s.last_loss > 0) << set;
    EXPECT_EQ(s.skipped, 0) << set;
  }
}

TEST(Captions, DroppedOnesAreTheEmptyPrompts) {
  const Workplace w(AttentionKind::kDense, {{16, 1, 4, 4}});
  const auto text_of = [&] {
    const HostBatch b = open(w, {"data.caption_dropout_rate=1"})->batch(1, 0);
    return std::vector<float>(b.text.f32(), b.text.f32() + b.text.elements());
  };
  EXPECT_EQ(text_of(), std::vector<float>(8 * 32, 0.0f)) << "a cache that does not say";
  HostTensor rows(DType::kF32, {1, 32});
  std::fill_n(rows.f32(), 32, 0.25f);
  const std::string path = w.folder / "cache/empty_text.safetensors";
  write_safetensors(path, {{"text", rows.view()}});
  auto expected = std::vector<float>(8 * 32, 0.0f);
  std::fill_n(expected.begin(), 32, 0.25f);
  EXPECT_EQ(text_of(), expected);
  HostTensor wide(DType::kF32, {1, 33});
  write_safetensors(path, {{"text", wide.view()}});
  EXPECT_NE(error_of(text_of).find("empty_text.safetensors: text is [1, 33], the model reads up to 8 rows of 32"), std::string::npos);
  rows.f32()[3] = NAN;
  write_safetensors(path, {{"text", rows.view()}});
  EXPECT_NE(error_of(text_of).find("empty_text.safetensors: damaged"), std::string::npos);
}

}  // namespace
}  // namespace megaslide
