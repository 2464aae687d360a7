// Going on: only with the same configuration and the same data, and past checkpoints that are damaged.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "train/checkpoint.h"
#include "train/resume.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing::error_of;
using testing::train;
using testing::Workplace;
namespace fs = std::filesystem;

const std::vector<Shape> kClips(5, {16, 1, 4, 4});

TEST(Resume, AChangedCacheIsRefusedWithWhatChanged) {
  const Workplace w(AttentionKind::kDense, kClips);
  train(w.run("out", {"train.max_train_steps=1"}));
  const auto again = [&](const std::vector<std::string>& allowed = {}) {
    return error_of([&] {
      TrainerOptions o;
      o.allowed_changes = allowed;
      run_training(w.run("out", {"train.max_train_steps=2", "output.save_every_n_steps=1"}), o);
    });
  };
  fs::remove_all(w.folder / "cache");
  testing::write_small_cache(w.folder / "cache", w.config, std::vector<Shape>(4, {16, 1, 4, 4}), 3);
  const std::string text = again();
  EXPECT_NE(text.find("data.cache: its content has changed: 3 samples are gone, 2 samples are new"), std::string::npos) << text;
  const std::string log = testing::log_of([&] { EXPECT_EQ(again({"data.cache"}), "no error"); });
  EXPECT_NE(log.find("allowed change: data.cache: its content has changed: 3 samples are gone"), std::string::npos) << log;
}

TEST(Resume, WhatTheDataKeysTell) {
  const DataKeys abc = data_keys({"a", "b", "c"});
  EXPECT_EQ(data_difference(abc, data_keys({"a", "b", "c"})), "");
  EXPECT_EQ(data_difference(abc, data_keys({"b", "a", "c"})), "the samples are the same in another order");
  EXPECT_EQ(data_difference(abc, data_keys({"a", "c"})), "1 sample is gone");
  EXPECT_EQ(data_difference(abc, data_keys({"a", "d", "b", "c", "e"})), "2 samples are new");
  EXPECT_EQ(data_difference({}, abc), "") << "a checkpoint that does not say";
  std::vector<std::string> many;
  for (int i = 0; i < 70000; ++i) many.push_back(std::to_string(i));
  EXPECT_TRUE(data_keys(many).hashes.empty());
  EXPECT_EQ(data_difference(data_keys(many), abc), "of 70000 samples before and 3 now not all are the same");
  RunState state;
  state.position = 17;
  state.data = abc;
  const RunState back = parse_run_state(to_json(state), "there");
  EXPECT_EQ(back.position, 17);
  EXPECT_EQ(back.data.sha256, abc.sha256);
  EXPECT_EQ(back.data.hashes, abc.hashes);
  EXPECT_EQ(back.data.count, 3);
  EXPECT_EQ(parse_run_state(R"({"step":1,"train_step":2,"seed":0,"config":[],"position":-5,"data":{"hashes":"zz","sha256":7}})", "there").position, -1);
}

// A checkpoint that an earlier version wrote: without keys that have come since.
TEST(Resume, KeysThatCameSinceHaveTheirDefaults) {
  const Workplace w(AttentionKind::kDense, kClips);
  const TrainSummary s = train(w.run("out", {"train.max_train_steps=1"}));
  RunState now = parse_run_state(ModelDirectory::open(s.checkpoint).manifest().state, "");
  const RunConfig run = w.run("out");
  const CheckpointFolder folder(w.folder / "out");
  ThreadPool pool(1);
  const auto resumed = [&] { return error_of([&] { find_resume_point(run, now, folder, {}, pool); }); };
  now.config.push_back("train.new_key=3");
  EXPECT_NE(resumed().find("train.new_key: was not set, is 3"), std::string::npos);
  now.config.pop_back();
  EXPECT_EQ(resumed(), "no error");
  // The other way round: the checkpoint lacks a key whose default is in force.
  const std::string manifest = s.checkpoint + "/manifest.json";
  std::ifstream in(manifest);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  ASSERT_NE(text.find("train.min_timestep=0"), std::string::npos);
  EXPECT_NE(error_of([&] {
              RunConfig other = run;
              other.train.min_timestep = 100;
              now.config = canonical_lines(other);
              find_resume_point(other, now, folder, {}, pool);
            }).find("train.min_timestep: was 0, is 100"),
            std::string::npos);
}

TEST(Resume, DamagedCheckpointsArePassedOver) {
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> damages{
      {"layer-000.safetensors", [](const std::string& d) { fs::resize_file(d + "/layer-000.safetensors", fs::file_size(d + "/layer-000.safetensors") / 2); }},
      {"embed.safetensors", [](const std::string& d) { fs::resize_file(d + "/embed.safetensors", 0); }},
      {"head.safetensors", [](const std::string& d) {
         std::fstream f(d + "/head.safetensors", std::ios::in | std::ios::out | std::ios::binary);  // the moments lie last
         f.seekg(-3, std::ios::end);
         const char bit = static_cast<char>(f.get() ^ 4);
         f.seekp(-3, std::ios::end);
         f.put(bit);
       }},
      {"manifest.json", [](const std::string& d) { fs::remove(d + "/manifest.json"); }},
      {"layer-001.safetensors", [](const std::string& d) { fs::remove(d + "/layer-001.safetensors"); }}};
  const Workplace w(AttentionKind::kDense, kClips);
  const std::vector<std::string> half{"train.max_train_steps=4", "output.save_every_n_steps=2"}, all{"train.max_train_steps=6", "output.save_every_n_steps=2"};
  const std::string expected = train(w.run("whole", all)).state_hash;
  for (const auto& [file, damage] : damages) {
    const std::string out = "out-" + file;
    train(w.run(out, half));
    damage(w.folder / (out + "/checkpoints/step-00000004"));
    TrainSummary s;
    const std::string log = testing::log_of([&] { s = train(w.run(out, all)); });
    EXPECT_EQ(s.resumed_from, 2) << file;
    EXPECT_EQ(s.state_hash, expected) << file;
    EXPECT_NE(log.find("step-00000004"), std::string::npos) << log;
    EXPECT_NE(log.find(file), std::string::npos) << log;
    EXPECT_TRUE(ModelDirectory::is_one(w.folder / (out + "/checkpoints/step-00000004"))) << "written anew";
  }
}

TEST(Resume, AnAllowedAccumulationGoesOnWhereTheDataStood) {
  const Workplace w(AttentionKind::kDense, kClips);
  train(w.run("out", {"train.max_train_steps=2", "data.batch_size=1"}));
  TrainerOptions o;
  o.allowed_changes = {"train.gradient_accumulation_steps"};
  const TrainSummary s = run_training(w.run("out", {"train.max_train_steps=4", "data.batch_size=1", "train.gradient_accumulation_steps=3"}), o);
  EXPECT_NE(ModelDirectory::open(s.checkpoint).manifest().state.find("\"position\":8"), std::string::npos) << "2 and then 2 times 3";
}

// Two networks: the one that is asked for is trained, and its checkpoints say which it is and where the other one lies.
TEST(Experts, CheckpointsKnowTheWholeModel) {
  Workplace w(AttentionKind::kDense, kClips);
  w.config.boundary = 0.875;
  ThreadPool pool(2);
  init_model_directory(w.folder / "two", w.config, 5, DType::kF32, false, pool);
  init_model_directory(w.folder / "two/transformer_2", w.config, 6, DType::kF32, false, pool);
  std::string hashes[2];
  for (const std::string expert : {"high", "low"}) {
    const TrainSummary s = train(w.run(expert, {"model.path=" + (w.folder / "two"), "model.expert=" + expert, "train.max_train_steps=1"}));
    const ModelDirectory checkpoint = ModelDirectory::open(s.checkpoint);
    EXPECT_EQ(checkpoint.manifest().source.network, expert == "high" ? "transformer" : "transformer_2");
    EXPECT_EQ(checkpoint.manifest().source.parts, w.folder / "two");
    EXPECT_EQ(checkpoint.config().boundary, 0.875);
    hashes[expert == "low"] = s.state_hash;
    EXPECT_EQ(train(w.run(expert, {"model.path=" + (w.folder / "two"), "model.expert=" + expert, "train.max_train_steps=2"})).resumed_from, 1);
  }
  // The root of the model trained as if it were alone, where the noise levels are the same: the network is what the name says.
  init_model_directory(w.folder / "second", w.config, 6, DType::kF32, false, pool);
  init_model_directory(w.folder / "second/transformer_2", w.config, 5, DType::kF32, false, pool);
  EXPECT_EQ(train(w.run("swapped", {"model.path=" + (w.folder / "second"), "model.expert=low", "train.max_train_steps=1"})).state_hash == hashes[1], false);
  EXPECT_NE(error_of([&] { train(w.run("none", {"model.path=" + (w.folder / "two")})); }).find("model.expert says which is trained"), std::string::npos);
  EXPECT_NE(error_of([&] { train(w.run("sampled", {"model.path=" + (w.folder / "two"), "model.expert=low", "sample.prompts=[a]"})); }).find("two networks"), std::string::npos);
}

}  // namespace
}  // namespace megaslide
