// Scores against references made with VBench's own code and scikit-image (tests/data/eval/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "eval/measure.h"
#include "eval/pixel_ops.h"
#include "golden_frames.h"

namespace megaslide {
namespace {

using Json = nlohmann::json;

Json golden(const std::string& name) {
  std::ifstream in(std::string(MEGASLIDE_TEST_DATA) + "/eval/" + name);
  return Json::parse(in);
}

double number(const Json& j) { return j.is_string() ? std::numeric_limits<double>::infinity() : j.get<double>(); }

VideoMeasures measure(const std::vector<Picture>& frames, const std::vector<Picture>* reference, int threads = 2) {
  ThreadPool pool(threads);
  MemoryReader video(frames);
  OpenVideo open;
  if (reference) open = [&] { return std::make_unique<MemoryReader>(*reference); };
  return measure_video(video, open, {.metrics = {"temporal_flickering", "psnr", "ssim"}, .thumbnails = true}, pool);
}

TEST(Flicker, EqualsTheExactSums) {
  const Json all = golden("metrics.json")["temporal_flickering"];
  ASSERT_GE(all.size(), 8u);
  for (const auto& [name, want] : all.items()) {
    SCOPED_TRACE(name);
    const VideoMeasures m = measure(golden_video("videos", name), nullptr);
    const Score& s = m.scores.at("temporal_flickering");
    if (want["score"].is_null()) {
      EXPECT_FALSE(s.value);
      EXPECT_EQ(s.reason, "n/a: needs at least 2 frames");
      continue;
    }
    ASSERT_TRUE(s.value);
    // Both sides divide exact integers, in another order: a few roundings of 2^-53.
    EXPECT_NEAR(*s.value, want["score"].get<double>(), 1e-15);
    // Upstream works in float32.
    EXPECT_NEAR(*s.value, want["vbench_float32"].get<double>(), 1e-8);
    ASSERT_EQ(s.trace.size(), want["frame_mae"].size() + 1);
    EXPECT_TRUE(std::isnan(s.trace[0]));
    for (size_t i = 1; i < s.trace.size(); ++i) EXPECT_NEAR(s.trace[i], want["frame_mae"][i - 1].get<double>(), 1e-13);
  }
}

TEST(Reference, PsnrAndSsimEqualTheGolden) {
  const Json all = golden("metrics.json")["pairs_against_moving"];
  ASSERT_GE(all.size(), 8u);
  const std::vector<Picture> reference = golden_video("videos", "moving");
  for (const auto& [name, want] : all.items()) {
    SCOPED_TRACE(name);
    const VideoMeasures m = measure(golden_video("distorted", name), &reference);
    const Score &psnr = m.scores.at("psnr"), &ssim = m.scores.at("ssim");
    const auto near = [](double a, double b, double tolerance) {
      if (std::isinf(b)) {
        EXPECT_EQ(a, b);
      } else {
        EXPECT_NEAR(a, b, tolerance);
      }
    };
    // Exact sums, one division and one logarithm; dB values up to 51.
    near(psnr.value.value(), number(want["mean_psnr"]), 1e-12);
    near(psnr.extra.at("pooled"), number(want["pooled_psnr"]), 1e-12);
    for (size_t i = 0; i < 6; ++i) near(psnr.trace[i], number(want["frame_psnr"][i]), 1e-12);
    // fp64 on both sides. The variances are differences of moments up to 255^2, so they carry about 1e-11 of
    // absolute error, against a stabilising constant of 58: 1e-12 relative, with room for the order of the sums.
    near(ssim.value.value(), want["mean_ssim"].get<double>(), 1e-11);
    for (size_t i = 0; i < 6; ++i) near(ssim.trace[i], want["frame_ssim"][i].get<double>(), 1e-11);
  }
}

TEST(Reference, OneThreadEqualsFour) {
  Picture a = flat_picture(150, 130, 0), b = a;
  for (size_t i = 0; i < a.rgb.size(); ++i)
    a.rgb[i] = static_cast<uint8_t>(i * 7 % 251), b.rgb[i] = static_cast<uint8_t>(i * 11 % 239);
  ThreadPool one(1), four(4);
  EXPECT_EQ(ssim(a, b, one), ssim(a, b, four));
}

TEST(Reference, SmallPicturesHaveNoSsim) {
  const std::vector<Picture> frames(3, flat_picture(10, 40, 9));
  const VideoMeasures m = measure(frames, &frames);
  EXPECT_EQ(m.scores.at("ssim").reason, "n/a: a side is below 11 pixels");
  EXPECT_TRUE(std::isinf(m.scores.at("psnr").value.value()));
}

TEST(Reference, LengthsAndSizesThatDifferAreSaid) {
  const std::vector<Picture> moving = golden_video("videos", "moving");
  const std::vector<Picture> two(moving.begin(), moving.begin() + 2);
  VideoMeasures m = measure(moving, &two);
  EXPECT_EQ(m.scores.at("psnr").extra.at("frames"), 2);
  ASSERT_EQ(m.warnings.size(), 1u);
  EXPECT_NE(m.warnings[0].find("ends after 2 frames"), std::string::npos);
  m = measure(two, &moving);
  EXPECT_TRUE(std::isinf(m.scores.at("psnr").value.value()));
  EXPECT_NE(m.warnings.at(0).find("longer"), std::string::npos);
  const std::vector<Picture> other = golden_video("videos", "noise");
  m = measure(moving, &other);
  EXPECT_EQ(m.scores.at("psnr").reason, "n/a: the reference is 31x24, the video 50x36");
  EXPECT_TRUE(m.scores.at("temporal_flickering").value);
}

TEST(Reference, DamagedReferenceCostsOnlyItsScores) {
  const std::vector<Picture> moving = golden_video("videos", "moving");
  ThreadPool pool(1);
  MemoryReader video(moving);
  const OpenVideo open = [&] {
    auto r = std::make_unique<MemoryReader>(moving);
    r->fail_at = 3;
    return r;
  };
  const VideoMeasures m = measure_video(video, open, {.metrics = {"temporal_flickering", "psnr"}}, pool);
  EXPECT_NE(m.scores.at("psnr").reason.find("damaged packet"), std::string::npos);
  EXPECT_TRUE(m.scores.at("temporal_flickering").value);
  EXPECT_EQ(m.facts.frames, 6);
}

TEST(Measure, DamageEmptinessAndSizeChangesThrow) {
  ThreadPool pool(1);
  const std::vector<Picture> moving = golden_video("videos", "moving");
  MemoryReader damaged(moving);
  damaged.fail_at = 2;
  EXPECT_THROW(measure_video(damaged, {}, {.metrics = {"temporal_flickering"}}, pool), Error);
  MemoryReader empty({});
  EXPECT_THROW(measure_video(empty, {}, {}, pool), Error);
  MemoryReader changing({flat_picture(8, 8, 1), flat_picture(9, 8, 1)});
  EXPECT_THROW(measure_video(changing, {}, {}, pool), Error);
}

std::vector<std::string> alarms_of(const std::vector<Picture>& frames) {
  std::vector<std::string> kinds;
  for (const Alarm& a : measure(frames, nullptr).alarms) kinds.push_back(a.kind);
  return kinds;
}

TEST(Alarms, FrozenBlackAndDuplicates) {
  using Kinds = std::vector<std::string>;
  EXPECT_EQ(alarms_of(golden_video("videos", "moving")), Kinds{});
  EXPECT_EQ(alarms_of(golden_video("videos", "noise")), Kinds{});
  EXPECT_EQ(alarms_of(golden_video("videos", "still")), Kinds{"frozen"});
  EXPECT_EQ(alarms_of(golden_video("videos", "black")), (Kinds{"frozen", "black_frames"}));
  EXPECT_EQ(alarms_of(golden_video("videos", "black_white")), Kinds{"black_frames"});
  EXPECT_EQ(alarms_of(golden_video("videos", "one_frozen_frame")), Kinds{"duplicate_frames"});
  EXPECT_EQ(alarms_of(golden_video("videos", "one_frame")), Kinds{});
  const VideoMeasures m = measure(golden_video("videos", "one_frozen_frame"), nullptr);
  EXPECT_EQ(m.alarms[0].frames, std::vector<int64_t>{3});
}

TEST(Alarms, EncoderNoiseOnAStillPictureIsFrozen) {
  std::vector<Picture> frames(8, flat_picture(40, 40, 100));
  for (size_t f = 0; f < frames.size(); ++f) frames[f].rgb[f * 11] = 102;  // 4 levels of 4800 bytes: 0.0008 a step
  EXPECT_EQ(alarms_of(frames), std::vector<std::string>{"frozen"});
}

TEST(Drift, GrowsWhereNeighboursSaturate) {
  // Every step adds one level: neighbours differ by 1/255, frames 16 apart by 16/255.
  std::vector<Picture> frames;
  for (int f = 0; f < 33; ++f) frames.push_back(flat_picture(100, 70, static_cast<uint8_t>(50 + f)));
  const DriftCurve d = measure(frames, nullptr).drift;
  ASSERT_EQ(d.gaps, (std::vector<int64_t>{1, 2, 3, 4, 6, 8, 12, 16, 24, 32}));
  for (size_t i = 0; i < d.gaps.size(); ++i) EXPECT_NEAR(d.difference[i], static_cast<double>(d.gaps[i]) / 255, 1e-12);
  ASSERT_EQ(d.from_first.size(), 33u);
  EXPECT_NEAR(d.from_first[32], 32.0 / 255, 1e-12);
}

TEST(Drift, LongClipsKeepABoundedWindow) {
  std::vector<Picture> frames;
  for (int f = 0; f < 600; ++f) frames.push_back(flat_picture(4, 4, static_cast<uint8_t>(f % 200)));
  const DriftCurve d = measure(frames, nullptr).drift;
  EXPECT_EQ(d.gaps.back(), 256);
  EXPECT_EQ(d.from_first.size(), 600u);
}

TEST(PixelOps, ShrinkAveragesEveryPixelOnce) {
  Picture p = flat_picture(7, 5, 0);
  uint64_t sum = 0;
  for (size_t i = 0; i < p.rgb.size(); ++i) sum += p.rgb[i] = static_cast<uint8_t>(i);
  const SmallPicture whole = shrink(p, 64);
  EXPECT_EQ(whole.width, 7);
  EXPECT_EQ(whole.rgb[20], 20.0f);
  const SmallPicture one = shrink(p, 1);
  ASSERT_EQ(one.rgb.size(), 3u);
  EXPECT_NEAR(one.rgb[0] + one.rgb[1] + one.rgb[2], static_cast<double>(sum) / 35, 1e-4);
  EXPECT_EQ(to_picture(shrink(flat_picture(500, 3, 77), 192)).rgb[0], 77);
}

TEST(PixelOps, SumsDoNotOverflow) {
  const int64_t n = (int64_t{1} << 21) + 5;
  const std::vector<uint8_t> black(static_cast<size_t>(n), 0), white(static_cast<size_t>(n), 255);
  EXPECT_EQ(sum_abs_difference(black.data(), white.data(), n), uint64_t{255} * static_cast<uint64_t>(n));
  EXPECT_EQ(sum_squared_difference(white.data(), black.data(), n), uint64_t{65025} * static_cast<uint64_t>(n));
}

}  // namespace
}  // namespace megaslide
