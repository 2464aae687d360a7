#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/shard.h"
#include "model/wan.h"
#include "plan/planner.h"
#include "train/checkpoint.h"
#include "train/learning_rate.h"
#include "train/metrics.h"
#include "train/sample_in_training.h"
#include "train/step.h"
#include "train/training_data.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

using testing::error_of;
using testing::train;
using testing::Workplace;

TEST(Trainer, ResumedEqualsUninterrupted) {
  const Workplace w;
  const std::string expected = train(w.run("whole")).state_hash;
  train(w.run("parts", {"train.max_train_steps=2"}));
  const TrainSummary s = train(w.run("parts"), 1);
  EXPECT_EQ(s.resumed_from, 2);
  EXPECT_EQ(s.state_hash, expected);
  EXPECT_EQ(hash_state(ModelDirectory::open(s.checkpoint)), expected) << "shard-weights --hash sees the same state";
  const TrainSummary again = train(w.run("parts"));
  EXPECT_EQ(again.state_hash, expected) << "a finished run has nothing left to do";
  EXPECT_LT(again.last_step, again.first_step);
}

TEST(Trainer, LossFallsOnEveryKindOfAttention) {
  for (const AttentionKind kind : {AttentionKind::kDense, AttentionKind::kWindow, AttentionKind::kDsa}) {
    const Workplace w(kind);
    const TrainSummary s = train(w.run("out", {"train.max_train_steps=60", "train.timestep_sampling=uniform"}));
    EXPECT_LT(s.last_loss, 0.9 * s.first_loss) << attention_kind_name(kind);
  }
}

// Relative L2 distance of Adam's first moments: after one step without clipping they are a tenth of the gradient.
double gradient_distance(const std::string& checkpoint, const std::string& other) {
  double error = 0, norm = 0;
  const ModelDirectory a = ModelDirectory::open(checkpoint), b = ModelDirectory::open(other);
  for (int64_t part = -1; part <= a.layers(); ++part) {
    const SafetensorsFile x = a.part(part), y = b.part(part);
    for (const auto& t : x.tensors()) {
      if (!t.name.ends_with(".exp_avg")) continue;
      const HostTensor p = HostTensor::f32_from(x.view(t)), q = HostTensor::f32_from(y.view(t.name));
      for (int64_t i = 0; i < p.elements(); ++i) {
        const double d = double{p.f32()[i]} - q.f32()[i];
        error += d * d;
        norm += double{p.f32()[i]} * p.f32()[i];
      }
    }
  }
  return std::sqrt(error / norm);
}

TEST(Trainer, TheSamplesOfAStepCountNotItsMicrobatches) {
  // Three clips: as one batch, as three microbatches, as one of two and one of one.
  const Workplace w(AttentionKind::kDense, {{16, 3, 8, 8}, {16, 3, 8, 8}, {16, 3, 8, 8}});
  const auto run = [&](const std::string& name, const std::string& batch, const std::string& accumulation, const std::string& scheme) {
    return train(w.run(name, {"model.compute_dtype=fp32", "optimizer.gradients=fp32", "train.max_train_steps=1", "train.clip=none",
                              "data.batch_size=" + batch, "train.gradient_accumulation_steps=" + accumulation, "train.weighting_scheme=" + scheme}));
  };
  for (const std::string scheme : {"none", "cosmap"}) {
    const TrainSummary whole = run("whole" + scheme, "3", "1", scheme), parts = run("parts" + scheme, "1", "3", scheme), uneven = run("uneven" + scheme, "2", "2", scheme);
    for (const TrainSummary& s : {parts, uneven}) {
      // Sums of fp32 in another order: the noise of a tiny network's gradient in fp32 is 4e-7 (golden/wan README); ten times.
      EXPECT_LT(gradient_distance(whole.checkpoint, s.checkpoint), 4e-6);
      EXPECT_NEAR(s.last_loss, whole.last_loss, 1e-6 * whole.last_loss);
    }
  }
}

TEST(Trainer, ConfigurationChangesAreRefusedWithADiff) {
  const Workplace w;
  train(w.run("out", {"train.max_train_steps=2"}));
  const auto changed = w.run("out", {"optimizer.weight_decay=0.5"});
  const std::string text = error_of([&] { train(changed); });
  EXPECT_NE(text.find("optimizer.weight_decay: was 0.01, is 0.5"), std::string::npos) << text;
  TrainerOptions o;
  o.allowed_changes = {"optimizer.weight_decay"};
  EXPECT_EQ(run_training(changed, o).last_step, 6);
}

TEST(Trainer, FailuresOfTheOutputAreClear) {
  const Workplace w;
  train(w.run("out", {"train.max_train_steps=1"}));
  EXPECT_NE(error_of([&] { train(w.run("out", {"output.resume_from_checkpoint=none"})); }).find("holds checkpoints"), std::string::npos);
  write_file_atomic(w.folder / "file", "x");
  EXPECT_NE(error_of([&] { train(w.run("file/out")); }).find("remedy: choose another output.output_dir"), std::string::npos);
}

// A replay of `steps` equal batches whose clean latent has this value.
std::string write_replay(const std::string& path, int steps, float value) {
  std::vector<HostTensor> tensors;
  std::vector<std::pair<std::string, TensorView>> named;
  tensors.reserve(size_t{4} * static_cast<size_t>(steps));
  for (int step = 1; step <= steps; ++step)
    for (const auto& [what, shape, fill] : std::vector<std::tuple<const char*, Shape, float>>{
             {"x0", {1, 16, 3, 8, 8}, value}, {"noise", {1, 16, 3, 8, 8}, 0.5f}, {"sigma", {1}, 0.5f}, {"text", {1, 4, 32}, 0.5f}}) {
      tensors.emplace_back(DType::kF32, shape);
      std::fill_n(tensors.back().f32(), tensors.back().elements(), fill);
      named.emplace_back(fmt::format("step{}.micro0.{}", step, what), tensors.back().view());
    }
  write_safetensors(path, named);
  return path;
}

TEST(Trainer, NonFiniteStepsLeaveTheStateAlone) {
  const Workplace w(AttentionKind::kDense);
  auto run = w.run("out", {"train.stop_after_skipped=3", "output.save_every_n_steps=1"});
  run.data.cache.clear();
  run.data.replay = write_replay(w.folder / "replay.safetensors", 6, 3e38f);
  const std::string text = error_of([&] { train(run); });
  EXPECT_NE(text.find("3 steps in a row were not finite"), std::string::npos) << text;
  const auto checkpoints = CheckpointFolder(w.folder / "out").all();
  ASSERT_EQ(checkpoints.size(), 2u);
  EXPECT_EQ(hash_state(ModelDirectory::open(checkpoints[0])), hash_state(ModelDirectory::open(checkpoints[1])));
}

TEST(Trainer, WeightsThatAreNotFiniteAreRefusedByName) {
  const Workplace w(AttentionKind::kDense);
  const std::string path = w.folder / "model/layer-001.safetensors";
  const auto file = SafetensorsFile::open(path);
  const auto& tensor = *file.find("blocks.1.ffn.net.0.proj.weight");
  {
    std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(file.header_bytes() + tensor.begin + 37 * 4));
    for (const float bad : {NAN, -INFINITY}) bytes.write(reinterpret_cast<const char*>(&bad), 4);
  }
  const std::string text = error_of([&] { train(w.run("out", {"output.save_every_n_steps=1"})); });
  EXPECT_NE(text.find("blocks.1.ffn.net.0.proj.weight: 1 NaN, 1 infinite, the first at index 37"), std::string::npos) << text;
  EXPECT_TRUE(CheckpointFolder(w.folder / "out").all().empty());
}

TEST(Trainer, StopFinishesTheStepAndCheckpoints) {
  const Workplace w;
  std::atomic<int> flag{0};
  TrainerOptions o;
  o.stop = StopToken(&flag);
  const TrainSummary s = run_training(w.run("out"), o, [&](const StepMetrics& m) { flag = m.step == 2; });
  EXPECT_TRUE(s.stopped);
  EXPECT_EQ(s.last_step, 2);
  EXPECT_NE(s.checkpoint.find("step-00000002"), std::string::npos);
  EXPECT_EQ(train(w.run("out")).state_hash, train(w.run("whole")).state_hash);
}

TEST(Trainer, StopWhileSamplingCheckpointsToo) {
  const Workplace w;
  std::atomic<int> flag{0};
  TrainerOptions o;
  o.stop = StopToken(&flag);
  const auto run = w.run("out", {"sample.prompts=[a tree]", "sample.every_n_steps=2", "sample.steps=1000"});
  std::atomic<bool> ended{false};
  std::thread signal([&] {
    while (!ended && !std::filesystem::exists(w.folder / "out/samples/step-00000002")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    flag = 1;
  });
  TrainSummary s;
  EXPECT_NO_THROW(s = run_training(run, o));
  ended = true;
  signal.join();
  EXPECT_TRUE(s.stopped);
  EXPECT_EQ(s.last_step, 2);
  EXPECT_NE(s.checkpoint.find("step-00000002"), std::string::npos);
}

TEST(Trainer, FailedSamplesDoNotEndTheTrainingButAModelWithoutCodecIsRefused) {
  Workplace w;
  write_file_atomic(w.folder / "not-a-folder", "x");
  const std::vector<std::string> prompts{"sample.prompts=[a tree]", "sample.every_n_steps=2", "sample.steps=2", "train.max_train_steps=3"};
  auto run = w.run("out", prompts);
  std::filesystem::create_directories(w.folder / "out");
  std::filesystem::create_directories(w.folder / "out/samples");
  write_file_atomic(w.folder / "out/samples/step-00000002", "in the way");
  EXPECT_EQ(train(run).last_step, 3);
  EXPECT_TRUE(std::filesystem::is_directory(w.folder / "out/samples/step-00000003"));
  w.config.codec = CodecKind::kNone;
  EXPECT_NE(error_of([&] { encode_sample_prompts(run, w.config, 1); }).find("without a video codec"), std::string::npos);
}

TEST(Trainer, TheLastCheckpointMustNotFail) {
  const Workplace w;
  const auto run = w.run("out", {"output.save_every_n_steps=2", "output.on_checkpoint_error=continue"});
  std::filesystem::create_directories(w.folder / "out/checkpoints");
  write_file_atomic(w.folder / "out/checkpoints/step-00000002", "in the way");
  EXPECT_NE(train(run).checkpoint.find("step-00000006"), std::string::npos) << "one on the way may fail";
  const auto again = w.run("again", {"output.save_every_n_steps=2", "output.on_checkpoint_error=continue"});
  std::filesystem::create_directories(w.folder / "again/checkpoints");
  write_file_atomic(w.folder / "again/checkpoints/step-00000006", "in the way");
  EXPECT_NE(error_of([&] { train(again); }).find("step-00000006"), std::string::npos);
  EXPECT_EQ(CheckpointFolder(w.folder / "again").all().size(), 2u) << "those before stay";
}

TEST(Trainer, DataThatFailsUnderAStepIsReportedAfterIt) {
  const Workplace w;
  // Step 3's noise is too small: found while step 2 still reads its own inputs on a slow link.
  std::vector<HostTensor> tensors;
  std::vector<std::pair<std::string, TensorView>> named;
  tensors.reserve(16);
  const auto add = [&](int step, const char* what, Shape shape) {
    tensors.emplace_back(DType::kF32, std::move(shape));
    std::fill_n(tensors.back().f32(), tensors.back().elements(), 0.5f);
    named.emplace_back(fmt::format("step{}.micro0.{}", step, what), tensors.back().view());
  };
  for (int step = 1; step <= 3; ++step) {
    add(step, "x0", {1, 16, 3, 8, 8});
    add(step, "noise", {1, 16, step == 3 ? 1 : 3, 8, 8});
    add(step, "sigma", {1});
    add(step, "text", {1, 4, 32});
  }
  write_safetensors(w.folder / "replay.safetensors", named);
  auto run = w.run("out", {"train.max_train_steps=3", "output.save_every_n_steps=1", "stream.link.kind=emulated", "stream.link.bandwidth=2MB/s"});
  run.data.cache.clear();
  run.data.replay = w.folder / "replay.safetensors";
  EXPECT_NE(error_of([&] { train(run); }).find("step3.micro0.noise"), std::string::npos);
  EXPECT_EQ(ModelDirectory::open(*CheckpointFolder(w.folder / "out").latest()).path().substr((w.folder / "out/checkpoints/").size()), "step-00000001");
}

TEST(Trainer, ExtrasAreNoWorkOfTheNextStep) {
  const Workplace w;
  const auto work = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> sets{"data.validation_fraction=0.3", "data.batch_size=1", "train.max_train_steps=3"};
    sets.insert(sets.end(), more.begin(), more.end());
    TrainerOptions o;
    o.peak_flops = 1e12;
    std::vector<double> flops;
    run_training(w.run(name, sets), o, [&](const StepMetrics& m) { flops.push_back(m.hfu * m.seconds); });
    return flops;
  };
  const auto plain = work("plain", {"train.validate_every_n_steps=100"});
  const auto extras = work("extras", {"train.validate_every_n_steps=1", "sample.prompts=[a tree]", "sample.every_n_steps=1", "sample.steps=2"});
  ASSERT_EQ(plain.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(extras[i], plain[i], 1e-9 * plain[i]) << i;
}

TEST(Trainer, AScheduleThatEndsAtTheLastStepHoldsTheRunToIt) {
  const Workplace w;
  train(w.run("out", {"train.max_train_steps=2", "optimizer.lr_scheduler=cosine"}));
  const auto longer = w.run("out", {"optimizer.lr_scheduler=cosine"});
  const std::string text = error_of([&] { train(longer); });
  EXPECT_NE(text.find("train.max_train_steps: was 2, is 6"), std::string::npos) << text;
  TrainerOptions o;
  o.allowed_changes = {"train.max_train_steps"};
  EXPECT_EQ(run_training(longer, o).last_step, 6);
}

TEST(Trainer, AnAllowedSeedIsTheCheckpointsFromThenOn) {
  const Workplace w;
  train(w.run("out", {"train.max_train_steps=1"}));
  TrainerOptions o;
  o.allowed_changes = {"train.seed"};
  const TrainSummary s = run_training(w.run("out", {"train.max_train_steps=2", "train.seed=9"}), o);
  EXPECT_EQ(parse_run_state(ModelDirectory::open(s.checkpoint).manifest().state, "").seed, 9);
}

TEST(TrainStep, MayBeAbandonedInTheMiddle) {
  const Workplace w;
  const auto data = open_training_data(w.run("out"), w.config, w.config);
  const Network network = make_wan_network(w.config);
  HostStore store(network, {.training = true});
  const auto device = make_cpu_device({.threads = 2, .link = LinkKind::kEmulated, .jitter = 1e-3});
  PipelineOptions options;
  options.shapes = data->shapes();
  const HostBatch batch = data->batch(1, 0);
  auto step = std::make_unique<TrainStep>(*device, network, store, options, OptimizerOptions{}, 0);
  const MicroBatch view = batch.view();
  step->begin({&view, 1}, 1e-3);
  step.reset();  // the norms of its gradients are still due on the host's stream; the sanitizers look on
  device->synchronize();
}

TEST(Trainer, ValidationUsesHeldOutClipsOnly) {
  const Workplace w;
  const auto run = w.run("out", {"data.validation_fraction=0.3", "train.validate_every_n_steps=3"});
  train(run);
  std::ifstream lines(w.folder / "out/metrics.jsonl");
  std::string line;
  int step = 0;
  while (std::getline(lines, line)) EXPECT_EQ(line.find("validation_loss") != std::string::npos, ++step % 3 == 0) << line;
  EXPECT_EQ(step, 6);
  EXPECT_TRUE(std::filesystem::exists(w.folder / "out/loss.svg"));
}

TEST(TrainingData, EveryClipOnceAnEpochAndPureInTheStep) {
  const Workplace w;
  const auto run = w.run("out", {"data.caption_dropout_rate=0"});
  const auto data = open_training_data(run, w.config, w.config);
  // Three clips of one shape and two of another in batches of two: 2 + 1 batches an epoch.
  std::multiset<float> captions;
  int64_t samples = 0;
  for (int64_t step = 1; step <= 3; ++step) {
    const HostBatch b = data->batch(step, 0);
    samples += b.shape.batch;
    for (int64_t i = 0; i < b.shape.batch; ++i) captions.insert(b.text.f32()[i * b.shape.context_rows * w.config.text_dim]);
    const HostBatch twin = open_training_data(run, w.config, w.config)->batch(step, 0);
    EXPECT_EQ(std::memcmp(b.latent.data(), twin.latent.data(), static_cast<size_t>(b.latent.bytes())), 0);
    bool known = false;
    for (const auto& s : data->shapes()) known = known || s == b.shape;
    EXPECT_TRUE(known);
  }
  EXPECT_EQ(samples, 5);
  EXPECT_EQ(std::set<float>(captions.begin(), captions.end()).size(), 5u) << "no clip twice, none left out";
}

TEST(TrainingData, CaptionDropoutDropsItsShare) {
  const Workplace w(AttentionKind::kDense, {{16, 1, 4, 4}});
  const auto data = open_training_data(w.run("out", {"data.caption_dropout_rate=0.25", "data.batch_size=1"}), w.config, w.config);
  int dropped = 0;
  for (int64_t step = 1; step <= 400; ++step) dropped += data->batch(step, 0).text.f32()[0] == 0;
  // Binomial(400, 1/4): mean 100, deviation 8.7; five deviations either way.
  EXPECT_GT(dropped, 56);
  EXPECT_LT(dropped, 144);
}

TEST(Checkpoints, RotationLatestAndLeftovers) {
  const Workplace w;
  train(w.run("out", {"output.save_every_n_steps=1", "output.checkpoints_total_limit=3"}));
  std::filesystem::create_directories(w.folder / "out/checkpoints/step-00000009.tmp");
  const CheckpointFolder folder(w.folder / "out");
  EXPECT_FALSE(std::filesystem::exists(w.folder / "out/checkpoints/step-00000009.tmp"));
  ASSERT_EQ(folder.all().size(), 3u);
  EXPECT_EQ(std::filesystem::canonical(w.folder / "out/latest"), std::filesystem::canonical(*folder.latest()));
  EXPECT_NE(folder.latest()->find("step-00000006"), std::string::npos);
}

TEST(Checkpoints, ResumingAnOlderOneLeavesTheNewerBehind) {
  const Workplace w;
  train(w.run("out", {"output.save_every_n_steps=1", "output.checkpoints_total_limit=6"}));
  const CheckpointFolder folder(w.folder / "out");
  const auto all = folder.all();
  ASSERT_EQ(all.size(), 6u);
  const TrainSummary s = train(w.run("out", {"train.max_train_steps=3", "output.save_every_n_steps=1", "output.checkpoints_total_limit=2",
                                             "output.resume_from_checkpoint=" + all[1]}));
  EXPECT_EQ(s.checkpoint, all[2]);
  EXPECT_EQ(folder.latest(), all[2]) << "the last one written, not the highest step";
  EXPECT_EQ(folder.all(), std::vector<std::string>(all.begin() + 1, all.end())) << "the newest two stay, and those of later steps";
  EXPECT_EQ(train(w.run("out", {"output.save_every_n_steps=1"})).resumed_from, 3);
  EXPECT_EQ(folder.all(), std::vector<std::string>(all.begin() + 4, all.end()));
  std::filesystem::remove_all(all[5]);
  EXPECT_EQ(folder.latest(), all[4]) << "a link that leads nowhere";
}

TEST(Metrics, ALineWithoutItsEndIsMended) {
  const TemporaryFolder folder;
  StepMetrics m;
  m.step = 1;
  std::string text = to_json_line(m);
  text.pop_back();
  write_file_atomic(folder / "metrics.jsonl", text);
  MetricsWriter writer(folder / "", 1);
  m.step = 2;
  writer.write(m);
  std::ifstream lines(folder / "metrics.jsonl");
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) EXPECT_EQ(line.find("\"step\"", 2), std::string::npos) << line;
  EXPECT_EQ(n, 2);
}

TEST(Checkpoints, OneFlippedBitIsFound) {
  const Workplace w;
  const TrainSummary s = train(w.run("out", {"train.max_train_steps=2"}));
  const std::string path = s.checkpoint + "/layer-001.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-5, std::ios::end);
  const auto at = file.tellg();
  const char flipped = static_cast<char>(file.get() ^ 4);
  file.seekp(at);
  file.put(flipped);
  file.close();
  const std::string text = error_of([&] { train(w.run("out")); });
  EXPECT_NE(text.find("damaged"), std::string::npos) << text;
  EXPECT_NE(text.find("layer-001.safetensors"), std::string::npos) << text;
}

TEST(Plan, DevicePeakEqualsTheRunsToTheByte) {
  for (const AttentionKind kind : {AttentionKind::kDense, AttentionKind::kDsa}) {
    const Workplace w(kind);
    for (const char* async : {"true", "false"})
      for (const char* accumulation : {"1", "3"})
        for (const char* link : {"shared", "emulated"}) {
          const auto run = w.run(fmt::format("out-{}-{}-{}", async, accumulation, link),
                                 {"train.max_train_steps=2", fmt::format("stream.async={}", async), fmt::format("stream.link.kind={}", link),
                                  fmt::format("train.gradient_accumulation_steps={}", accumulation)});
          MachineConfig machine;
          const Plan plan = make_plan(plan_request(run, machine));
          const TrainSummary s = train(run);
          EXPECT_EQ(plan.device.peak, s.device_peak_bytes) << attention_kind_name(kind) << async << accumulation << link;
          EXPECT_EQ(plan.device.weights + plan.device.activations + plan.device.gradients + plan.device.workspace + plan.device.other, plan.device.peak);
          int64_t stored = 0;
          const ModelDirectory directory = ModelDirectory::open(s.checkpoint);
          for (const auto& f : directory.manifest().files) stored += f.bytes;
          EXPECT_NEAR(static_cast<double>(plan.disk.checkpoint), static_cast<double>(stored), 64 * 1024) << "headers apart";
        }
  }
}

TEST(Plan, SamplesCostMemoryButAreNoStep) {
  const Workplace w;
  const std::vector<std::string> sets{"train.max_train_steps=2", "train.gradient_accumulation_steps=2"};
  auto with_prompts = sets;
  for (const char* set : {"sample.prompts=[a tree]", "sample.size=64x64", "sample.steps=1"}) with_prompts.push_back(set);
  const Plan without = make_plan(plan_request(w.run("without", sets), {}));
  const auto run = w.run("with", with_prompts);
  const Plan with = make_plan(plan_request(run, {}));
  EXPECT_EQ(with.tokens, without.tokens);
  EXPECT_GT(with.device.peak, without.device.peak);
  EXPECT_EQ(with.device.peak, train(run).device_peak_bytes);
}

TEST(Plan, AShortRunNeedsNoRoomForManyCheckpoints) {
  const Workplace w;
  MachineConfig machine;
  const int64_t one = make_plan(plan_request(w.run("out"), machine)).disk.checkpoint;
  machine.disk_bytes = one * 3 / 2;
  EXPECT_TRUE(make_plan(plan_request(w.run("out"), machine)).fits()) << "one checkpoint, at the end";
  EXPECT_FALSE(make_plan(plan_request(w.run("out", {"output.save_every_n_steps=3"}), machine)).fits()) << "two";
}

TEST(Plan, RemediesOfATooSmallBudgetFit) {
  const Workplace w(AttentionKind::kDense, {{16, 3, 16, 16}, {16, 3, 16, 16}});
  auto run = w.run("out", {"train.gradient_accumulation_steps=3"});
  MachineConfig machine;
  machine.device_memory = int64_t{1} << 34;
  const int64_t whole = make_plan(plan_request(run, machine)).device.peak;
  run.stream.device_budget = whole * 2 / 3;
  const Plan plan = make_plan(plan_request(run, machine));
  ASSERT_FALSE(plan.fits());
  ASSERT_GE(plan.remedies.size(), 2u);
  int applied = 0;
  for (const auto& remedy : plan.remedies) {
    if (!remedy.starts_with("--set ")) continue;
    std::vector<std::string> sets{"train.gradient_accumulation_steps=3", fmt::format("stream.device_budget={}", run.stream.device_budget)};
    for (size_t at = 0; at != std::string::npos; at = remedy.find("--set ", at + 1)) {
      const size_t begin = at + 6;
      sets.push_back(remedy.substr(begin, remedy.find(" --set", begin) - begin));
    }
    EXPECT_TRUE(make_plan(plan_request(w.run("out", sets), machine)).fits()) << remedy;
    ++applied;
  }
  EXPECT_GT(applied, 1);
  EXPECT_NE(error_of([&] { train(run); }).find("out of device memory"), std::string::npos);
}

TEST(LearningRate, WarmUpAndSchedules) {
  RunConfig run = make_run_config({"optimizer.learning_rate=1", "optimizer.lr_warmup_steps=10", "train.max_train_steps=110"});
  EXPECT_DOUBLE_EQ(learning_rate_at(run, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(run, 10), 1);
  EXPECT_DOUBLE_EQ(learning_rate_at(run, 100), 1);
  run.optimizer.lr_scheduler = RunConfig::LrScheduler::kCosine;
  EXPECT_DOUBLE_EQ(learning_rate_at(run, 11), 1);
  EXPECT_NEAR(learning_rate_at(run, 61), 0.5, 1e-12);
  run.optimizer.lr_scheduler = RunConfig::LrScheduler::kLinear;
  EXPECT_NEAR(learning_rate_at(run, 36), 0.75, 1e-12);
}

}  // namespace
}  // namespace megaslide
