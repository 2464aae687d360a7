// A whole tiny WanPipeline (tests/data/pipeline: diffusers' save_pretrained tree and an fp64 run of it) through
// sample-video's own job: tokenizer, UMT5, transformer, UniPC, guidance, VAE.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "diffusion/sample_job.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/video.h"
#include "tests/support/temporary_folder.h"

#include <nlohmann/json.hpp>

namespace megaslide {
namespace {
namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

class GoldenPipeline : public testing::Test {
 protected:

  SampleJob job(const std::string& golden, int64_t steps) const {
    const nlohmann::json meta = read_json(golden + "/meta.json");
    SampleJob j;
    j.model = golden + "/model";
    j.prompts = {meta["prompt"]};
    j.negative_prompt = meta["negative_prompt"];
    j.init_latents = golden + "/run.safetensors";
    j.steps = steps;
    j.guidance_scale = 5;
    j.flow_shift = 3;
    j.compute_dtype = DType::kF32;
    j.threads = 2;
    j.trajectory_out = out_ + "/trajectory.safetensors";
    j.out = out_ + "/frames";
    return j;
  }

  // The relative L2 distance of the latents after each step. The library's own fp32 run ends 3.4e-6 off with fp32
  // timestep angles, 2.5e-6 with fp64 ones; another order of fp32 sums may be a few times as far.
  void expect_latents(const std::string& golden, int64_t steps) const {
    const HostTensor got = read_f32(SafetensorsFile::open(out_ + "/trajectory.safetensors"), "latents");
    const HostTensor want = read_f32(SafetensorsFile::open(golden + "/run.safetensors"), fmt::format("steps{}.latents", steps));
    ASSERT_EQ(got.elements(), want.elements());
    const int64_t n = got.elements() / steps;
    for (int64_t k = 0; k < steps; ++k) {
      double difference = 0, norm = 0;
      for (int64_t i = k * n; i < (k + 1) * n; ++i) {
        const double w = static_cast<double>(want.f32()[i]), d = static_cast<double>(got.f32()[i]) - w;
        difference += d * d;
        norm += w * w;
      }
      EXPECT_LT(std::sqrt(difference / norm), 4 * 3.4e-6) << "after step " << k + 1;
    }
  }

  // Pictures within one level: up to five of the library's own differ by one where a value lies at a rounding tie.
  void expect_frames(const std::string& golden, int64_t steps) const {
    const auto stored = SafetensorsFile::open(golden + "/run.safetensors");
    const TensorView want = stored.view(fmt::format("steps{}.frames_uint8", steps));
    const auto video = open_video(out_ + "/frames");
    Picture picture;
    double time = 0;
    int64_t frame = 0, different = 0;
    for (; video->next(picture, time); ++frame)
      for (size_t i = 0; i < picture.rgb.size(); ++i) {
        const int w = std::to_integer<int>(want.data[frame * static_cast<int64_t>(picture.rgb.size()) + static_cast<int64_t>(i)]);
        const int d = std::abs(static_cast<int>(picture.rgb[i]) - w);
        EXPECT_LE(d, 1) << "frame " << frame;
        different += d;
      }
    EXPECT_EQ(frame, want.shape[0]);
    EXPECT_LT(different, 50) << "of " << want.elements();
  }

  const TemporaryFolder folder_;
  const std::string& out_ = folder_.path();
};

TEST_F(GoldenPipeline, LatentsOfEachStepAndFrames) {
  const std::string golden = MEGASLIDE_TEST_DATA "/pipeline";
  run_sample_job(job(golden, 4), {});
  expect_latents(golden, 4);
  expect_frames(golden, 4);
}

TEST_F(GoldenPipeline, TenSteps) {
  const std::string golden = MEGASLIDE_TEST_DATA "/pipeline";
  run_sample_job(job(golden, 10), {});
  expect_latents(golden, 10);
}

TEST_F(GoldenPipeline, WholeGolden) {
  const char* folder = std::getenv("MEGASLIDE_GOLDEN");
  if (folder == nullptr) GTEST_SKIP() << "MEGASLIDE_GOLDEN names no folder";
  const std::string golden = std::string(folder) + "/wan/pipeline";
  for (const int64_t steps : {4, 10}) {
    fs::remove_all(out_ + "/frames");
    run_sample_job(job(golden, steps), {});
    expect_latents(golden, steps);
    expect_frames(golden, steps);
  }
}

// In bf16 the rounding of operands dominates: the transformer's own bf16 output is 6.6e-3 off (golden dit/a), guidance
// 5 multiplies differences, and the steps pull them together again.
TEST_F(GoldenPipeline, Bf16StaysNear) {
  const std::string golden = MEGASLIDE_TEST_DATA "/pipeline";
  SampleJob j = job(golden, 4);
  j.compute_dtype = DType::kBF16;
  run_sample_job(j, {});
  const HostTensor got = read_f32(SafetensorsFile::open(j.trajectory_out), "latents");
  const HostTensor want = read_f32(SafetensorsFile::open(golden + "/run.safetensors"), "steps4.latents");
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < want.elements(); ++i) {
    const double w = static_cast<double>(want.f32()[i]), d = static_cast<double>(got.f32()[i]) - w;
    difference += d * d;
    norm += w * w;
  }
  EXPECT_LT(std::sqrt(difference / norm), 5 * 6.6e-3);
  EXPECT_GT(difference, 0);
}

}  // namespace
}  // namespace megaslide
