// sample-video's runs with a small random model: files, names, seeds, forms of output.
#include "diffusion/sample_job.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "io/safetensors.h"
#include "io/shard.h"
#include "model/init_model.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {
namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

class SampleJobs : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    temporary_ = std::make_unique<TemporaryFolder>();
    folder_ = temporary_->path();
    ModelConfig c;
    c.name = "small";
    c.dim = 24;
    c.heads = 2;
    c.ffn_dim = 32;
    c.layers = 2;
    c.text_dim = 8;
    c.text_len = 6;
    c.attention.dsa.groups = 2;
    c.codec = CodecKind::kHaar;
    c.text_encoder = TextEncoderKind::kHashedNgram;
    c.num_frames = 5;
    c.height = 16;
    c.width = 24;
    c.steps = 2;
    c.flow_shift = 3;
    c.guidance_scale = 2;
    ThreadPool pool(1);
    init_model_directory(folder_ + "/model", c, 1, DType::kF32, false, pool);
  }
  static void TearDownTestSuite() { temporary_.reset(); }

  static SampleJob job(std::vector<std::string> prompts, const std::string& out) {
    SampleJob j;
    j.model = folder_ + "/model";
    j.prompts = std::move(prompts);
    if (!out.empty()) j.out = folder_ + "/" + out;
    return j;
  }
  static std::string bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  static std::vector<float> latents(const std::string& path) {
    const auto file = SafetensorsFile::open(path);
    const HostTensor t = HostTensor::f32_from(file.view("latents"));
    return {t.f32(), t.f32() + t.elements()};
  }
  static inline std::unique_ptr<TemporaryFolder> temporary_;
  static inline std::string folder_;
};

// Stored weights (a fresh model's head is zero: it would agree with any other) and stored text rows.
class StoredNetworks : public SampleJobs {
 protected:
  // Imports `data`, sets the noise level where two networks meet, and names the folder.
  static std::string network(const std::string& data, const std::string& name, double boundary) {
    const std::string folder = folder_ + "/" + name;
    import_checkpoint(MEGASLIDE_TEST_DATA "/" + data, folder, {});
    ModelManifest m = ModelDirectory::open(folder).manifest();
    m.config.boundary = boundary;
    if (boundary > 0) m.config.guidance_scale_2 = 1.5;
    write_file_atomic(folder + "/" + kManifestName, manifest_to_text(m));
    return folder;
  }
  static SampleJob stored_job(const std::string& model) {
    SampleJob j;
    j.model = model;
    const auto stored = SafetensorsFile::open(MEGASLIDE_TEST_DATA "/dit/a/io.safetensors");
    const TensorView text = stored.view("text");
    const int64_t rows = text.shape[1], width = text.shape[2];
    const auto sample = [&](int64_t i) { return TensorView{DType::kF32, {rows, width}, text.data + i * rows * width * 4}; };
    j.text_embeds = folder_ + "/text.safetensors";
    write_safetensors(j.text_embeds, {{"prompt_embeds", sample(0)}, {"negative_prompt_embeds", sample(1)}});
    j.num_frames = 5;
    j.width = 48;
    j.height = 32;
    j.steps = 4;
    j.guidance_scale = 2;
    j.flow_shift = 3;
    j.trajectory_out = folder_ + "/trajectory.safetensors";
    return j;
  }
  static std::vector<float> run(const SampleJob& j) {
    run_sample_job(j, {});
    return latents(j.trajectory_out);
  }
};

TEST_F(StoredNetworks, WeightsFromDiskGiveTheSameBits) {
  const std::string model = network("dit/a", "from-disk", 0);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    SampleJob j = stored_job(model);
    j.compute_dtype = dtype;
    j.weights = WeightPlace::kMemory;
    const std::vector<float> memory = run(j);
    j.weights = WeightPlace::kDisk;
    j.threads = 3;
    EXPECT_EQ(run(j), memory);
  }
}

// Steps from 1000·boundary on are the first network's, later ones the second's: the result agrees with the first alone up
// to the switch, differs afterwards, and does not depend on where the weights lie.
TEST_F(StoredNetworks, TwoNetworksByNoiseLevel) {
  const std::string pair = network("dit/a", "pair", 0.7), one = network("dit/a", "one", 0);
  SampleJob j = stored_job(pair);
  try {
    run(j);
    FAIL() << "the second network is missing";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("the other one is missing"), std::string::npos) << e.what();
  }
  network("train/init", "pair/transformer_2", 0);
  const std::vector<float> both = run(j);
  j.weights = WeightPlace::kDisk;
  EXPECT_EQ(run(j), both);
  j.model = one;
  j.guidance_scale = 2;
  const std::vector<float> first = run(j);
  // Flow shift 3, four steps: 999, 900, 750 and 500; the last one is below 700.
  const auto three_steps = static_cast<std::ptrdiff_t>(both.size() / 4 * 3);
  EXPECT_TRUE(std::equal(both.begin(), both.begin() + three_steps, first.begin()));
  EXPECT_NE(both, first);
  j.guidance_scale_2 = 3;
  EXPECT_THROW(run(j), Error) << "a model of one network";
  j.model = pair;
  EXPECT_NE(run(j), both) << "the second guidance counts";
}

TEST_F(SampleJobs, EveryFormOfOutput) {
  for (const std::string name : {"a.mp4", "a.webm", "a.gif", "frames"}) {
    const auto report = run_sample_job(job({"a dog"}, name), {});
    ASSERT_EQ(report.videos.size(), 1u);
    const auto video = open_video(report.videos[0].path);
    Picture picture;
    double time;
    int64_t frames = 0;
    while (video->next(picture, time)) ++frames;
    EXPECT_EQ(frames, 5) << name;
    EXPECT_EQ(picture.width, 24) << name;
    EXPECT_EQ(picture.height, 16) << name;
  }
  run_sample_job(job({"a dog"}, "a.safetensors"), {});
  const auto file = SafetensorsFile::open(folder_ + "/a.safetensors");
  EXPECT_EQ(file.view("video").shape, (Shape{1, 3, 5, 16, 24}));
}

TEST_F(SampleJobs, AVideoIsAFunctionOfPromptAndSeed) {
  SampleJob all = job({"a cat", "a dog", "A dog", "a dog"}, "all");
  all.latents_out = folder_ + "/all.safetensors";
  all.contact_sheet = folder_ + "/sheets/all.png";
  all.seed = 7;
  const auto report = run_sample_job(all, {});
  ASSERT_EQ(report.videos.size(), 4u);
  std::set<std::string> paths;
  for (const auto& v : report.videos) {
    EXPECT_TRUE(fs::is_regular_file(v.path)) << v.path;
    paths.insert(v.path);
  }
  EXPECT_EQ(paths.size(), 4u);
  EXPECT_EQ(report.videos[3].seed, 8u);  // the second "a dog"
  EXPECT_NE(bytes(folder_ + "/all/manifest.json").find("\"prompt\": \"A dog\""), std::string::npos);
  EXPECT_GT(read_png(all.contact_sheet).height, 4 * 16);

  const auto together = latents(all.latents_out);
  const size_t n = together.size() / 4;
  for (const auto& [seed, place] : {std::pair<uint64_t, size_t>{7, 1}, {8, 3}}) {
    SampleJob alone = job({"a dog"}, "");
    alone.latents_out = folder_ + "/alone.safetensors";
    alone.seed = seed;
    alone.threads = 3;
    run_sample_job(alone, {});
    const auto one = latents(alone.latents_out);
    ASSERT_EQ(one.size(), n);
    EXPECT_EQ(std::memcmp(one.data(), together.data() + place * n, n * 4), 0);
  }
}

TEST_F(SampleJobs, LatentsDecodeToTheSameVideo) {
  SampleJob first = job({"a dog"}, "direct.gif");
  first.latents_out = folder_ + "/l.safetensors";
  run_sample_job(first, {});
  SampleJob second = job({}, "decoded.gif");
  second.decode = folder_ + "/l.safetensors";
  run_sample_job(second, {});
  EXPECT_EQ(bytes(folder_ + "/direct.gif"), bytes(folder_ + "/decoded.gif"));
}

TEST_F(SampleJobs, Refusals) {
  const auto refused = [](const SampleJob& j, const std::string& part) {
    try {
      run_sample_job(j, {});
      ADD_FAILURE() << "accepted; expected '" << part << "'";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused(job({"a", "b"}, "two.mp4"), "2 prompts need a folder");
  refused(job({"a\xFF"}, "x.mp4"), "not UTF-8");
  refused(job({"a"}, "x.mkv"), "use .mp4, .webm, .gif");
  SampleJob j = job({"a"}, "x.mp4");
  j.model = "tiny";
  refused(j, "no such model");
  std::ofstream(folder_ + "/plain") << "x";
  refused(job({"a"}, "plain/x.mp4"), "is not a folder");
  j = job({"a"}, "x.mp4");
  j.decode = folder_ + "/nothing.safetensors";
  refused(j, "--decode samples nothing");
  j = job({"a"}, "x.mp4");
  j.width = 20;
  refused(j, "use 16 or 24");
  j = job({}, "x.mp4");
  j.text_embeds = folder_ + "/model/embed.safetensors";
  refused(j, "negative_prompt_embeds");
  j = job({"a"}, "same.safetensors");
  j.latents_out = folder_ + "/./same.safetensors";
  refused(j, "-o and --latents-out name the same file");
  j = job({"a"}, "");
  j.out = "-";
  refused(j, "do not go to standard output");
}

TEST_F(SampleJobs, StoredLatentsWithoutSense) {
  const auto refused = [](const HostTensor& latent, const std::string& part) {
    write_safetensors(folder_ + "/bad.safetensors", {{"latents", latent.view()}});
    for (const bool decode : {true, false}) {
      SampleJob j = job(decode ? std::vector<std::string>{} : std::vector<std::string>{"a"}, "bad.mp4");
      (decode ? j.decode : j.init_latents) = folder_ + "/bad.safetensors";
      try {
        run_sample_job(j, {});
        ADD_FAILURE() << "accepted; expected '" << part << "'";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      }
      EXPECT_FALSE(fs::exists(folder_ + "/bad.mp4"));
    }
  };
  refused(HostTensor(DType::kF32, {1, 16, 0, 4, 4}), "bad.safetensors: latents is [16, 0, 4, 4]: empty");
  refused(HostTensor(DType::kI32, {1, 16, 1, 4, 4}), "bad.safetensors: \"latents\": cannot convert I32 to F32");
  HostTensor nan(DType::kF32, {1, 16, 1, 4, 4});
  nan.f32()[7] = std::nanf("");
  refused(nan, "not finite");
}

TEST_F(SampleJobs, FoldersOfPicturesMayHaveDotsInTheirNames) {
  SampleJob j = job({"a dog. it runs", "../up"}, "dots");
  j.format = "png";
  const auto report = run_sample_job(j, {});
  ASSERT_EQ(report.videos.size(), 2u);
  EXPECT_EQ(report.videos[0].path, folder_ + "/dots/a dog. it runs-0");
  for (const auto& v : report.videos) EXPECT_TRUE(fs::exists(v.path + "/frame_00004.png")) << v.path;
  fs::create_directories(folder_ + "/one.two");
  run_sample_job(job({"a"}, "one.two"), {});
  EXPECT_TRUE(fs::exists(folder_ + "/one.two/frame_00004.png"));
}

TEST_F(SampleJobs, AnUnusedNegativePromptIsReported) {
  std::string warnings;
  const auto before = set_log_sink([&](LogLevel level, const std::string& text) { if (level == LogLevel::kWarning) warnings += text; });
  SampleJob j = job({"a"}, "n.gif");
  j.guidance_scale = 1;
  run_sample_job(j, {});
  EXPECT_EQ(warnings, "");
  j.negative_prompt = "blurred";
  run_sample_job(j, {});
  set_log_sink(before);
  EXPECT_NE(warnings.find("negative prompt is not used"), std::string::npos);
}

}  // namespace
}  // namespace megaslide
