// Kernels of frame interpolation against their plain twins, on every instruction set of this machine.
#include "kernels/flow/interpolation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/elementwise.h"
#include "tests/vision/processor.h"
#include "vision/frame_network.h"

namespace megaslide {
namespace {
using namespace testing_support;

Frame random_frame(int64_t h, int64_t w, int64_t channels, int64_t border, uint64_t series, double deviation = 1) {
  Frame f(processor(), h, w, channels, border);
  const std::vector<float> v = normals(h * w * channels, series, deviation);
  for (int64_t i = 0; i < h * w; ++i) std::copy_n(v.begin() + i * channels, channels, f.data() + f.layout().cell(i / w, i % w));
  return f;
}
std::vector<float> values(const Frame& f) { return {f.data(), f.data() + f.layout().elements()}; }

// Positions up to 20 cells in fp32 are half a unit of 2e-6 off, times differences of about 1 between neighbours.
constexpr double kPositions = 3e-6;

TEST(InterpolationKernels, ResizeEqualsItsPlainTwin) {
  for_each_target([] {
    InlineStream stream(2);
    const Frame in = random_frame(8, 12, 20, 1, 1);
    for (const auto& [up, down] : {std::pair{1, 1}, {2, 1}, {4, 1}, {1, 2}, {1, 4}}) {
      const int64_t h = 8 * up / down, w = 12 * up / down;
      for (const bool add : {false, true}) {
        const FrameScaling s{.up = up, .down = down, .factor = 0.5F, .add = add, .first_row = h / 2};
        Frame got = random_frame(h / 2, w, 20, 0, 2), want = random_frame(h / 2, w, 20, 0, 2);
        frame_resize(stream, got.data(), got.layout(), in.data(), in.layout(), s);
        reference::frame_resize(want.data(), want.layout(), in.data(), in.layout(), s);
        EXPECT_LT(relative_error(values(got), values(want)), 1e-6) << up << '/' << down;
      }
    }
  });
}

// A quarter of the sides: the middle 2×2 of each 4×4, not its mean.
TEST(InterpolationKernels, QuarterAveragesTheMiddle) {
  Frame in(processor(), 4, 4, 1), out(processor(), 1, 1, 1);
  for (int64_t y = 1; y < 3; ++y)
    for (int64_t x = 1; x < 3; ++x) in.data()[in.layout().cell(y, x)] = static_cast<float>(4 * y + x);
  in.data()[in.layout().cell(0, 3)] = 1000;
  InlineStream stream;
  frame_resize(stream, out.data(), out.layout(), in.data(), in.layout(), {.down = 4});
  EXPECT_EQ(out.data()[out.layout().cell(0, 0)], 7.5F);
}

TEST(InterpolationKernels, WarpEqualsItsPlainTwin) {
  for_each_target([] {
    InlineStream stream(2);
    const Frame in = random_frame(13, 17, 21, 1, 1);
    Frame flow = random_frame(13, 17, 4, 0, 2, 8);
    flow.data()[flow.layout().cell(5, 5) + 2] = 1e30F;
    const WarpPlace p{.to = 5, .from = 2, .first_row = 4};
    Frame got(processor(), 7, 17, 40, 1), want(processor(), 7, 17, 40, 1);
    frame_warp(stream, got.data(), got.layout(), in.data(), in.layout(), flow.data(), flow.layout(), p);
    reference::frame_warp(want.data(), want.layout(), in.data(), in.layout(), flow.data(), flow.layout(), p);
    EXPECT_LT(relative_error(values(got), values(want)), kPositions);
    // Whatever the flow, nothing outside the frame is read.
    flow.data()[flow.layout().cell(5, 5) + 3] = std::numeric_limits<float>::quiet_NaN();
    frame_warp(stream, got.data(), got.layout(), in.data(), in.layout(), flow.data(), flow.layout(), p);
  });
}

TEST(InterpolationKernels, BlendEqualsItsPlainTwin) {
  const int64_t h = 11, w = 9, padded_h = 16, padded_w = 16;
  std::vector<uint8_t> a(static_cast<size_t>(3 * h * w)), b(a.size());
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<uint8_t>(i * 53 % 256), b[i] = static_cast<uint8_t>(i * 97 % 253);
  CandidateBlend c;
  c.first = {.rgb = a.data(), .width = w, .height = h, .left = 3, .top = 2};
  c.second = c.first;
  c.second.rgb = b.data();
  c.height = padded_h, c.width = padded_w;
  const Frame decoded = random_frame(6, padded_w, 24, 0, 1, 3), base = random_frame(6, padded_w, 4, 0, 2, 5);
  c.decoded = decoded.data(), c.decoded_layout = decoded.layout();
  c.base = base.data(), c.base_layout = base.layout();
  c.first_row = 7;
  Frame got(processor(), 6, padded_w, 9), want(processor(), 6, padded_w, 9);
  InlineStream stream(2);
  blend_candidates(stream, got.data(), got.layout(), c);
  reference::blend_candidates(want.data(), want.layout(), c);
  EXPECT_LT(relative_error(values(got), values(want)), kPositions);
}

TEST(InterpolationKernels, ChannelsAreCopiedOrAdded) {
  const Frame in = random_frame(5, 3, 7, 1, 1);
  Frame out(processor(), 4, 3, 20, 0);
  InlineStream stream;
  const ChannelMove move{.to = 13, .from = 2, .count = 5, .first_row = 1, .add = false};
  ChannelMove add = move;
  add.add = true;
  frame_channels(stream, out.data(), out.layout(), in.data(), in.layout(), move);
  frame_channels(stream, out.data(), out.layout(), in.data(), in.layout(), add);
  for (int64_t y = 0; y < 4; ++y)
    for (int64_t c = 0; c < 32; ++c) {
      const float want = c >= 13 && c < 18 ? 2 * in.data()[in.layout().cell(y + 1, 2) + c - 11] : 0;
      EXPECT_EQ(out.data()[out.layout().cell(y, 2) + c], want);
    }
}

TEST(InterpolationKernels, PredictionIsTheClampedMeanAndCorrection) {
  Frame candidates(processor(), 3, 1, 9), correction(processor(), 3, 1, 3);
  const float red[] = {0.1F, 0.2F, 0.6F}, more[] = {0.2F, 0.9F, -1};
  for (int64_t y = 0; y < 3; ++y) {
    for (int64_t k = 0; k < 3; ++k) candidates.data()[candidates.layout().cell(y, 0) + 3 * k] = red[k];
    correction.data()[correction.layout().cell(y, 0)] = more[y];
  }
  std::vector<float> picture(3 * 10, -7);
  InlineStream stream;
  predict_rows(stream, picture.data(), candidates.data(), candidates.layout(), correction.data(), correction.layout(),
               {.height = 10, .width = 1, .first = 5, .rows = 2, .first_row = 4});
  EXPECT_EQ(picture[4], -7);
  EXPECT_EQ(picture[5], 1);
  EXPECT_EQ(picture[6], 0);
  EXPECT_EQ(picture[7], -7);
  predict_rows(stream, picture.data(), candidates.data(), candidates.layout(), correction.data(), correction.layout(),
               {.height = 10, .width = 1, .first = 0, .rows = 1, .first_row = 0});
  EXPECT_NEAR(picture[0], 0.5, 1e-6);
}

}  // namespace
}  // namespace megaslide
