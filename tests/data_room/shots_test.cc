// Cuts in clips put together from real ones, and none in the real ones.
#include "data/shots.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "base/philox.h"
#include "data/clip.h"

namespace megaslide {
namespace {

HostTensor clip(const std::string& name) {
  SelectionRule rule;
  rule.buckets = {{64, 48, 0}};
  rule.max_frames = 33;
  return load_clip(MEGASLIDE_TEST_DATA "/clips/" + name + ".mp4", rule).video;
}

struct Piece {
  const HostTensor& video;
  int64_t first, count;
};

HostTensor joined(const std::vector<Piece>& pieces) {
  int64_t frames = 0;
  for (const Piece& p : pieces) frames += p.count;
  const int64_t plane = pieces[0].video.shape()[2] * pieces[0].video.shape()[3];
  HostTensor out(DType::kF32, {3, frames, pieces[0].video.shape()[2], pieces[0].video.shape()[3]});
  for (int64_t c = 0; c < 3; ++c) {
    float* to = out.f32() + c * frames * plane;
    for (const Piece& p : pieces) {
      std::memcpy(to, p.video.f32() + (c * p.video.shape()[1] + p.first) * plane, static_cast<size_t>(p.count * plane) * sizeof(float));
      to += p.count * plane;
    }
  }
  return out;
}

using Cuts = std::vector<int64_t>;

TEST(Shots, RealClipsAreOneShotEach) {
  for (const char* name : {"bunny-smiles", "bunny-wakes", "street", "tree"}) EXPECT_EQ(find_cuts(clip(name).view()), Cuts{}) << name;
}

TEST(Shots, EveryPairOfRealClipsAtEveryPlace) {
  const std::vector<HostTensor> clips = [] {
    std::vector<HostTensor> all;
    for (const char* name : {"bunny-smiles", "bunny-wakes", "street", "tree"}) all.push_back(clip(name));
    return all;
  }();
  for (const HostTensor& a : clips)
    for (const HostTensor& b : clips) {
      if (&a == &b) continue;
      for (const int64_t at : {1, 2, 3, 8, 14, 15, 16}) EXPECT_EQ(find_cuts(joined({{a, 5, at}, {b, 9, 17 - at}}).view()), Cuts{at}) << at;
    }
  EXPECT_EQ(find_cuts(joined({{clips[0], 0, 6}, {clips[1], 0, 7}, {clips[2], 3, 8}}).view()), (Cuts{6, 13}));
}

TEST(Shots, AFlashIsNoCut) {
  const HostTensor tree = clip("tree");
  HostTensor flash = joined({{tree, 0, 17}});
  const int64_t plane = 64 * 48;
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t i = 0; i < plane; ++i) {
      float& x = flash.f32()[(c * 17 + 8) * plane + i];
      x = std::min(1.0f, x + 1.2f);
    }
  EXPECT_EQ(find_cuts(flash.view()), Cuts{});
}

TEST(Shots, FastMotionIsNoCut) {
  // Broad stripes that pass at 8 pixels a frame: every pair differs as much as the one before.
  HostTensor video(DType::kF32, {3, 17, 48, 64});
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t t = 0; t < 17; ++t)
      for (int64_t i = 0; i < 48 * 64; ++i) video.f32()[(c * 17 + t) * 48 * 64 + i] = std::sin(static_cast<float>(i % 64 + 8 * t) * 0.2f);
  EXPECT_EQ(find_cuts(video.view()), Cuts{});
}

TEST(Shots, NoiseIsNoCut) {
  HostTensor video(DType::kF32, {3, 9, 48, 64});
  const Random random(3, RandomPurpose::kTest);
  for (int64_t i = 0; i < video.elements(); ++i) video.f32()[i] = 2 * Random::to_unit(random.bits(1, static_cast<uint64_t>(i))[0]) - 1;
  EXPECT_EQ(find_cuts(video.view()), Cuts{});
}

TEST(Shots, OneFrameAndTwo) {
  const HostTensor tree = clip("tree"), street = clip("street");
  EXPECT_EQ(find_cuts(joined({{tree, 0, 1}}).view()), Cuts{});
  EXPECT_EQ(find_cuts(joined({{tree, 0, 2}}).view()), Cuts{});
  EXPECT_EQ(find_cuts(joined({{tree, 0, 1}, {street, 0, 1}}).view()), Cuts{1});
}

// Stride 4: latent frame k >= 1 holds the pictures 4k-3 to 4k.
TEST(Shots, LatentFramesGoToTheShotWithMoreOfTheirPictures) {
  EXPECT_EQ(latent_cuts({1}, 5, 4), Cuts{1});
  EXPECT_EQ(latent_cuts({2}, 5, 4), Cuts{1});
  EXPECT_EQ(latent_cuts({3}, 5, 4), Cuts{1});  // two halves: the later shot
  EXPECT_EQ(latent_cuts({4}, 5, 4), Cuts{2});
  EXPECT_EQ(latent_cuts({5}, 5, 4), Cuts{2});
  EXPECT_EQ(latent_cuts({16}, 5, 4), Cuts{});  // one picture of the last latent frame
  EXPECT_EQ(latent_cuts({5, 6, 13}, 5, 4), (Cuts{2, 4}));
  EXPECT_EQ(latent_cuts({1, 2, 3}, 4, 1), (Cuts{1, 2, 3}));
}

TEST(Shots, Tables) {
  std::vector<int32_t> lo(6), hi(6);
  shot_tables({2, 5}, 6, lo.data(), hi.data());
  EXPECT_EQ(lo, (std::vector<int32_t>{0, 0, 2, 2, 2, 5}));
  EXPECT_EQ(hi, (std::vector<int32_t>{1, 1, 4, 4, 4, 5}));
  shot_tables({}, 6, lo.data(), hi.data());
  EXPECT_EQ(lo, std::vector<int32_t>(6, 0));
  EXPECT_EQ(hi, std::vector<int32_t>(6, 5));
}

}  // namespace
}  // namespace megaslide
