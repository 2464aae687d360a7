// What a run may choose about its schedule: where inputs of layers wait, and when the optimizer runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "io/shard.h"
#include "model/wan.h"
#include "plan/planner.h"
#include "train/checkpoint.h"
#include "train/step.h"
#include "train/training_data.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing::train;
using testing::Workplace;

TEST(Stash, SameStateAndPlannedPeakWhereverInputsWait) {
  const Workplace w;
  const std::string expected = train(w.run("whole", {"train.gradient_accumulation_steps=2"})).state_hash;
  int64_t most = 0;
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{{"stream.stash=device"},
                                                                                   {"stream.stash=host"},
                                                                                   {"stream.stash=recompute"},
                                                                                   {"stream.segment=3"},
                                                                                   {"stream.stash=host", "stream.segment=2"}})
    for (const char* link : {"shared", "emulated"}) {
      auto all = sets;
      all.insert(all.end(), {"train.gradient_accumulation_steps=2", fmt::format("stream.link.kind={}", link)});
      const auto run = w.run("out-" + sets.back() + link, all);
      const Plan plan = make_plan(plan_request(run, {}));
      const TrainSummary s = train(run);
      EXPECT_EQ(s.state_hash, expected) << sets.back();
      EXPECT_EQ(s.device_peak_bytes, plan.device.peak) << sets.back();
      EXPECT_EQ(plan.host.activations > 0, sets == std::vector<std::string>{"stream.stash=host"}) << "three layers: with segments of two nothing leaves";
      if (sets.back() == "stream.stash=device") most = std::max(most, plan.device.peak);
      EXPECT_LE(plan.device.peak, most);
    }
}

// Seeds, data and rates alike, so states differ by the clip factors alone.
TEST(Clip, WithoutAnyFactorAllModesGiveTheSameState) {
  const Workplace w;
  const std::string expected = train(w.run("exact", {"train.max_grad_norm=0"})).state_hash;
  EXPECT_EQ(train(w.run("none", {"train.clip=none"})).state_hash, expected);
  EXPECT_EQ(train(w.run("layer", {"train.clip=layer", "train.max_grad_norm=1e9"})).state_hash, expected);
  EXPECT_EQ(train(w.run("sync", {"train.clip=none", "stream.async=false", "stream.link.kind=emulated"}), 1).state_hash, expected);
  EXPECT_EQ(train(w.run("segments", {"train.clip=none", "stream.segment=2", "stream.link.kind=emulated"})).state_hash, expected);
  EXPECT_NE(train(w.run("clipped", {"train.clip=layer", "train.max_grad_norm=0.01"})).state_hash, expected);
}

TEST(Clip, ResumedEqualsUninterruptedByLayerToo) {
  const Workplace w;
  const std::string clip = "train.clip=layer", norm = "train.max_grad_norm=0.05";
  const std::string expected = train(w.run("whole", {clip, norm})).state_hash;
  train(w.run("parts", {clip, norm, "train.max_train_steps=2"}));
  EXPECT_EQ(train(w.run("parts", {clip, norm}), 1).state_hash, expected);
}

TEST(Clip, GradientsOfThreeLayersAreKept) {
  const Workplace w(AttentionKind::kDense);
  const Plan exact = make_plan(plan_request(w.run("exact"), {})), layer = make_plan(plan_request(w.run("layer", {"train.clip=layer"}), {}));
  int64_t largest = 0;
  const Network network = make_wan_network(w.config);
  for (const auto& l : network.layers) largest = std::max(largest, l->layout().elements);
  largest = std::max({largest, network.embedding->layout().elements, network.head->layout().elements});
  EXPECT_EQ(layer.host.gradients, 3 * ((2 * largest + 4095) / 4096 * 4096));
  EXPECT_LT(layer.host.gradients, exact.host.gradients);
  EXPECT_EQ(layer.device.peak, exact.device.peak);
}

// Measured by the first moments of the first step, which are (1 − β1)·clip·g.
TEST(Clip, EachModuleIsScaledByItsOwnNorm) {
  const Workplace w(AttentionKind::kDense);
  const auto data = open_training_data(w.run("out"), w.config, w.config);
  const Network network = make_wan_network(w.config);
  const auto step_once = [&](ClipMode clip, double max_norm, std::vector<double>& squared) {
    HostStoreOptions options{.training = true};
    options.gradient_slots = gradient_slots(clip);
    HostStore store(network, options);
    ThreadPool pool(1);
    load_state(store, ModelDirectory::open(w.folder / "model"), pool, false);
    const auto device = make_cpu_device({.threads = 1, .link = LinkKind::kEmulated});
    PipelineOptions pipeline;
    pipeline.shapes = data->shapes();
    TrainStep step(*device, network, store, pipeline, {.max_grad_norm = max_norm, .clip = clip}, 0);
    const HostBatch batch = data->batch(1, 0);
    const MicroBatch view = batch.view();
    step.begin({&view, 1}, 1e-3);
    const StepResult r = step.finish();
    EXPECT_EQ(r.clipped, max_norm < 1);
    step.drain();
    squared = step.squared_norms();
    std::vector<double> moments;
    for (int m = 0; m < store.modules(); ++m) {
      double sum = 0;
      for (int64_t i = 0; i < store.module(m).module->layout().elements; ++i) sum += std::pow(static_cast<double>(static_cast<const float*>(store.module(m).exp_avg)[i]) / 0.1, 2);
      moments.push_back(std::sqrt(sum));
    }
    return moments;
  };
  std::vector<double> squared, again;
  const auto plain = step_once(ClipMode::kNone, 1e9, squared);
  const double max_norm = 0.02;
  const auto clipped = step_once(ClipMode::kLayer, max_norm, again);
  ASSERT_EQ(squared, again);
  const double allowed = max_norm / std::sqrt(static_cast<double>(plain.size()));
  double sum = 0;
  for (size_t m = 0; m < plain.size(); ++m) {
    const double norm = std::sqrt(squared[m]), factor = std::min(1.0, allowed / (norm + 1e-6));
    EXPECT_NEAR(plain[m], norm, 1e-5 * norm) << m;
    EXPECT_NEAR(clipped[m], factor * norm, 1e-5 * norm) << m;
    sum += clipped[m] * clipped[m];
  }
  EXPECT_LE(std::sqrt(sum), max_norm * (1 + 1e-5));
}

TEST(Clip, ALossThatIsNotFiniteUpdatesNothing) {
  const Workplace w(AttentionKind::kDense);
  const auto data = open_training_data(w.run("out"), w.config, w.config);
  const Network network = make_wan_network(w.config);
  for (const ClipMode clip : {ClipMode::kNone, ClipMode::kLayer}) {
    HostStoreOptions options{.training = true};
    options.gradient_slots = gradient_slots(clip);
    HostStore store(network, options);
    ThreadPool pool(1);
    load_state(store, ModelDirectory::open(w.folder / "model"), pool, false);
    const auto device = make_cpu_device({.threads = 1});
    PipelineOptions pipeline;
    pipeline.shapes = data->shapes();
    TrainStep step(*device, network, store, pipeline, {.clip = clip}, 7);
    const std::string before = state_hash(store, {}, pool);
    HostBatch batch = data->batch(1, 0);
    batch.target.f32()[3] = std::numeric_limits<float>::quiet_NaN();
    const MicroBatch view = batch.view();
    step.begin({&view, 1}, 1e-3);
    EXPECT_TRUE(step.finish().skipped);
    step.drain();
    EXPECT_EQ(step.updates(), 7);
    EXPECT_EQ(state_hash(store, {}, pool), before);
  }
}

}  // namespace
}  // namespace megaslide
