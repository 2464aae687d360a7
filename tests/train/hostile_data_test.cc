// Data that is damaged or makes no sense: refused with the file's name, before a step is made of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>

#include "base/error.h"
#include "io/safetensors.h"
#include "plan/planner.h"
#include "train/checkpoint.h"
#include "train/probe.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing::error_of;
using testing::train;
using testing::Workplace;
namespace fs = std::filesystem;

void expect_contains(const std::string& text, const std::string& part) { EXPECT_NE(text.find(part), std::string::npos) << text; }

using SharedTensor = std::shared_ptr<const HostTensor>;
using Tensors = std::map<std::string, SharedTensor>;

SharedTensor filled(const Shape& shape, float value) {
  auto t = std::make_shared<HostTensor>(DType::kF32, shape);
  std::fill(t->f32(), t->f32() + t->elements(), value);
  return t;
}

void write(const std::string& path, const Tensors& tensors) {
  std::vector<std::pair<std::string, TensorView>> views;
  for (const auto& [name, t] : tensors) views.emplace_back(name, t->view());
  write_safetensors(path, views);
}

TEST(HostileCache, TensorsOfOtherShapesOrWithoutSense) {
  const Workplace w;
  const std::string file = cached_clip_file(w.folder / "cache", "clip0");
  const SharedTensor latent = filled({16, 3, 8, 8}, 0.5f);
  const auto refused = [&](const SharedTensor& x, const SharedTensor& text) {
    write(file, {{"latent", x}, {"text", text}});
    return error_of([&] { train(w.run("out")); });
  };
  expect_contains(refused(latent, filled({2, 100000}, 1)), "clip0.safetensors: text is [2, 100000], the model reads up to 8 rows of 32");
  expect_contains(refused(latent, filled({2, 3}, 1)), "reads up to 8 rows of 32");
  expect_contains(refused(latent, filled({}, 1)), "clip0.safetensors: text is F32 []");
  expect_contains(refused(filled({16, 3, 8, 8}, std::numeric_limits<float>::quiet_NaN()), filled({2, 32}, 1)), "not finite");
  EXPECT_EQ(refused(latent, filled({2, 32}, 1)), "no error") << "a file without a hash is taken as it is";
  EXPECT_FALSE(fs::exists(w.folder / "out/checkpoints/step-00000007"));
}

TEST(HostileCache, MoreTextRowsThanTheModelReads) {
  const Workplace w;
  std::vector<CachedClip> clips(1);
  clips[0].key = clips[0].path = "clip0";
  clips[0].latent = {16, 3, 8, 8};
  clips[0].text_rows = 30000;
  write_cached_clip(w.folder / "cache", "clip0", filled({16, 3, 8, 8}, 0.5f)->view(), filled({30000, 32}, 1)->view(), {});
  write_cache_index(w.folder / "cache", cache_identity(w.config), clips);
  expect_contains(error_of([&] { train(w.run("out")); }), "text is [30000, 32], the model reads up to 8 rows of 32");
}

TEST(HostileCache, OneFlippedBitIsFound) {
  const Workplace w;
  const std::string path = cached_clip_file(w.folder / "cache", "clip1");
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const auto at = file.tellg();
  const char flipped = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(flipped);
  file.close();
  const std::string text = error_of([&] { train(w.run("out")); });
  expect_contains(text, "clip1.safetensors: damaged");
  expect_contains(text, "remedy: run encode-clips again");
}

class HostileReplay : public ::testing::Test {
 protected:
  Tensors good() const {
    Tensors t;
    for (const std::string step : {"step1", "step2"}) {
      t[step + ".micro0.x0"] = filled({1, 16, 2, 8, 8}, 0.5f);
      t[step + ".micro0.noise"] = filled({1, 16, 2, 8, 8}, 0.1f);
      t[step + ".micro0.sigma"] = filled({1}, 0.5f);
      t[step + ".micro0.text"] = filled({1, 8, 32}, 0.1f);
    }
    return t;
  }
  // What training says when step 2 holds these tensors.
  std::string with(const Tensors& changes) {
    Tensors t = good();
    for (const auto& [name, tensor] : changes) t["step2.micro0." + name] = tensor;
    write(w_.folder / "replay.safetensors", t);
    fs::remove_all(w_.folder / "out");
    return error_of([&] {
      auto run = w_.run("out", {"train.max_train_steps=2"});
      run.data.cache.clear();
      run.data.replay = w_.folder / "replay.safetensors";
      train(run);
    });
  }
  Workplace w_;
};

TEST_F(HostileReplay, EmptyBatchesAndImpossibleValues) {
  EXPECT_EQ(with({}), "no error");
  expect_contains(with({{"x0", filled({0, 16, 2, 8, 8}, 0)}, {"text", filled({0, 8, 32}, 0)}}), "replay.safetensors: nothing to compute on");
  expect_contains(with({{"x0", filled({1, 16, 0, 8, 8}, 0)}}), "replay.safetensors: nothing to compute on");
  expect_contains(with({{"text", filled({1, 0, 32}, 0)}}), "with 0 text rows");
  expect_contains(with({{"sigma", filled({1}, -1)}}), "step2.micro0.sigma holds -1");
  expect_contains(with({{"sigma", filled({1}, std::numeric_limits<float>::quiet_NaN())}}), "step2.micro0.sigma holds nan");
  const auto whole = std::make_shared<HostTensor>(DType::kI32, Shape{1, 16, 2, 8, 8});
  expect_contains(with({{"x0", whole}}), "\"step2.micro0.x0\": cannot convert I32 to F32");
}

TEST(HostileProbe, EmptyBatches) {
  const Workplace w;
  const ModelDirectory model = ModelDirectory::open(w.folder / "model");
  const auto probed = [&](const Shape& latent, int64_t rows) {
    Tensors t;
    t["latent"] = filled(latent, 0.1f);
    t["target"] = filled(latent, 0.1f);
    t["timesteps"] = filled({latent[0]}, 500);
    t["text"] = filled({latent[0], rows, 32}, 0.1f);
    write(w.folder / "batch.safetensors", t);
    return error_of([&] { probe(model, w.folder / "batch.safetensors", w.folder / "out.safetensors", DType::kF32, 1); });
  };
  EXPECT_EQ(probed({1, 16, 2, 4, 4}, 3), "no error");
  expect_contains(probed({0, 16, 2, 4, 4}, 3), "batch.safetensors: nothing to compute on");
  expect_contains(probed({1, 16, 2, 0, 4}, 3), "batch.safetensors: nothing to compute on");
  expect_contains(probed({1, 16, 2, 4, 4}, 0), "with 0 text rows");
}

TEST(HostileCheckpoints, TheRemedyNamesTheOneBefore) {
  const Workplace w;
  const auto sets = std::vector<std::string>{"train.max_train_steps=2", "output.save_every_n_steps=1"};
  train(w.run("out", sets));
  const std::string second = w.folder / "out/checkpoints/step-00000002";
  fs::resize_file(second + "/head.safetensors", 100);
  const auto explicitly = [&] { return error_of([&] { train(w.run("out", {"train.max_train_steps=2", "output.resume_from_checkpoint=" + second})); }); };
  expect_contains(explicitly(), "--resume " + (w.folder / "out/checkpoints/step-00000001"));
  fs::remove_all(w.folder / "out/checkpoints/step-00000001");
  expect_contains(explicitly(), "start again in another output.output_dir");
  expect_contains(error_of([&] { train(w.run("out", sets)); }), "no checkpoint of this run is whole");
  const auto resume = [&](const std::string& from) { return error_of([&] { train(w.run("new", {"output.resume_from_checkpoint=" + from})); }); };
  expect_contains(resume(w.folder / "out"), "not a checkpoint");
  expect_contains(resume(w.folder / "nothing"), "no such checkpoint");
  expect_contains(resume(w.folder / "model"), "a model, not a checkpoint");
}

TEST(HostileCheckpoints, AFolderInThePlaceOfTheLink) {
  const Workplace w;
  fs::create_directories(w.folder / "out/latest");
  expect_contains(error_of([&] { train(w.run("out")); }), "out/latest: a folder");
  EXPECT_FALSE(fs::exists(w.folder / "out/metrics.jsonl")) << "said before the first step";
}

TEST(HostileCheckpoints, AStateWithImpossibleNumbers) {
  const auto state = [](const std::string& step, const std::string& train_step) {
    return error_of([&] { parse_run_state("{\"step\":" + step + ",\"train_step\":" + train_step + ",\"seed\":0,\"config\":[]}", "there"); });
  };
  EXPECT_EQ(state("1", "2"), "no error");
  expect_contains(state("-1", "2"), "there: the training state's step is -1");
  expect_contains(state("1", "18446744073709551615"), "train_step is 18446744073709551615");
}

TEST(HostileBudgets, BothAtOnce) {
  const Workplace w;
  MachineConfig machine;
  const std::vector<std::string> small{"stream.device_budget=1", "stream.host_budget=1"};
  PlanRequest request = plan_request(w.run("out", small), machine);
  request.program_bytes = int64_t{32} << 20;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.misfits.size(), 2u);
  ASSERT_FALSE(plan.remedies.empty());
  const std::string& remedy = plan.remedies.back();
  const size_t second = remedy.find(" --set stream.host_budget=");
  ASSERT_TRUE(remedy.starts_with("--set stream.device_budget=") && second != std::string::npos) << remedy;
  PlanRequest applied = plan_request(w.run("out", {remedy.substr(6, second - 6), remedy.substr(second + 7)}), machine);
  applied.program_bytes = request.program_bytes;
  EXPECT_TRUE(make_plan(applied).fits()) << remedy;
  // As it does where the program's start needs some more.
  applied.program_bytes += int64_t{4} << 20;
  EXPECT_TRUE(make_plan(applied).fits()) << remedy;
}

TEST(HostileBudgets, NothingAloneFits) {
  const Workplace w;
  MachineConfig machine;
  auto run = w.run("out");
  PlanRequest r = plan_request(run, machine);
  r.shapes = {{1, 64, 32, 32, 8}};
  r.run.data.batch_size = 1;
  PlanRequest tiny = r;
  tiny.shapes = {{1, 1, 4, 4, 8}};
  r.run.stream.device_budget = make_plan(tiny).device.peak;
  const Plan plan = make_plan(r);
  ASSERT_FALSE(plan.fits());
  bool both = false;
  for (const auto& remedy : plan.remedies) both = both || remedy.starts_with("--num-frames 1 --size 32x32");
  EXPECT_TRUE(both) << "single pictures of 4x4 tokens fit, and no larger ones";
}

}  // namespace
}  // namespace megaslide
