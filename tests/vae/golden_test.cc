// The autoencoders against diffusers: encode, decode and every stage (tests/data/vae/README.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kernels/tile/unit.h"
#include "model/model_parts.h"
#include "tests/vae/vae_files.h"

namespace megaslide {
namespace {
using namespace testing_support;

// Sums in another order and folded upsampling kernels: as far from the fp64 run as the library's own fp32 run is, give
// or take a factor of three (measured: 0.6 to 1.6).
constexpr double kNoiseFactor = 3;
// bf16: no worse than diffusers' own bf16 run of these networks, which is 0.7% to 1.28% off (measured with 0.42.1; its
// norms are fp32 like ours, but sums are rounded before them). Here 0.2% to 0.96%: about sqrt(40) roundings of 0.11%.
constexpr double kBf16Error = 0.0128;

struct Golden {
  Golden(const std::string& weights_, const std::string& io_, const std::string& meta_, const std::string& stages_ = {})
      : weights(weights_),
        io(SafetensorsFile::open(io_)),
        stages(SafetensorsFile::open(stages_.empty() ? io_ : stages_)),
        meta(read_json(meta_)) {}
  double noise(const std::string& name) const { return meta["noise_fp32"][name]; }
  bool has(const std::string& name) const { return io.find(name) != nullptr; }

  std::string weights;
  SafetensorsFile io, stages;
  nlohmann::json meta;
};

Golden small(const std::string& kind) {
  return {vae_data(kind), vae_data(kind) + "/io.safetensors", vae_data(kind) + "/meta.json"};
}

struct Measured {
  const Golden& g;
  double limit;  // 0: the noise of the tensor
  void near(const HostTensor& got, const std::string& name, const SafetensorsFile& file) const {
    if (!file.find(name)) return;
    const HostTensor want = golden(file, name);
    EXPECT_EQ(got.shape(), want.shape()) << name;
    const double d = distance(got, want), most = limit > 0 ? limit : kNoiseFactor * g.noise(name);
    EXPECT_LE(d, most) << name << ": " << d / g.noise(name) << " times the noise";
  }
  void near(const HostTensor& got, const std::string& name) const { near(got, name, g.io); }
};

HostTensor denormalised(const HostTensor& z, const WanVaeConfig& c, bool invert) {
  HostTensor out = z.clone();
  const int64_t plane = z.elements() / z.shape()[0];
  for (int64_t i = 0; i < z.elements(); ++i) {
    const float mean = c.latents_mean[static_cast<size_t>(i / plane)],
                deviation = c.latents_std[static_cast<size_t>(i / plane)];
    out.f32()[i] = invert ? (z.f32()[i] - mean) / deviation : z.f32()[i] * deviation + mean;
  }
  return out;
}

void compare(const Golden& g, DType dtype, int threads) {
  ThreadPool pool(threads);
  const WanVae vae(g.weights, "test", {.decode_dtype = dtype, .encode_dtype = dtype, .tiling = {}});
  const Measured m{g, dtype == DType::kBF16 ? kBf16Error : 0};
  for (const std::string tag : {"f1.", "f5.", "f9."}) {
    if (g.has(tag + "video")) {
      const VideoCodec::Encoded e = vae.encode_moments(pool, golden(g.io, tag + "video").view());
      m.near(e.mean, tag + "mean");
      m.near(e.logvar, tag + "logvar");
      m.near(e.normalised, tag + "mean_normalised");
    }
    if (g.has(tag + "latent_normalised")) {
      const HostTensor z = golden(g.io, tag + "latent_normalised");
      m.near(clamped(vae.decode(pool, z.view())), tag + "frames");
      m.near(vae.run_decoder(pool, z.view()), tag + "decoder_raw");
    }
    if (g.has(tag + "roundtrip"))
      m.near(clamped(vae.decode(pool, denormalised(golden(g.io, tag + "mean"), vae.config(), true).view())),
             tag + "roundtrip");
  }
}

// Frames of a stage joined to [C, T, H, W].
HostTensor joined(const std::vector<HostTensor>& frames) {
  const Shape& s = frames[0].shape();
  const auto t = static_cast<int64_t>(frames.size()), plane = s[1] * s[2];
  HostTensor out(DType::kF32, {s[0], t, s[1], s[2]});
  for (int64_t c = 0; c < s[0]; ++c)
    for (int64_t f = 0; f < t; ++f)
      std::copy_n(frames[static_cast<size_t>(f)].f32() + c * plane, plane, out.f32() + (c * t + f) * plane);
  return out;
}

void compare_stages(const Golden& g, DType dtype) {
  ThreadPool pool(2);
  const WanVae vae(g.weights, "test", {.decode_dtype = dtype, .encode_dtype = dtype, .tiling = {}});
  std::map<std::string, std::vector<HostTensor>> seen;
  const WanVaeObserver observer = [&](const std::string& stage, const HostTensor& frame) {
    seen[stage].push_back(frame.clone());
  };
  vae.run_encoder(pool, golden(g.io, "f5.video").view(), &observer);
  vae.run_decoder(pool, golden(g.io, "f5.latent_normalised").view(), &observer);
  const Measured m{g, dtype == DType::kBF16 ? kBf16Error : 0};
  int stages = 0;
  for (const TensorInfo& info : g.stages.tensors()) {
    if (!info.name.starts_with("f5.stage.")) continue;
    const auto i = seen.find(info.name.substr(9));
    ASSERT_NE(i, seen.end()) << info.name;
    m.near(joined(i->second), info.name, g.stages);
    ++stages;
  }
  EXPECT_GE(stages, 10);
}

TEST(Golden, Vae21) { compare(small("w21"), DType::kF32, 2); }
TEST(Golden, Vae22) { compare(small("w22"), DType::kF32, 2); }
TEST(Golden, Vae21InBf16) { compare(small("w21"), DType::kBF16, 2); }
TEST(Golden, Vae22InBf16) { compare(small("w22"), DType::kBF16, 2); }
TEST(Golden, Vae21InBf16OnOtherUnits) {
  for (const TileUnit unit : {TileUnit::kAvx512, TileUnit::kNone}) {
    limit_tile_unit(unit);
    compare(small("w21"), DType::kBF16, 2);
  }
  limit_tile_unit(TileUnit::kAmx);
}
TEST(Golden, Stages21) { compare_stages(small("w21"), DType::kF32); }
TEST(Golden, Stages22) { compare_stages(small("w22"), DType::kF32); }
TEST(Golden, Stages21InBf16) { compare_stages(small("w21"), DType::kBF16); }
TEST(Golden, Stages22InBf16) { compare_stages(small("w22"), DType::kBF16); }

void whole(const std::string& kind) {
  const char* folder = std::getenv("MEGASLIDE_GOLDEN");
  if (!folder) GTEST_SKIP() << "MEGASLIDE_GOLDEN names no folder";
  const std::string at = std::string(folder) + "/wan/vae/" + kind;
  const Golden g(at + "/diffusers", at + "/io.safetensors", at + "/meta.json", at + "/stages.safetensors");
  compare(g, DType::kF32, 2);
  compare(g, DType::kBF16, 2);
  compare_stages(g, DType::kF32);
  compare_stages(g, DType::kBF16);
}
TEST(WholeGolden, Vae21) { whole("w21"); }
TEST(WholeGolden, Vae22) { whole("w22"); }

// The autoencoder of the tiny pipeline, read as a model's part: from its last latents to its frames.
TEST(WholeGolden, PipelineFrames) {
  const char* folder = std::getenv("MEGASLIDE_GOLDEN");
  if (!folder) GTEST_SKIP() << "MEGASLIDE_GOLDEN names no folder";
  ModelParts parts;
  parts.config.codec = CodecKind::kWan21Vae;
  parts.folder = std::string(folder) + "/wan/pipeline/model";
  const auto codec = make_codec(parts);
  const SafetensorsFile run = SafetensorsFile::open(std::string(folder) + "/wan/pipeline/run.safetensors");
  ThreadPool pool(2);
  for (const std::string steps : {"steps4", "steps10"}) {
    const HostTensor all = HostTensor::from(run.view(steps + ".latents"));  // [n, 16, 3, 6, 8], the last is final
    Shape shape = all.shape();
    shape.erase(shape.begin());
    TensorView last{DType::kF32, shape, nullptr};
    last.data = all.data() + all.bytes() - last.bytes();
    const HostTensor video = golden(run, steps + ".video"), got = clamped(codec->decode(pool, last));
    EXPECT_EQ(got.shape(), video.shape());
    EXPECT_LE(distance(got, video), 3 * 6e-7);  // the noise of the tiny autoencoders
  }
}

}  // namespace
}  // namespace megaslide
