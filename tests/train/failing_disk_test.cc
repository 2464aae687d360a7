// What a training does where its output cannot be written, and what it finds of a run that was killed while writing.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>

#include "base/atomic_file.h"
#include "base/disk_watch.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/training_data.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing::error_of;
using testing::log_of;
using testing::train;
using testing::Workplace;
using testing_support::TemporaryFolder;
namespace fs = std::filesystem;

std::string steps_in(const std::string& metrics) {
  std::ifstream file(metrics);
  std::string steps;
  for (std::string line; std::getline(file, line);) steps += line.substr(line.find(':') + 1, 1);
  return steps;
}

TEST(Metrics, ALineThatCannotBeWrittenWaitsForTheNext) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsWriter writer(folder.path(), 0);
  fs::create_directory(path);
  StepMetrics m;
  const std::string log = log_of([&] {
    for (m.step = 1; m.step <= 2; ++m.step) writer.write(m);
  });
  EXPECT_NE(log.find("the metrics of step 1 failed, training goes on: open " + path), std::string::npos) << log;
  EXPECT_EQ(log.find("step 2"), std::string::npos) << "said once: " << log;
  EXPECT_NE(error_of([&] { writer.flush(); }).find(path), std::string::npos);
  fs::remove(path);
  writer.write(m);
  writer.flush();
  EXPECT_EQ(steps_in(path), "123");
}

TEST(Metrics, ThatCannotBeWrittenCostNoCheckpoint) {
  const Workplace w;
  const std::string expected = train(w.run("whole")).state_hash, path = w.folder / "out/metrics.jsonl";
  TrainerOptions o;
  o.threads = 2;
  const auto until_step_2 = [&](const StepMetrics& m) {
    if (m.step != 2) return;
    fs::remove(path);
    fs::create_directory(path);
  };
  const std::string error = error_of([&] { run_training(w.run("out", {"output.save_every_n_steps=3"}), o, until_step_2); });
  EXPECT_NE(error.find("open " + path), std::string::npos) << error;
  fs::remove(path);
  const TrainSummary s = train(w.run("out"));
  EXPECT_EQ(s.resumed_from, 3);
  EXPECT_EQ(s.state_hash, expected);
  // Asked to, the training goes on.
  fs::remove_all(w.folder / "out");
  EXPECT_NE(error_of([&] { run_training(w.run("out", {"output.save_every_n_steps=3", "output.on_checkpoint_error=continue"}), o, until_step_2); }).find(path),
            std::string::npos);
  EXPECT_NE(CheckpointFolder(w.folder / "out").latest()->find("step-00000006"), std::string::npos);
}

// Data on a disk that does not answer until it is noticed.
struct StuckData final : TrainingData {
  mutable std::promise<std::string> noticed;
  std::vector<BatchShape> shapes() const override { return {}; }
  HostBatch batch(int64_t, int) const override {
    const DiskWatch watch(0.1, "mend it");
    auto said = noticed.get_future();
    EXPECT_EQ(said.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    message = said.get();
    return {};
  }
  int microbatches(int64_t) const override { return 1; }
  int max_microbatches() const override { return 1; }
  int64_t last_step() const override { return 9; }
  int64_t position(int64_t) const override { return 0; }
  void resume_after(int64_t, int64_t) override {}
  int64_t host_bytes() const override { return 0; }
  mutable std::string message;
};

TEST(TrainingData, OnADiskThatHangsIsNamed) {
  const StuckData data;
  const HangHandler before = set_hang_handler([&](const Error& e) { data.noticed.set_value(e.message()); });
  batches_of(data, 7);
  set_hang_handler(before);
  EXPECT_EQ(data.message, "the disk has not answered for 0.1 s:\n  read the data of step 7");
}

TEST(Checkpoints, WhatAKilledRunHasLeftGoes) {
  const TemporaryFolder folder;
  for (const char* unfinished : {"step-00000001.tmp/half", "step-00000002.old-17/manifest.json"}) folder.write(std::string("out/checkpoints/") + unfinished, "x");
  folder.write("out/loss.svg.tmp-17", "x");
  folder.write("out/notes.tmp-orary", "x");
  const CheckpointFolder checkpoints(folder / "out");
  EXPECT_TRUE(fs::is_empty(folder / "out/checkpoints"));
  EXPECT_FALSE(fs::exists(folder / "out/loss.svg.tmp-17"));
  EXPECT_TRUE(fs::exists(folder / "out/notes.tmp-orary"));
}

// A byte of the configuration in the manifest that is another must not pass for another configuration, which ends a run.
TEST(Resume, ADamagedManifestIsPassedOver) {
  const Workplace w;
  const std::string expected = train(w.run("whole")).state_hash;
  const TrainSummary s = train(w.run("out", {"train.max_train_steps=4", "output.save_every_n_steps=2"}));
  const std::string manifest = s.checkpoint + "/manifest.json";
  std::string text = read_file(manifest);
  const size_t at = text.find("optimizer.betas");
  ASSERT_NE(at, std::string::npos);
  text[at] = 'q';
  write_file_atomic(manifest, text);
  TrainSummary resumed;
  const std::string log = log_of([&] { resumed = train(w.run("out")); });
  EXPECT_EQ(resumed.resumed_from, 2);
  EXPECT_EQ(resumed.state_hash, expected);
  EXPECT_NE(log.find(s.checkpoint + ": the checkpoint is damaged:\n  manifest.json"), std::string::npos) << log;
}

}  // namespace
}  // namespace megaslide
