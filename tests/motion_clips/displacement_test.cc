// Where tokens go, in scenes whose answer is known.
#include "motion_scene.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/temporary_folder.h"
#include "base/error.h"
#include "io/safetensors.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

const float* at(const std::vector<float>& d, const TokenGrid& g, int64_t t, int64_t h, int64_t w, int64_t tau) {
  return &d[static_cast<size_t>((((t * g.height + h) * g.width + w) * g.frames + tau) * 2)];
}

TEST(Displacement, frames_and_pixels_of_tokens) {
  const TokenGrid g = token_grid({.frames = 21, .height = 40, .width = 80}, {});
  EXPECT_EQ(g.frames, 6);
  EXPECT_EQ(g.height, 5);
  EXPECT_EQ(g.width, 10);
  EXPECT_EQ(g.frame_of(0), 0);
  EXPECT_EQ(g.frame_of(1), 2) << "of frames 1 … 4";
  EXPECT_EQ(g.frame_of(5), 18) << "of frames 17 … 20";
  EXPECT_EQ(g.row_of(4), 36);
  EXPECT_EQ(g.column_of(0), 4);
  EXPECT_THROW(token_grid({.frames = 20, .height = 40, .width = 80}, {}), Error);
  EXPECT_THROW(token_grid({.frames = 21, .height = 44, .width = 80}, {}), Error);
}

TEST(Displacement, nothing_moves) {
  const MotionSceneOptions o{.frames = 9, .height = 16, .width = 16, .sprites = 0};
  for (const float d : motion_displacement(MotionScene(o, 1, 0), token_grid(o, {}))) EXPECT_EQ(d, 0);
}

// A panning background moves all tokens alike: as far as its path says, in tokens, and back again.
TEST(Displacement, of_a_pan) {
  const MotionSceneOptions o{.frames = 13, .height = 16, .width = 24, .sprites = 0, .pan = 1.5};
  const MotionScene scene(o, 5, 0);
  const TokenGrid g = token_grid(o, {});
  const std::vector<float> d = motion_displacement(scene, g);
  const auto& background = scene.surfaces()[0];
  ASSERT_EQ(std::ssize(d), g.tokens() * g.frames * 2);
  for (int64_t t = 0; t < g.frames; ++t)
    for (int64_t tau = 0; tau < g.frames; ++tau) {
      const auto from = static_cast<size_t>(g.frame_of(t)), to = static_cast<size_t>(g.frame_of(tau));
      for (int64_t h = 0; h < g.height; ++h)
        for (int64_t w = 0; w < g.width; ++w) {
          EXPECT_FLOAT_EQ(at(d, g, t, h, w, tau)[0], static_cast<float>((background.at_h[to] - background.at_h[from]) / 8));
          EXPECT_FLOAT_EQ(at(d, g, t, h, w, tau)[1], static_cast<float>((background.at_w[to] - background.at_w[from]) / 8));
          EXPECT_EQ(at(d, g, t, h, w, tau)[0], -at(d, g, tau, h, w, t)[0]);
        }
    }
  // 1.5 pixels a frame over the four frames from latent frame 1 to 2, on a path that is nearly straight.
  EXPECT_NEAR(std::hypot(at(d, g, 1, 0, 0, 2)[0], at(d, g, 1, 0, 0, 2)[1]), 0.75, 0.02);
}

// What is seen at a token's middle is seen where the displacement leads.
TEST(Displacement, leads_to_the_same_texture) {
  const MotionSceneOptions o{.frames = 13, .height = 64, .width = 64, .sprites = 3, .slowest = 1, .grain = 12, .pan = 0.3};
  const TokenGrid g = token_grid(o, {});
  double error = 0, still = 0;
  int64_t followed = 0;
  for (uint64_t clip = 0; clip < 4; ++clip) {
    const MotionScene scene(o, 11, clip);
    const std::vector<float> d = motion_displacement(scene, g);
    std::vector<Picture> pictures;
    for (int64_t t = 0; t < g.frames; ++t) pictures.push_back(scene.picture(g.frame_of(t)));
    for (int64_t t = 0; t < g.frames; ++t)
      for (int64_t tau = 0; tau < g.frames; ++tau)
        for (int64_t h = 0; h < g.height; ++h)
          for (int64_t w = 0; w < g.width; ++w) {
            const int64_t y0 = g.row_of(h), x0 = g.column_of(w);
            const int64_t surface = scene.surface_at(g.frame_of(t), static_cast<double>(y0) + 0.5, static_cast<double>(x0) + 0.5);
            const double y = static_cast<double>(y0) + 8 * static_cast<double>(at(d, g, t, h, w, tau)[0]), x = static_cast<double>(x0) + 8 * static_cast<double>(at(d, g, t, h, w, tau)[1]);
            const auto inside = [&](double by, double bx) { return scene.surface_at(g.frame_of(tau), y + by, x + bx) == surface; };
            if (surface == 0 || tau == t || y < 2 || x < 2 || y > 61 || x > 61 || !inside(-1.5, -1.5) || !inside(2.5, 2.5) || !inside(-1.5, 2.5) || !inside(2.5, -1.5)) continue;
            if (scene.surface_at(g.frame_of(t), static_cast<double>(y0) - 1, static_cast<double>(x0) - 1) != surface || scene.surface_at(g.frame_of(t), static_cast<double>(y0) + 2, static_cast<double>(x0) + 2) != surface) continue;
            const auto value = [&](int64_t frame, int64_t row, int64_t column) { return static_cast<double>(pictures[static_cast<size_t>(frame)].rgb[static_cast<size_t>(3 * (row * 64 + column))]); };
            error += std::abs(value(tau, std::lround(y), std::lround(x)) - value(t, y0, x0));
            still += std::abs(value(tau, y0, x0) - value(t, y0, x0));
            ++followed;
          }
  }
  ASSERT_GT(followed, 200);
  // The nearest pixel is up to half a pixel off each way; at a grain of 12 pixels that is a few of 200 levels.
  EXPECT_LT(error / static_cast<double>(followed), 8);
  EXPECT_GT(still, 4 * error);
}

TEST(Displacement, file) {
  TemporaryFolder folder;
  const MotionSceneOptions o{.frames = 5, .height = 16, .width = 24};
  const MotionScene scene(o, 1, 0);
  const TokenGrid g = token_grid(o, {});
  write_motion_displacement(folder.path(), "clip-00000", scene, g);
  const auto file = SafetensorsFile::open(folder / "displacement/clip-00000.safetensors");
  const HostTensor d = read_f32(file, "displacement");
  EXPECT_EQ(d.shape(), (Shape{2, 2, 3, 2, 2}));
  EXPECT_EQ(std::vector<float>(d.f32(), d.f32() + d.elements()), motion_displacement(scene, g));
}

}  // namespace
}  // namespace megaslide
