// The autoencoders as codecs: streams, threads, tiles, sizes, identities.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "model/model_parts.h"
#include "tests/vae/vae_files.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;
using namespace testing_support;

WanVae open(const std::string& kind, const WanVaeOptions& options = {}) {
  return WanVae(vae_data(kind), "test", options);
}

bool same_bits(const HostTensor& a, const HostTensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

// Causality and streaming at once: what comes out of the first frames of a clip does not know how long the clip is.
// With the first frame alone, nothing of a stream's state is used; so every longer run equals the one that had it all.
TEST(WanVae, FirstFramesDoNotDependOnLaterOnes) {
  ThreadPool pool(2);
  for (const std::string kind : {"w21", "w22"})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const WanVae vae = open(kind, {.decode_dtype = dtype, .encode_dtype = dtype, .tiling = {}});
      const int64_t s = vae.spatial_stride();
      const HostTensor video = random_tensor({3, 17, 2 * s, 3 * s}, 1, 0.5);
      const HostTensor latent = random_tensor({vae.channels(), 5, 2, 3}, 2);
      const HostTensor moments = vae.run_encoder(pool, video.view()), frames = vae.run_decoder(pool, latent.view());
      EXPECT_EQ(moments.shape(), (Shape{2 * vae.channels(), 5, 2, 3}));
      for (int64_t t = 1; t <= 4; ++t) {
        EXPECT_TRUE(same_bits(vae.run_encoder(pool, first_frames(video, 4 * t - 3).view()), first_frames(moments, t)))
            << kind << t;
        EXPECT_TRUE(same_bits(vae.run_decoder(pool, first_frames(latent, t).view()), first_frames(frames, 4 * t - 3)))
            << kind << t;
      }
    }
}

TEST(WanVae, ThreadsDoNotChangeABit) {
  ThreadPool one(1), three(3);
  for (const std::string kind : {"w21", "w22"})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const WanVae vae = open(kind, {.decode_dtype = dtype, .encode_dtype = dtype, .tiling = {}});
      const WanVae other =
          open(kind, {.decode_dtype = dtype, .encode_dtype = dtype, .tiling = {}});  // its weights are packed by three
      const int64_t s = vae.spatial_stride();
      const HostTensor video = random_tensor({3, 5, 5 * s, 3 * s}, 1, 0.5),
                       latent = random_tensor({vae.channels(), 2, 5, 3}, 2);
      EXPECT_TRUE(same_bits(vae.run_encoder(one, video.view()), other.run_encoder(three, video.view())));
      EXPECT_TRUE(same_bits(vae.decode(one, latent.view()), other.decode(three, latent.view())));
    }
}

// Encoding is fp32 whatever the decoder computes in.
TEST(WanVae, EncodesInFp32UnlessToldOtherwise) {
  ThreadPool pool(2);
  const HostTensor video = random_tensor({3, 1, 16, 16}, 1, 0.5);
  EXPECT_TRUE(same_bits(open("w21").encode(pool, video.view()),
                        open("w21", {.decode_dtype = DType::kBF16}).encode(pool, video.view())));
}

TEST(WanVae, WorkingSetDoesNotGrowWithTheClip) {
  for (const std::string kind : {"w21", "w22"}) {
    const WanVae vae = open(kind), tiled = open(kind, {.tiling = {.enabled = true, .tile = 64, .stride = 48}});
    EXPECT_GT(vae.working_bytes(1, 64, 96), 0);
    EXPECT_EQ(vae.working_bytes(81, 64, 96), vae.working_bytes(1, 64, 96));
    EXPECT_GT(vae.working_bytes(1, 480, 832), 40 * vae.working_bytes(1, 64, 64));
    EXPECT_EQ(tiled.working_bytes(81, 64, 64), vae.working_bytes(81, 64, 64));
    // A tile of the encoder holds 64 cells, of two pixels in 2.2; pixels of a tile and its seams are kept for all
    // frames.
    EXPECT_LE(tiled.working_bytes(81, 480, 832),
              5 * vae.working_bytes(81, 64, 64) + 12 * 81 * (64 * 64 + 16 * (64 + 832)));
  }
}

// C.6 as diffusers does it: all tiles first, each blended in place with its neighbours, then cut and joined.
struct Tiles {
  std::vector<std::vector<HostTensor>> rows;
  int64_t blend, stride;

  float& at(HostTensor& t, int64_t p, int64_t y, int64_t x) const {
    return t.f32()[(p * t.shape()[2] + y) * t.shape()[3] + x];
  }
  void blend_all() {
    for (size_t i = 0; i < rows.size(); ++i)
      for (size_t j = 0; j < rows[i].size(); ++j) {
        HostTensor& b = rows[i][j];
        const int64_t planes = b.shape()[0] * b.shape()[1], h = b.shape()[2], w = b.shape()[3];
        if (i > 0) {
          HostTensor& a = rows[i - 1][j];
          const int64_t n = std::min({a.shape()[2], h, blend});
          for (int64_t p = 0; p < planes; ++p)
            for (int64_t y = 0; y < n; ++y)
              for (int64_t x = 0; x < w; ++x) {
                const float share = static_cast<float>(y) / static_cast<float>(n);
                at(b, p, y, x) = at(a, p, a.shape()[2] - n + y, x) * (1 - share) + at(b, p, y, x) * share;
              }
        }
        if (j > 0) {
          HostTensor& a = rows[i][j - 1];
          const int64_t n = std::min({a.shape()[3], w, blend});
          for (int64_t p = 0; p < planes; ++p)
            for (int64_t y = 0; y < h; ++y)
              for (int64_t x = 0; x < n; ++x) {
                const float share = static_cast<float>(x) / static_cast<float>(n);
                at(b, p, y, x) = at(a, p, y, a.shape()[3] - n + x) * (1 - share) + at(b, p, y, x) * share;
              }
        }
      }
  }
  HostTensor joined(int64_t height, int64_t width) {
    const Shape& s = rows[0][0].shape();
    HostTensor out(DType::kF32, {s[0], s[1], height, width});
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x) {
        HostTensor& t = rows[static_cast<size_t>(y / stride)][static_cast<size_t>(x / stride)];
        for (int64_t p = 0; p < s[0] * s[1]; ++p) at(out, p, y, x) = at(t, p, y % stride, x % stride);
      }
    return out;
  }
};

HostTensor crop(const HostTensor& t, int64_t y, int64_t x, int64_t h, int64_t w) {
  const Shape& s = t.shape();
  h = std::min(h, s[2] - y);
  w = std::min(w, s[3] - x);
  HostTensor out(DType::kF32, {s[0], s[1], h, w});
  for (int64_t p = 0; p < s[0] * s[1]; ++p)
    for (int64_t r = 0; r < h; ++r)
      std::copy_n(t.f32() + (p * s[2] + y + r) * s[3] + x, w, out.f32() + (p * h + r) * w);
  return out;
}

void check_tiles(const std::string& kind, int64_t patch) {
  ThreadPool pool(2);
  const VaeTiling tiling{.enabled = true, .tile = 64, .stride = 48};
  const WanVae plain = open(kind), tiled = open(kind, {.tiling = tiling});
  const int64_t s = plain.spatial_stride(), c = plain.channels();

  // Decode: 12 pixels of 2.2 are 6 patches; both directions end in a small tile.
  const int64_t h = 112 / s, w = 160 / s;
  const HostTensor latent = random_tensor({c, 2, h, w}, 3);
  Tiles d{{}, 16 / patch, 48 / patch};
  for (int64_t y = 0; y < h; y += 48 / s) {
    d.rows.emplace_back();
    for (int64_t x = 0; x < w; x += 48 / s)
      d.rows.back().push_back(plain.run_decoder(pool, crop(latent, y, x, 64 / s, 64 / s).view()));
  }
  d.blend_all();
  const HostTensor want = d.joined(112 / patch, 160 / patch);
  const HostTensor got = tiled.decode(pool, latent.view());
  ASSERT_EQ(got.shape(), (Shape{3, 5, 112, 160}));
  int64_t differing = 0;
  for (int64_t p = 0; p < 3; ++p)
    for (int64_t f = 0; f < 5; ++f)
      for (int64_t y = 0; y < 112; ++y)
        for (int64_t x = 0; x < 160; ++x) {
          const int64_t channel = (p * patch + x % patch) * patch + y % patch;
          const float v = want.f32()[((channel * 5 + f) * (112 / patch) + y / patch) * (160 / patch) + x / patch];
          differing += got.f32()[((p * 5 + f) * 112 + y) * 160 + x] != v;
        }
  EXPECT_EQ(differing, 0);
  EXPECT_GT(distance(got, plain.decode(pool, latent.view())), 1e-6) << "tiles differ from the whole frame";

  // Encode: a tile is 64 cells, of `patch` pixels each.
  const HostTensor video = random_tensor({3, 5, 112 * patch, 160 * patch}, 4, 0.5);
  const int64_t cells = s / patch;
  Tiles e{{}, 16 / cells, 48 / cells};
  for (int64_t y = 0; y < 112; y += 48) {
    e.rows.emplace_back();
    for (int64_t x = 0; x < 160; x += 48)
      e.rows.back().push_back(
          plain.run_encoder(pool, crop(video, y * patch, x * patch, 64 * patch, 64 * patch).view()));
  }
  e.blend_all();
  const HostTensor moments = e.joined(112 / cells, 160 / cells);
  const VideoCodec::Encoded got_e = tiled.encode_moments(pool, video.view());
  ASSERT_EQ(got_e.mean.elements() * 2, moments.elements());
  EXPECT_EQ(std::memcmp(got_e.mean.data(), moments.data(), static_cast<size_t>(got_e.mean.bytes())), 0);
  EXPECT_EQ(
      std::memcmp(got_e.logvar.data(), moments.data() + got_e.mean.bytes(), static_cast<size_t>(got_e.mean.bytes())),
      0);
}

TEST(Tiling, Vae21EqualsTheDefinition) { check_tiles("w21", 1); }
TEST(Tiling, Vae22EqualsTheDefinition) { check_tiles("w22", 2); }

TEST(Tiling, FramesThatFitATileAreNotTiled) {
  ThreadPool pool(2);
  const HostTensor latent = random_tensor({16, 2, 8, 5}, 5);
  EXPECT_TRUE(
      same_bits(open("w21", {.tiling = {.enabled = true, .tile = 64, .stride = 48}}).decode(pool, latent.view()),
                open("w21").decode(pool, latent.view())));
}

// The error of `body`, or an empty text.
template <class F>
std::string complaint(F body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage) << e.what();
    EXPECT_FALSE(e.remedy().empty()) << e.what();
    return e.what();
  }
  return {};
}

TEST(WanVae, IdentityNamesKindAndWeightsWithoutReadingThem) {
  ModelParts parts;
  parts.config.codec = CodecKind::kWan21Vae;
  const TemporaryFolder folder;
  const std::string& root = folder.path();
  for (const std::string f : {"config.json", "diffusion_pytorch_model.safetensors"}) folder.copy(vae_data("w21") + "/" + f, "vae/" + f);
  parts.folder = root;
  const std::string identity = codec_identity(parts);
  EXPECT_TRUE(identity.starts_with("wan2.1-vae:")) << identity;
  const auto codec = make_codec(parts);
  EXPECT_EQ(codec->identity(), identity);
  EXPECT_EQ(codec->channels(), 16);
  EXPECT_EQ(codec->spatial_stride(), 8);
  EXPECT_EQ(codec->temporal_stride(), 4);
  parts.config.codec = CodecKind::kWan22Vae;
  EXPECT_NE(complaint([&] { make_codec(parts); }).find("2.1 kind"), std::string::npos);
  parts.config.codec = CodecKind::kWan21Vae;
  // Damaged beyond reading, but known by its hash.
  parts.sha256["vae/diffusion_pytorch_model.safetensors"] = std::string(64, 'a');
  std::ofstream(root + "/vae/diffusion_pytorch_model.safetensors") << "nothing";
  EXPECT_NE(codec_identity(parts), identity);
  parts.folder.clear();
  EXPECT_THROW(codec_identity(parts), Error);
}

TEST(WanVae, RefusesWhatDoesNotFit) {
  ThreadPool pool(2);
  const WanVae vae = open("w21");
  const auto encode = [&](Shape s) {
    HostTensor v(DType::kF32, std::move(s));
    return complaint([&] { vae.encode(pool, v.view()); });
  };
  EXPECT_NE(encode({3, 4, 16, 16}).find("4k+1"), std::string::npos);
  EXPECT_NE(encode({3, 0, 16, 16}).find("0 frames"), std::string::npos);
  EXPECT_NE(encode({3, 1, 20, 16}).find("multiples of 8"), std::string::npos);
  HostTensor video(DType::kF32, {3, 5, 16, 16});
  video.f32()[(1 * 5 + 2) * 256 + 3 * 16 + 4] = NAN;
  const std::string text = complaint([&] { vae.encode(pool, video.view()); });
  EXPECT_NE(text.find("channel 1, frame 2, row 3, column 4"), std::string::npos) << text;
  HostTensor latent(DType::kF32, {16, 1, 2, 2});
  latent.f32()[5] = -INFINITY;
  EXPECT_NE(complaint([&] { vae.decode(pool, latent.view()); }).find("infinite in channel 1"), std::string::npos);
  HostTensor narrow(DType::kF32, {15, 1, 2, 2});
  EXPECT_THROW(vae.decode(pool, narrow.view()), Error);
  EXPECT_NE(
      complaint([&] { open("w21", {.tiling = {.enabled = true, .tile = 60, .stride = 48}}); }).find("tiles of 60"),
      std::string::npos);
  EXPECT_NE(complaint([&] { open("w21", {.tiling = {.enabled = true, .tile = 64, .stride = 0}}); }).find("tiles"),
            std::string::npos);
}

}  // namespace
}  // namespace megaslide
