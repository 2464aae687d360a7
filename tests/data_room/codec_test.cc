#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/philox.h"
#include "data/clip.h"
#include "model/haar_codec.h"

namespace megaslide {
namespace {

HostTensor random_video(int64_t f, int64_t h, int64_t w) {
  HostTensor v(DType::kF32, {3, f, h, w});
  const Random random(7, RandomPurpose::kTest);
  for (int64_t i = 0; i < v.elements(); ++i) v.f32()[i] = static_cast<float>(2 * random.uniform(0, static_cast<uint64_t>(i)) - 1);
  return v;
}

float at(const HostTensor& v, int64_t c, int64_t t, int64_t y, int64_t x) {
  const Shape& s = v.shape();
  return v.f32()[((c * s[1] + t) * s[2] + y) * s[3] + x];
}

double luma(const HostTensor& v, int64_t t, int64_t y, int64_t x) {
  return 0.299 * at(v, 0, t, y, x) + 0.587 * at(v, 1, t, y, x) + 0.114 * at(v, 2, t, y, x);
}

// The four orthonormal functions written out, in double.
constexpr double kFunctions[4][4] = {{.5, .5, .5, .5}, {.5, .5, -.5, -.5}, {.5, -.5, .5, -.5}, {.5, -.5, -.5, .5}};

TEST(HaarCodec, TableIsDistinctAndHasTheLowest) {
  for (size_t i = 0; i < kHaarTable.size(); ++i) {
    EXPECT_GT(kHaarTable[i].deviation, 0);
    for (size_t j = 0; j < i; ++j)
      EXPECT_FALSE(kHaarTable[i].plane == kHaarTable[j].plane && kHaarTable[i].t == kHaarTable[j].t && kHaarTable[i].h == kHaarTable[j].h &&
                   kHaarTable[i].w == kHaarTable[j].w);
  }
}

TEST(HaarCodec, CoefficientsFollowTheDefinition) {
  ThreadPool pool(1);
  const HostTensor v = random_video(9, 8, 12);
  const auto e = HaarCodec().encode_moments(pool, v.view());
  ASSERT_EQ(e.mean.shape(), (Shape{16, 3, 2, 3}));
  for (size_t c = 0; c < kHaarTable.size(); ++c) {
    const HaarChannel& k = kHaarTable[c];
    for (int64_t bt = 0; bt < 3; ++bt) {
      double wanted = 0;
      for (int64_t t = 0; t < 4; ++t)
        for (int64_t y = 0; y < 4; ++y)
          for (int64_t x = 0; x < 4; ++x) {
            const int64_t frame = std::max<int64_t>(bt * 4 + t - 3, 0);
            const double l = luma(v, frame, 4 + y, 8 + x);
            const double p = k.plane == 0 ? l : k.plane == 1 ? (at(v, 2, frame, 4 + y, 8 + x) - l) / 1.772 : (at(v, 0, frame, 4 + y, 8 + x) - l) / 1.402;
            wanted += p * kFunctions[k.t][t] * kFunctions[k.h][y] * kFunctions[k.w][x];
          }
      const int64_t i = ((static_cast<int64_t>(c) * 3 + bt) * 2 + 1) * 3 + 2;
      // 64 terms of at most 1 in fp32: 64 · 2^-24 · 8 is below 4e-5.
      EXPECT_NEAR(e.mean.f32()[i], wanted, 4e-5) << c;
      EXPECT_NEAR(e.normalised.f32()[i], (wanted - k.mean) / k.deviation, 4e-5 / k.deviation) << c;
      EXPECT_EQ(e.logvar.f32()[i], HaarCodec::kLogVariance);
    }
  }
}

TEST(HaarCodec, EncodeUndoesDecode) {
  // The kept functions are orthonormal, so every latent whose first frame is still survives decode and encode.
  ThreadPool pool(2);
  HostTensor latent(DType::kF32, {16, 3, 4, 4});
  const Random random(3, RandomPurpose::kTest);
  for (int64_t c = 0; c < 16; ++c)
    for (int64_t i = 0; i < 48; ++i) {
      const bool moves = kHaarTable[static_cast<size_t>(c)].t != 0;
      latent.f32()[c * 48 + i] = moves && i < 16 ? 0.0f : static_cast<float>(random.normal(static_cast<uint64_t>(c), static_cast<uint64_t>(i)));
    }
  const HaarCodec codec;
  const HostTensor back = codec.encode(pool, codec.decode(pool, latent.view()).view());
  for (int64_t i = 0; i < latent.elements(); ++i) {
    const float deviation = kHaarTable[static_cast<size_t>(i / 48)].deviation;
    EXPECT_NEAR(back.f32()[i], latent.f32()[i], 2e-5f / deviation) << i;  // pixels of up to 4, 64 terms
  }
}

TEST(HaarCodec, ConstantVideoIsExact) {
  ThreadPool pool(2);
  for (const float level : {-1.0f, 0.0f, 0.3f, 1.0f}) {
    HostTensor v(DType::kF32, {3, 5, 8, 8});
    for (int64_t i = 0; i < v.elements(); ++i) v.f32()[i] = i / (5 * 64) == 1 ? -level : level;
    const HaarCodec codec;
    const HostTensor back = codec.decode(pool, codec.encode(pool, v.view()).view());
    ASSERT_EQ(back.shape(), v.shape());
    for (int64_t i = 0; i < v.elements(); ++i) ASSERT_NEAR(back.f32()[i], v.f32()[i], 1e-5) << level;
  }
}

TEST(HaarCodec, FirstFrameStandsAlone) {
  ThreadPool pool(1);
  const HostTensor v = random_video(5, 8, 8);
  HostTensor still(DType::kF32, {3, 1, 8, 8});
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t i = 0; i < 64; ++i) still.f32()[c * 64 + i] = v.f32()[c * 5 * 64 + i];
  const HaarCodec codec;
  const HostTensor a = codec.encode(pool, v.view()), b = codec.encode(pool, still.view());
  for (int64_t c = 0; c < 16; ++c)
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(a.f32()[c * 8 + i], b.f32()[c * 4 + i]);
}

TEST(HaarCodec, ThreadsDoNotMatter) {
  ThreadPool one(1), many(4);
  const HostTensor v = random_video(9, 24, 20);
  const HaarCodec codec;
  const HostTensor a = codec.encode(one, v.view()), b = codec.encode(many, v.view());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())), 0);
  const HostTensor c = codec.decode(one, a.view()), d = codec.decode(many, a.view());
  EXPECT_EQ(std::memcmp(c.data(), d.data(), static_cast<size_t>(c.bytes())), 0);
}

TEST(HaarCodec, RefusesOtherShapes) {
  ThreadPool pool(1);
  const HaarCodec codec;
  for (const Shape& s : {Shape{3, 4, 8, 8}, Shape{3, 5, 6, 8}, Shape{1, 5, 8, 8}, Shape{3, 5, 8}, Shape{3, 0, 8, 8}})
    EXPECT_THROW(codec.encode(pool, HostTensor(DType::kF32, s).view()), Error) << to_string(s);
  EXPECT_THROW(codec.decode(pool, HostTensor(DType::kF32, {15, 1, 2, 2}).view()), Error);
}

TEST(HaarCodec, RealClipsKeepTheirPictures) {
  ThreadPool pool(2);
  SelectionRule rule;
  rule.buckets = {{64, 64, 17}};
  double square[16] = {}, cells = 0;
  for (const char* name : {"bunny-wakes", "bunny-smiles", "street", "tree"}) {
    const LoadedClip clip = load_clip(std::string(MEGASLIDE_TEST_DATA) + "/clips/" + name + ".mp4", rule);
    ASSERT_EQ(clip.video.shape(), (Shape{3, 17, 64, 64})) << name << ": " << clip.facts.reason;
    const HaarCodec codec;
    const HostTensor latent = codec.encode(pool, clip.video.view()), back = codec.decode(pool, latent.view());
    double sum = 0;
    for (int64_t i = 0; i < back.elements(); ++i) {
      const double d = std::clamp(back.f32()[i], -1.0f, 1.0f) - clip.video.f32()[i];
      sum += d * d;
    }
    // Peak to peak is 2.
    EXPECT_GE(10 * std::log10(4 * static_cast<double>(back.elements()) / sum), 27) << name;
    const int64_t per_channel = latent.elements() / 16;
    for (int64_t i = 0; i < latent.elements(); ++i) square[i / per_channel] += latent.f32()[i] * latent.f32()[i];
    cells += static_cast<double>(per_channel);
  }
  // The stored constants bring every channel near unit size, as the noise it is mixed with.
  for (int c = 0; c < 16; ++c) {
    EXPECT_GT(std::sqrt(square[c] / cells), 0.4) << c;
    EXPECT_LT(std::sqrt(square[c] / cells), 1.6) << c;
  }
}

}  // namespace
}  // namespace megaslide
