#include <gtest/gtest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/model_config.h"
#include "data/clip.h"
#include "data/encode.h"
#include "data/resize.h"
#include "tests/video/video_testing.h"

namespace megaslide {
namespace {

SelectionRule own_size(double fps, int64_t most) {
  SelectionRule rule;
  rule.buckets = {{0, 0, 0}};
  rule.max_frames = most;
  rule.fps = fps;
  return rule;
}

std::vector<int> stamps_of(const LoadedClip& c) {
  std::vector<int> out;
  const Shape& s = c.video.shape();
  for (int64_t t = 0; t < s[1]; ++t) out.push_back(stamp(picture_from_planes(c.video.f32() + t * s[2] * s[3], s[1] * s[2] * s[3], s[3], s[2])));
  return out;
}

std::vector<int> first(std::vector<int> v, size_t n) {
  v.resize(n);
  return v;
}

TEST(Retiming, FollowsTheTimesOfVariableRates) {
  const LoadedClip c = load_clip(test_data("cases/video/vfr.mp4"), own_size(16, 101));
  EXPECT_EQ(c.facts.frames_decoded, 45);
  EXPECT_EQ(c.facts.frames_retimed, 39);  // ceil(2.4333 · 16)
  EXPECT_EQ(c.facts.frames_used, 37);
  EXPECT_EQ(c.facts.status, ClipStatus::kRetimed);
  const std::vector<int> screen = {0, 1, 3, 5, 7, 9, 11, 13, 15, 16, 18, 20, 22, 24, 26, 28, 30, 30, 31, 31, 32, 33, 33, 34, 35, 35, 36, 36, 37, 38, 38, 39, 40, 40, 41, 41, 42};
  EXPECT_EQ(stamps_of(c), screen);
}

TEST(Retiming, JitterGifAndMilliseconds) {
  const LoadedClip jitter = load_clip(test_data("cases/video/jitter.mkv"), own_size(16, 101));
  EXPECT_GE(jitter.facts.frames_retimed, 16);
  EXPECT_LE(jitter.facts.frames_retimed, 17);
  EXPECT_GT(jitter.facts.fps, 29);
  EXPECT_LT(jitter.facts.fps, 31);
  const LoadedClip gif = load_clip(test_data("cases/video/delays.gif"), own_size(16, 101));
  EXPECT_EQ(gif.facts.frames_retimed, 24);
  // Six pictures of 0.05 s, then six of 0.2 s.
  std::vector<int> wanted;
  for (int k = 0; k < 24; ++k) wanted.push_back(k / 16.0 < 0.3 - 1e-9 ? static_cast<int>(k / 16.0 / 0.05 + 1e-9) : 6 + static_cast<int>((k / 16.0 - 0.3) / 0.2 + 1e-9));
  EXPECT_EQ(stamps_of(gif), first(wanted, 21));
  const LoadedClip live = load_clip(test_data("cases/video/live.webm"), own_size(16, 101));
  EXPECT_EQ(live.facts.status, ClipStatus::kCut);  // 160x120 to 160x112; times rounded to 1 ms are 16 frames a second
  EXPECT_EQ(stamps_of(live), range(0, 21));
}

TEST(Retiming, CountsOfConstantRates) {
  // frames, rate, frames at 16 a second
  const struct { int64_t frames; double fps; int64_t wanted; } kCases[] = {{1, 16, 1}, {81, 16, 81}, {24, 24, 16}, {73, 24, 49}, {74, 24, 50}, {31, 30, 17}, {32, 30, 18}, {101, 24000 / 1001.0, 68}, {33, 15, 36}, {25, 10, 40}};
  for (const auto& c : kCases) {
    Retimer r(16, 1e-5);
    for (int64_t i = 1; i < c.frames; ++i) r.until(static_cast<double>(i) / c.fps);
    r.at_end(static_cast<double>(c.frames) / c.fps);
    EXPECT_EQ(r.outputs(), c.wanted) << c.frames << " at " << c.fps;
  }
}

TEST(Selection, FrameBuckets) {
  ModelConfig tiny;
  tiny.codec = CodecKind::kHaar;
  const SelectionRule rule = make_selection_rule(tiny, 0, 0, 0, 16, "[1, 17, 33, 49, 81]", "b");
  Size size{64, 64, true};
  const std::pair<int64_t, int64_t> kCases[] = {{1, 1}, {16, 1}, {17, 17}, {48, 33}, {49, 49}, {50, 49}, {81, 81}, {200, 81}};
  int64_t smallest = 0;
  for (const auto& [available, wanted] : kCases) EXPECT_EQ(choose_frames(rule, size, available, smallest), wanted);
  const SelectionRule only = make_selection_rule(tiny, 0, 0, 0, 16, "17", "b");
  EXPECT_EQ(choose_frames(only, size, 16, smallest), 0);
  EXPECT_EQ(smallest, 17);
  const SelectionRule open = make_selection_rule(tiny, 0, 0, 33, 0);
  for (const auto& [available, wanted] : {std::pair<int64_t, int64_t>{1, 1}, {4, 1}, {5, 5}, {32, 29}, {33, 33}, {90, 33}})
    EXPECT_EQ(choose_frames(open, size, available, smallest), wanted);
}

TEST(Selection, SizeBuckets) {
  ModelConfig tiny;
  tiny.codec = CodecKind::kHaar;
  const SelectionRule rule = make_selection_rule(tiny, 0, 0, 0, 0, "64x64x17 # square\n128x72x17\n72x128x9\n256x144x9\n", "b");
  std::string reason;
  const auto pick = [&](int64_t w, int64_t h) { const auto s = choose_size(rule, w, h, reason); return std::pair(s->width, s->height); };
  EXPECT_EQ(pick(1920, 1080), std::pair(int64_t{256}, int64_t{144}));
  EXPECT_EQ(pick(160, 90), std::pair(int64_t{128}, int64_t{72}));
  EXPECT_EQ(pick(100, 160), std::pair(int64_t{72}, int64_t{128}));
  EXPECT_EQ(pick(30, 31), std::pair(int64_t{64}, int64_t{64}));
  const SelectionRule native = make_selection_rule(tiny, 0, 0, 5, 0);
  EXPECT_EQ(choose_size(native, 106, 60, reason)->height, 48);
  EXPECT_FALSE(choose_size(native, 8, 80, reason).has_value());
  EXPECT_NE(reason.find("8x80"), std::string::npos);
}

TEST(Selection, BadBucketsAreRefused) {
  ModelConfig tiny;
  tiny.codec = CodecKind::kHaar;
  for (const char* text : {"64x64x16", "60x64x17", "axb", "64x64x17x2", "", "# nothing", "0", "64x", "99999999"})
    EXPECT_THROW(make_selection_rule(tiny, 0, 0, 0, 0, text, "b"), Error) << text;
  try {
    make_selection_rule(tiny, 0, 0, 0, 0, "17\n\n64x65x17\n", "buckets.txt");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message().compare(0, 14, "buckets.txt:3:"), 0) << e.message();
  }
}

TEST(Clip, RotatedCropsAndBuckets) {
  const LoadedClip c = load_clip(test_data("cases/video/rot90.mp4"), own_size(0, 25));
  EXPECT_EQ(c.facts.width, 120);
  EXPECT_EQ(c.facts.height, 160);
  EXPECT_EQ(c.facts.bucket(), "112x160x25");
  ASSERT_EQ(c.facts.notes.size(), 1u);
}

TEST(Clip, TruncatedIsUsedUpToTheDamage) {
  const LoadedClip c = load_clip(test_data("cases/video/truncated.mp4"), own_size(0, 81), {.md5 = true});
  EXPECT_NE(c.facts.status, ClipStatus::kDropped);
  EXPECT_EQ(c.facts.frames_declared, 48);
  EXPECT_GE(c.facts.frames_decoded, 24);
  EXPECT_LE(c.facts.frames_decoded, 25);
  EXPECT_EQ(c.facts.frames_used, 21);
  EXPECT_EQ(c.md5.size(), static_cast<size_t>(c.facts.frames_decoded));
  ASSERT_EQ(c.facts.notes.size(), 1u);
  EXPECT_NE(c.facts.notes[0].find("48 declared"), std::string::npos);
}

TEST(Clip, TooShortAndNoVideo) {
  SelectionRule rule = own_size(0, 17);
  rule.buckets = {{0, 0, 17}};
  EXPECT_EQ(load_clip(test_data("cases/video/one-frame.mp4"), rule).facts.reason, "too short: 1 frame < 17, the smallest bucket");
  EXPECT_EQ(load_clip(test_data("cases/video/music.mp4"), rule).facts.reason, "no video stream (only an attached picture)");
  EXPECT_EQ(load_clip(test_data("cases/bad-files/empty.mp4"), rule).facts.reason, "empty (0 bytes)");
  EXPECT_EQ(load_clip(test_data("cases/video/none.mp4"), rule).facts.reason, "no such file or folder");
}

TEST(Clip, FrameFoldersAreInNaturalOrder) {
  const LoadedClip c = load_clip(test_data("cases/mixed/frames-as-clip"), own_size(8, 9));
  EXPECT_EQ(stamps_of(c), range(0, 9));  // frame_1, frame_2, … frame_12; without a rate of its own nothing is re-timed
  EXPECT_EQ(c.facts.frames_decoded, 12);
  EXPECT_EQ(c.facts.fps, 0);
  EXPECT_EQ(stamps_of(load_clip(test_data("cases/mixed/still.jpg"), own_size(8, 9))), (std::vector<int>{99}));
}

TEST(Clip, FactsSurviveTheCache) {
  const ClipFacts f = load_clip(test_data("cases/video/rot90.mp4"), own_size(8, 9)).facts;
  EXPECT_EQ(ClipFacts::from_json(f.to_json()).to_json(), f.to_json());
  EXPECT_THROW(ClipFacts::from_json(nlohmann::json::object()), Error);
}

Picture ramp(int64_t w, int64_t h) {
  Picture p{w, h, {}};
  for (int64_t y = 0; y < h; ++y)
    for (int64_t x = 0; x < w; ++x)
      for (int c = 0; c < 3; ++c) p.rgb.push_back(static_cast<uint8_t>(2 * x + y));
  return p;
}

TEST(Resample, CopiesAveragesAndInterpolates) {
  const Picture p = ramp(40, 24);
  std::vector<float> out(3 * 32 * 16);
  const auto value = [&](int64_t w, int64_t x, int64_t y) { return (static_cast<double>(out[static_cast<size_t>(y * w + x)]) + 1) * 127.5; };
  resample(p, {4, 4, 32, 16}, 32, 16, out.data(), 32 * 16);
  for (int64_t y = 0; y < 16; ++y)
    for (int64_t x = 0; x < 32; ++x) EXPECT_NEAR(value(32, x, y), 2 * (x + 4) + (y + 4), 1e-4);
  resample(p, {4, 4, 32, 16}, 16, 8, out.data(), 32 * 16);
  for (int64_t y = 0; y < 8; ++y)
    for (int64_t x = 0; x < 16; ++x) EXPECT_NEAR(value(16, x, y), 2 * (2 * x + 4.5) + 2 * y + 4.5, 1e-3) << "means of 2×2";
  // A third of a pixel of overlap counts a third: 40 → 30 pixels, the first output covers 1 1/3 pixels.
  resample(p, {0, 0, 40, 24}, 30, 16, out.data(), 32 * 16);
  EXPECT_NEAR(value(30, 0, 0), 2 * ((0 + 1.0 / 3) / (4.0 / 3)) + (0 + 0.5) / 1.5, 1e-3);
  // Cubics keep a straight line straight inside.
  resample(p, {8, 8, 16, 8}, 32, 16, out.data(), 32 * 16);
  for (int64_t x = 0; x < 32; ++x) EXPECT_NEAR(value(32, x, 8), 2 * (8 + (static_cast<double>(x) + 0.5) / 2 - 0.5) + 8 + 8.5 / 2 - 0.5, 1e-3);
}

TEST(Resample, RegionsCover) {
  const Region wide = region_for(128, 96, {64, 64, false});
  EXPECT_DOUBLE_EQ(wide.width, 96);
  EXPECT_DOUBLE_EQ(wide.x, 16);
  EXPECT_DOUBLE_EQ(wide.height, 96);
  const Region own = region_for(107, 61, {96, 48, true});
  EXPECT_DOUBLE_EQ(own.x, 5);
  EXPECT_DOUBLE_EQ(own.y, 6);
  EXPECT_DOUBLE_EQ(own.width, 96);
}

}  // namespace
}  // namespace megaslide
