// The clips of configs/experiments/motion: what the truth says is what the pictures show.
#include "motion_scene.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/temporary_folder.h"
#include "base/error.h"
#include "io/safetensors.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

double pixel(const Picture& p, int64_t y, int64_t x, int64_t channel) {
  return p.rgb[static_cast<size_t>((y * p.width + x) * 3 + channel)];
}

// The picture's value between its pixels' centres.
double interpolated(const Picture& p, double h, double w, int64_t channel) {
  const double y = h - 0.5, x = w - 0.5, fy = y - std::floor(y), fx = x - std::floor(x);
  const auto y0 = static_cast<int64_t>(std::floor(y)), x0 = static_cast<int64_t>(std::floor(x));
  return (1 - fy) * ((1 - fx) * pixel(p, y0, x0, channel) + fx * pixel(p, y0, x0 + 1, channel)) +
         fy * ((1 - fx) * pixel(p, y0 + 1, x0, channel) + fx * pixel(p, y0 + 1, x0 + 1, channel));
}

// Follows each pixel of every surface to the next frame.
TEST(MotionScene, pixels_are_where_the_flow_says) {
  const MotionSceneOptions o{.frames = 9, .height = 48, .width = 64, .sprites = 4, .grain = 8, .pan = 0.7};
  const MotionScene scene(o, 3, 1);
  const MotionTruth truth = motion_truth(scene, o);
  int64_t followed[2] = {0, 0}, hidden = 0;  // background, sprites
  double error[2] = {0, 0}, still[2] = {0, 0};
  for (int64_t t = 0; t + 1 < o.frames; ++t) {
    const Picture now = scene.picture(t), next = scene.picture(t + 1);
    for (int64_t y = 2; y + 2 < o.height; ++y)
      for (int64_t x = 2; x + 2 < o.width; ++x) {
        const auto at = static_cast<size_t>((t * o.height + y) * o.width + x);
        if (truth.seen[at] == 0) ++hidden;
        const int64_t surface = truth.surface[at];
        const double h = static_cast<double>(y) + 0.5 + static_cast<double>(truth.flow[2 * at]), w = static_cast<double>(x) + 0.5 + static_cast<double>(truth.flow[2 * at + 1]);
        if (truth.seen[at] == 0 || h < 2 || w < 2 || h > static_cast<double>(o.height) - 2 || w > static_cast<double>(o.width) - 2) continue;
        bool inner = true;  // edges are blends
        for (const int64_t d : {-1, 1})
          for (const int64_t e : {-1, 1})
            inner = inner && scene.surface_at(t, static_cast<double>(y + d) + 0.5, static_cast<double>(x + e) + 0.5) == surface &&
                    scene.surface_at(t + 1, h + 2 * static_cast<double>(d), w + 2 * static_cast<double>(e)) == surface;
        if (!inner) continue;
        const size_t kind = surface > 0;
        ++followed[kind];
        for (int64_t c = 0; c < 3; ++c) {
          error[kind] += std::abs(interpolated(next, h, w, c) - pixel(now, y, x, c));
          still[kind] += std::abs(pixel(next, y, x, c) - pixel(now, y, x, c));
        }
      }
  }
  EXPECT_GT(followed[0], 8000);
  EXPECT_GT(followed[1], 300);
  EXPECT_GT(hidden, 20) << "sprites cover and leave";
  for (const size_t kind : {0u, 1u}) {
    // Rounding to 8 bits costs a quarter of a level on either side, linear interpolation of a texture of 8 pixels' grain
    // and a contrast of 200 levels a few more at its sharpest places.
    EXPECT_LT(error[kind] / static_cast<double>(3 * followed[kind]), 3);
    EXPECT_GT(still[kind], 4 * error[kind]) << "what stays in place is another pixel";
  }
}

TEST(MotionScene, speeds_are_in_range_and_paths_stay_inside) {
  const MotionSceneOptions o{.frames = 60, .sprites = 8, .slowest = 1, .fastest = 5};
  for (uint64_t clip = 0; clip < 4; ++clip) {
    const MotionScene scene(o, 9, clip);
    for (size_t i = 1; i < scene.surfaces().size(); ++i) {
      const auto& s = scene.surfaces()[i];
      EXPECT_GE(s.speed, 1);
      EXPECT_LE(s.speed, 5);
      for (size_t t = 0; t < 60; ++t) {
        EXPECT_TRUE(s.at_h[t] >= 0 && s.at_h[t] <= 64 && s.at_w[t] >= 0 && s.at_w[t] <= 64);
        // A reflection shortens a step along an axis, and never lengthens it.
        if (t > 0) {
          EXPECT_LE(std::hypot(s.at_h[t] - s.at_h[t - 1], s.at_w[t] - s.at_w[t - 1]), s.speed * (1 + 1e-9));
        }
      }
    }
  }
}

TEST(MotionScene, moments_are_held_and_places_rounded) {
  MotionSceneOptions o{.frames = 11, .sprites = 2, .slowest = 2, .fastest = 4, .pan = 3};
  const MotionScene free(o, 9, 0);
  o.hold = 4, o.snap = 8;
  const MotionScene scene(o, 9, 0);
  const size_t moments[] = {0, 2, 2, 2, 2, 6, 6, 6, 6, 10, 10};  // what would be frames 9 to 12 has the last one there is
  size_t moved = 0;
  for (size_t i = 0; i < scene.surfaces().size(); ++i)
    for (size_t t = 0; t < 11; ++t) {
      const auto& s = scene.surfaces()[i];
      const auto& smooth = free.surfaces()[i];
      EXPECT_EQ(s.at_h[t], 8 * std::round(smooth.at_h[moments[t]] / 8)) << i << " " << t;
      EXPECT_EQ(s.at_w[t], 8 * std::round(smooth.at_w[moments[t]] / 8)) << i << " " << t;
      moved += t > 0 && (s.at_h[t] != s.at_h[t - 1] || s.at_w[t] != s.at_w[t - 1]);
    }
  EXPECT_GT(moved, 3u);
  EXPECT_EQ(scene.picture(5).rgb, scene.picture(8).rgb);
}

TEST(MotionScene, function_of_seed_and_clip) {
  const MotionSceneOptions o{.frames = 2, .height = 16, .width = 16};
  EXPECT_EQ(MotionScene(o, 1, 2).picture(1).rgb, MotionScene(o, 1, 2).picture(1).rgb);
  EXPECT_NE(MotionScene(o, 1, 2).picture(1).rgb, MotionScene(o, 1, 3).picture(1).rgb);
  EXPECT_NE(MotionScene(o, 1, 2).picture(1).rgb, MotionScene(o, 2, 2).picture(1).rgb);
}

TEST(MotionScene, files_and_errors) {
  TemporaryFolder folder;
  const MotionSceneOptions o{.frames = 3, .height = 8, .width = 12, .sprites = 2};
  const MotionScene scene(o, 1, 0);
  write_motion_clip(folder / "out", "a", scene, o);
  EXPECT_EQ(read_png(folder / "out/clips/a/frame_002.png").rgb, scene.picture(2).rgb);
  EXPECT_EQ(frame_folder_pictures(folder / "out/clips/a").size(), 3u);
  const auto truth = SafetensorsFile::open(folder / "out/truth/a.safetensors");
  EXPECT_EQ(truth.find("flow")->shape, (Shape{2, 8, 12, 2}));
  EXPECT_NE(scene.caption().find(" over grey noise"), std::string::npos);
  for (const auto& wrong : {MotionSceneOptions{.sprites = 33}, MotionSceneOptions{.slowest = 3, .fastest = 2}, MotionSceneOptions{.slowest = 0}, MotionSceneOptions{.grain = 0.5}})
    EXPECT_THROW(MotionScene(wrong, 1, 0), Error);
}

}  // namespace
}  // namespace megaslide
