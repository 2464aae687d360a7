// What the experiment measures, on inputs whose answer is known.
#include "motion_measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/temporary_folder.h"
#include "base/error.h"
#include "base/philox.h"
#include "data/cache.h"
#include "model/haar_codec.h"
#include "motion_report.h"
#include "motion_scene.h"
#include "motion_track.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

constexpr MotionSceneOptions kScene{.frames = 9, .height = 64, .width = 64, .sprites = 3};

HostTensor video_of(const MotionScene& scene, const MotionSceneOptions& o) {
  HostTensor video(DType::kF32, {3, o.frames, o.height, o.width});
  for (int64_t t = 0; t < o.frames; ++t) {
    const Picture p = scene.picture(t);
    for (int64_t i = 0; i < o.height * o.width; ++i)
      for (int64_t c = 0; c < 3; ++c) video.f32()[(c * o.frames + t) * o.height * o.width + i] = static_cast<float>(p.rgb[static_cast<size_t>(3 * i + c)]) / 127.5f - 1;
  }
  return video;
}

// Two clips, their cache, and the batch of both.
class Batches : public ::testing::Test {
 protected:
  void SetUp() override {
    ThreadPool pool(1);
    std::vector<CachedClip> clips;
    for (uint64_t i = 0; i < 2; ++i) {
      const MotionScene scene(kScene, 4, i);
      const std::string name = fmt::format("clip-{:05}", i);
      write_motion_clip(folder_.path(), name, scene, kScene);
      write_motion_displacement(folder_.path(), name, scene, token_grid(kScene, {}));
      latents_.push_back(HaarCodec().encode(pool, video_of(scene, kScene).view()));
      const HostTensor text(DType::kF32, {3, 8});
      std::filesystem::create_directories(folder_ / "cache/clips");
      write_cached_clip(folder_ / "cache", name, latents_.back().view(), text.view(), {});
      CachedClip& clip = clips.emplace_back();
      clip.key = clip.path = name, clip.caption = scene.caption(), clip.latent = latents_.back().shape();
      clip.text_rows = 3, clip.frames = 9, clip.width = clip.height = 64;
    }
    write_cache_index(folder_ / "cache", {"haar-1", "test"}, clips);
    model_.text_dim = 8, model_.text_len = 4;
    write_motion_batch(folder_ / "batch.safetensors", folder_ / "cache", folder_.path(), model_, 3);
  }

  TemporaryFolder folder_;
  ModelConfig model_;
  std::vector<HostTensor> latents_;
};

TEST_F(Batches, hold_what_is_known_of_each_token) {
  const MotionBatch batch = MotionBatch::open(folder_ / "batch.safetensors");
  EXPECT_EQ(batch.samples(), 10);
  EXPECT_EQ(batch.clips(), 2);
  EXPECT_EQ(batch.tokens(), 3 * 8 * 8);
  for (int64_t s = 0; s < 10; ++s) {
    EXPECT_NEAR(batch.sigma(s), kNoiseLevels[s % 5], 1e-6);
    const std::vector<float> clean = batch.clean(s, batch.velocity(s));
    // x and the velocity are each rounded once; the largest numbers are below 16, an ulp of which is 1e-6.
    for (size_t i = 0; i < clean.size(); ++i) ASSERT_NEAR(clean[i], latents_[static_cast<size_t>(s / 5)].f32()[i], 4e-6);
    const MotionScene scene(kScene, 4, static_cast<uint64_t>(s / 5));
    const TokenGrid g = token_grid(kScene, {});
    const std::vector<float> displacement = motion_displacement(scene, g);
    EXPECT_TRUE(std::ranges::equal(batch.displacement(s), displacement));
    for (int64_t t = 0, i = 0; t < g.frames; ++t)
      for (int64_t h = 0; h < g.height; ++h)
        for (int64_t w = 0; w < g.width; ++w, ++i) {
          const int64_t surface = scene.surface_at(g.frame_of(t), static_cast<double>(g.row_of(h)) + 0.5, static_cast<double>(g.column_of(w)) + 0.5);
          ASSERT_EQ(batch.surface(s)[static_cast<size_t>(i)], surface);
          const TokenKind kind = surface == 0 ? TokenKind::kBackground : scene.surfaces()[static_cast<size_t>(surface)].speed < 2 ? TokenKind::kSlow : TokenKind::kFast;
          ASSERT_EQ(batch.kind(s)[static_cast<size_t>(i)], static_cast<uint8_t>(kind)) << "a token a latent frame is 2 pixels a frame";
        }
  }
}

TEST_F(Batches, losses_by_kind_of_token) {
  const MotionBatch batch = MotionBatch::open(folder_ / "batch.safetensors");
  const auto n = static_cast<size_t>(element_count(batch.latent_shape()));
  std::vector<float> out;
  for (int64_t s = 0; s < batch.samples(); ++s) out.insert(out.end(), batch.velocity(s).begin(), batch.velocity(s).end());
  EXPECT_EQ(token_losses(batch, out).all.mean(), 0);
  // One token of the first sample is off by 2 in all its numbers.
  for (int64_t c = 0; c < batch.channels(); ++c)
    for (const int64_t cell : {4 * 16 + 6, 4 * 16 + 7, 5 * 16 + 6, 5 * 16 + 7}) out[static_cast<size_t>(c * 3 * 256 + cell)] += 2;
  const TokenLosses losses = token_losses(batch, out);
  const uint8_t kind = batch.kind(0)[2 * 8 + 3];
  for (uint8_t k = 0; k < 3; ++k) EXPECT_NEAR(losses.kinds[k].sum, k == kind ? 4 : 0, 1e-5) << "in fp32 numbers of a few units";
  EXPECT_EQ(losses.kinds[0].count + losses.kinds[1].count + losses.kinds[2].count, losses.all.count);
  EXPECT_EQ(losses.all.count, batch.samples() * batch.tokens());
  EXPECT_THROW(token_losses(batch, std::span(out).first(n)), Error);
}

// What follows a sprite stays more alike than what stays in place; a picture of one value is like itself everywhere.
TEST_F(Batches, cosines) {
  const MotionBatch batch = MotionBatch::open(folder_ / "batch.safetensors");
  const std::vector<float> ones(static_cast<size_t>(element_count(batch.latent_shape())), 1.0f);
  EXPECT_NEAR(still_cosine(ones, batch.latent_shape()), 1, 1e-12);
  const MeanOf same = tracked_cosine(batch, 0, ones);
  EXPECT_NEAR(same.mean(), 1, 1e-6);
  EXPECT_GT(same.count, 10);
  MeanOf followed;
  for (const int64_t s : {0, 5}) {
    const MeanOf m = tracked_cosine(batch, s, batch.clean(s, batch.velocity(s)));
    followed.sum += m.sum, followed.count += m.count;
  }
  EXPECT_GT(followed.mean(), 0.6) << "colours and coarse texture go along";
  EXPECT_LT(followed.mean(), 1);
}

TEST(Measure, tokens_are_patches_of_two_by_two) {
  std::vector<float> latent(2 * 1 * 2 * 4);
  std::iota(latent.begin(), latent.end(), 0.0f);
  EXPECT_EQ(as_tokens(latent, {2, 1, 2, 4}), (std::vector<float>{0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15}));
}

TEST(Measure, intervals) {
  const Interval three = interval_of(std::vector<double>{1, 2, 3});
  EXPECT_DOUBLE_EQ(three.mean, 2);
  EXPECT_NEAR(three.half, 4.303 / std::sqrt(3), 1e-9);  // a standard deviation of 1, two degrees of freedom
  EXPECT_TRUE(std::isnan(interval_of(std::vector<double>{5}).half));
  EXPECT_EQ(interval_of({}).n, 0);
}

TEST(Tracker, captions) {
  const auto sprites = trackable_sprites("a quick yellow disc, a fast red square, a slow white cross and a slow red disc over grey noise");
  ASSERT_EQ(sprites.size(), 1u) << "two are red, one is white";
  EXPECT_EQ(sprites[0].colour, "yellow");
  EXPECT_EQ(sprites[0].pace, "quick");
  EXPECT_EQ(sprites[0].surface, 1);
  EXPECT_TRUE(trackable_sprites("nothing over grey noise").empty());
  const MotionScene scene(kScene, 4, 0);
  for (const CaptionSprite& s : trackable_sprites(scene.caption())) {
    EXPECT_EQ(scene.surfaces().at(static_cast<size_t>(s.surface)).colour, s.colour);
    EXPECT_EQ(scene.surfaces().at(static_cast<size_t>(s.surface)).shape, s.shape);
  }
}

// A sprite alone in its clip, through the codec and back, is where its path says.
TEST(Tracker, follows_a_sprite) {
  ThreadPool pool(1);
  const MotionSceneOptions o{.frames = 21, .height = 80, .width = 80, .sprites = 1, .saturation = 0.5};
  const std::vector<int64_t> frames{0, 2, 6, 10, 14, 18};
  int64_t places = 0;
  for (uint64_t clip = 0; clip < 12; ++clip) {
    const MotionScene scene(o, 21, clip);
    const auto& s = scene.surfaces()[1];
    if (s.colour == "white") continue;
    const HaarCodec codec;
    const Track track = track_colour(codec.decode(pool, codec.encode(pool, video_of(scene, o).view()).view()).view(), s.colour, o.saturation, frames);
    for (size_t i = 0; i < frames.size(); ++i) {
      const auto t = static_cast<size_t>(frames[i]);
      // Cut by the border its middle is another.
      if (s.at_h[t] < s.radius || s.at_w[t] < s.radius || s.at_h[t] > 80 - s.radius || s.at_w[t] > 80 - s.radius) continue;
      ASSERT_TRUE(track[i]) << scene.caption();
      // The codec's colours are 4 pixels wide and its frames 4 frames long, through which a fast sprite goes 12 pixels.
      EXPECT_LT(std::hypot(track[i]->h - s.at_h[t], track[i]->w - s.at_w[t]), 4) << scene.caption();
      ++places;
    }
  }
  EXPECT_GT(places, 12);
}

TEST(Tracker, sees_nothing_in_noise) {
  const megaslide::Random random(1, RandomPurpose::kTest);
  HostTensor video(DType::kF32, {3, 1, 80, 80});
  for (int64_t i = 0; i < video.elements(); ++i) video.f32()[i] = static_cast<float>(random.normal(0, static_cast<uint64_t>(i)));
  const std::vector<int64_t> frames{0};
  for (const char* colour : {"red", "blue", "green", "yellow", "purple"}) EXPECT_FALSE(track_colour(video.view(), colour, 1, frames)[0]) << colour;
}

TEST(Tracker, smooth_paths) {
  Track track;
  for (int t = 0; t < 6; ++t) track.push_back(Place{3.0 + 2 * t - 0.5 * t * t, 40.0 - t});
  EXPECT_NEAR(*path_residual(track), 0, 1e-9);
  track[2].reset();
  EXPECT_NEAR(*path_residual(track), 0, 1e-9) << "one may be missing";
  track[3].reset();
  EXPECT_FALSE(path_residual(track)) << "two may not";
  EXPECT_NEAR(*mean_step(track), (std::hypot(1.5, 1) + std::hypot(2.5, 1)) / 2, 1e-9);
  // Left and right of a line by x = 1, −1, 1, −1, 1, −1, whose squares are 6. With u = t − 2.5 the best parabola takes away
  // (Σ u·x)² / Σ u² = 9 / 17.5 of them; what is left is of 2 axes with 6 − 3 numbers each.
  Track zigzag;
  for (int t = 0; t < 6; ++t) zigzag.push_back(Place{10, 20.0 + 5 * t + (t % 2 == 0 ? 1 : -1)});
  EXPECT_NEAR(*path_residual(zigzag), std::sqrt((6 - 9 / 17.5) / 6), 1e-9);
}

TEST(Report, work_of_attention) {
  ModelConfig c;
  c.dim = 64, c.heads = 4, c.ffn_dim = 128, c.layers = 2, c.text_dim = 64, c.text_len = 16;
  EXPECT_DOUBLE_EQ(attention_flops(c, 6, 10, 10), 4 * 64 * 600);
  c.attention.kind = AttentionKind::kDsa;
  c.attention.dsa.kernel = {3, 7, 7}, c.attention.dsa.mode = DsaMode::kRigid, c.attention.dsa.groups = 2;
  EXPECT_DOUBLE_EQ(attention_flops(c, 6, 10, 10), 4 * 64 * 147 + 54 * 64 + 2 * 64 * 6);
}

TEST(Report, says_what_happened) {
  MotionExperiment e;
  for (const char* variant : {"zero-377", "full-motion"})
    for (int64_t seed = 1; seed <= 3; ++seed) {
      MotionRun r;
      r.variant = variant, r.seed = seed, r.start = 2, r.steps = {10, 20}, r.validation = {1.5, 1.25}, r.attention_flops = 40000;
      r.losses.all.add(std::string(variant) == "zero-377" ? 1.5 + 0.1 * static_cast<double>(seed) : 1.25 + 0.1 * static_cast<double>(seed));
      e.runs.push_back(r);
    }
  e.runs[1].validation.back() = 2.5;
  EXPECT_TRUE(e.runs[1].diverged());
  EXPECT_FALSE(e.runs[0].diverged());
  e.runs[0].finite = false;
  EXPECT_TRUE(e.runs[0].diverged());
  const std::string text = motion_report(e);
  EXPECT_NE(text.find("seed 1, 2 |"), std::string::npos) << text;
  EXPECT_NE(text.find("| full-motion | -0.250 ± 0.000 |"), std::string::npos) << text;
  EXPECT_NE(text.find("1.700 ± 0.248"), std::string::npos) << text;  // 4.303 · 0.1 / √3
  const std::string chart = motion_chart(e);
  EXPECT_NE(chart.find(">full-motion</text>"), std::string::npos);
  EXPECT_EQ(chart.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace megaslide
