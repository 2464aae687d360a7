// The reference data through the program itself: five steps with data.replay, and every gradient with --probe.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/support/library_noise.h"
#include "tests/support/temporary_folder.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "golden_state.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace megaslide {
namespace {

using testing_support::kFactor;
using testing_support::kFloor;
using testing_support::TemporaryFolder;

const std::string kData = MEGASLIDE_TEST_DATA;

// finetune with these arguments; its messages where it fails.
void finetune(const TemporaryFolder& folder, const std::string& arguments) {
  const std::string log = folder / "log";
  const int status = std::system((std::string(MEGASLIDE_BIN) + "/finetune " + arguments + " -q --progress never --threads 2 >" + log + " 2>&1").c_str());
  ASSERT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0) << arguments << "\n" << read_file(log);
}

// `steps` steps of the five, from a model and its batches.
void train(const TemporaryFolder& folder, const std::string& model, const std::string& batches, int steps) {
  write_file_atomic(folder / "run.yaml", fmt::format("model: {{path: {}, compute_dtype: fp32}}\n"
                                                     "data: {{replay: {}}}\n"
                                                     "train: {{max_train_steps: {}, max_grad_norm: 1}}\n"
                                                     "optimizer: {{learning_rate: 1e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, masters: fp32, gradients: fp32}}\n"
                                                     "output: {{output_dir: {}}}\n",
                                                     model, batches, steps, folder / "out"));
  finetune(folder, folder / "run.yaml");
}

TEST(GoldenProgram, FiveStepsEqualTorch) {
  const TemporaryFolder folder;
  train(folder, kData + "/train/init", kData + "/train/data.safetensors", 5);
  if (HasFatalFailure()) return;
  testing::expect_golden_state(ModelDirectory::open(folder / "out/latest"), SafetensorsFile::open(kData + "/train/state_step5.safetensors"));
}

TEST(WholeGolden, TrainedStatesThroughTheProgram) {
  const std::string golden = testing::golden_folder("wan/train");
  if (golden.empty()) GTEST_SKIP() << "MEGASLIDE_GOLDEN names no folder";
  const auto reference = read_json(golden + "/train.json");
  for (const int steps : {1, 5}) {
    const TemporaryFolder folder;
    train(folder, golden + "/init", golden + "/data.safetensors", steps);
    if (HasFatalFailure()) return;
    testing::expect_golden_state(ModelDirectory::open(folder / "out/latest"), SafetensorsFile::open(fmt::format("{}/state_step{}.safetensors", golden, steps)));
    std::ifstream lines(folder / "out/metrics.jsonl");
    std::string line;
    for (const auto& step : reference["steps"]) {
      if (!std::getline(lines, line)) break;
      const auto j = nlohmann::json::parse(line);
      EXPECT_NEAR(j["loss"].get<double>(), step["loss"].get<double>(), 4 * 7.4e-7 * step["loss"].get<double>());
      EXPECT_NEAR(j["grad_norm"].get<double>(), step["grad_norm"].get<double>(), 4 * 1.1e-6 * step["grad_norm"].get<double>());
      EXPECT_EQ(j["clipped"], step["clipped"]);
    }
    if (steps > 1) continue;
    // After one step the first moments are a tenth of the clipped gradient.
    const ModelDirectory got = ModelDirectory::open(folder / "out/latest");
    const SafetensorsFile gradients = SafetensorsFile::open(golden + "/grad_step1.safetensors");
    double error = 0, norm = 0;
    for (int64_t part = -1; part <= got.layers(); ++part) {
      const SafetensorsFile file = got.part(part);
      for (const auto& t : file.tensors()) {
        if (!t.name.ends_with(".exp_avg")) continue;
        const HostTensor m = HostTensor::f32_from(file.view(t)), g = HostTensor::f32_from(gradients.view("grad." + t.name.substr(0, t.name.size() - 8)));
        for (int64_t i = 0; i < m.elements(); ++i) {
          const double d = m.f32()[i] - 0.1 * g.f32()[i];
          error += d * d;
          norm += 0.01 * g.f32()[i] * g.f32()[i];
        }
      }
    }
    EXPECT_LT(std::sqrt(error / norm), 4 * 1.9e-6);
  }
}

double norm_of(const HostTensor& t) {
  double sum = 0;
  for (int64_t i = 0; i < t.elements(); ++i) sum += double{t.f32()[i]} * t.f32()[i];
  return std::sqrt(sum);
}
double distance(const HostTensor& a, const HostTensor& b) {
  if (a.shape() != b.shape()) return INFINITY;
  HostTensor d(DType::kF32, a.shape());
  for (int64_t i = 0; i < a.elements(); ++i) d.f32()[i] = a.f32()[i] - b.f32()[i];
  return norm_of(d);
}

// Every gradient of `probe` against the stored ones, each by its own noise, those that nearly cancel beside all.
void compare_probe(const std::string& model, const std::string& io_path, const std::string& gradients_path, const std::string& meta_path) {
  const TemporaryFolder folder;
  const std::string out = folder / "out.safetensors";
  finetune(folder, fmt::format("--probe {} --model {} -o {}", io_path, model, out));
  if (::testing::Test::HasFatalFailure()) return;
  const auto got = SafetensorsFile::open(out), io = SafetensorsFile::open(io_path), gradients = SafetensorsFile::open(gradients_path);
  const auto meta = read_json(meta_path);
  const auto& noise = meta["noise_fp32_angles64"];
  for (const std::string name : {"out", "grad.latent", "grad.text"}) {
    const HostTensor want = read_f32(io, name);
    EXPECT_LT(distance(read_f32(got, name), want) / norm_of(want), kFactor * noise["tensors"][name].get<double>() + kFloor) << name;
  }
  EXPECT_NEAR(read_f32(got, "loss").f32()[0], meta["loss"].get<double>(), 1e-6 * meta["loss"].get<double>());
  double all = 0;
  for (const auto& t : gradients.tensors()) all += std::pow(norm_of(read_f32(gradients, t.name)), 2);
  all = std::sqrt(all);
  double error = 0;
  for (const auto& t : gradients.tensors()) {
    const HostTensor want = read_f32(gradients, t.name);
    const double d = distance(read_f32(got, "grad." + t.name), want);
    error += d * d;
    const double own = noise["grads"][t.name].get<double>();
    EXPECT_LT(d, (kFactor * own + kFloor) * norm_of(want) + 1e-9 * all) << t.name;
  }
  EXPECT_EQ(got.tensors().size(), gradients.tensors().size() + 4) << "no gradient is missing";
  EXPECT_LT(std::sqrt(error) / all, 4 * 4e-7);
}

TEST(GoldenProgram, EveryGradientOfProbe) {
  const std::string a = kData + "/dit/a";
  compare_probe(a, a + "/io.safetensors", a + "/grads.safetensors", a + "/meta.json");
}

// One timestep a token, those of frame 0 at 0.
TEST(GoldenProgram, ProbeWithATimestepAToken) {
  const TemporaryFolder folder;
  const std::string a = kData + "/dit/a";
  const auto io = SafetensorsFile::open(a + "/io.safetensors");
  write_safetensors(folder / "batch.safetensors", {{"latent", io.view("latent")}, {"timesteps", io.view("timesteps_per_token")}, {"text", io.view("text")}});
  finetune(folder, fmt::format("--probe {} --model {} -o {}", folder / "batch.safetensors", a, folder / "out.safetensors"));
  if (HasFatalFailure()) return;
  const HostTensor want = read_f32(io, "out_per_token"), got = read_f32(SafetensorsFile::open(folder / "out.safetensors"), "out");
  const double noise = read_json(a + "/meta.json")["noise_fp32_angles64"]["out_per_token"];
  EXPECT_LT(distance(got, want) / norm_of(want), kFactor * noise + kFloor);
}

TEST(WholeGolden, EveryGradientOfProbe) {
  const std::string golden = testing::golden_folder("wan/dit");
  if (golden.empty()) GTEST_SKIP() << "MEGASLIDE_GOLDEN names no folder";
  for (const std::string name : {"a", "b"}) {
    const std::string at = golden + "/" + name;
    compare_probe(at + "/diffusers", at + "/io.safetensors", at + "/grads.safetensors", at + "/meta.json");
  }
}

}  // namespace
}  // namespace megaslide
