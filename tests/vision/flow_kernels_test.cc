// Kernels of optical flow against their plain twins, on every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/flow/flow.h"
#include "tests/support/elementwise.h"
#include "tests/vision/processor.h"
#include "vision/frame_network.h"

namespace megaslide {
namespace {
using namespace testing_support;

Frame random_frame(int64_t h, int64_t w, int64_t channels, int64_t border, uint64_t series, double deviation = 1, double mean = 0) {
  Frame f(processor(), h, w, channels, border);
  const std::vector<float> v = normals(h * w * channels, series, deviation, mean);
  for (int64_t i = 0; i < h * w; ++i) std::copy_n(v.begin() + i * channels, channels, f.data() + f.layout().cell(i / w, i % w));
  return f;
}

std::vector<float> values(const Frame& f) { return {f.data(), f.data() + f.layout().elements()}; }

// fp32 sums of up to 50 products and a few roundings of 6e-8 each.
constexpr double kFp32 = 1e-6;

TEST(FlowKernels, LookupEqualsItsPlainTwin) {
  // 40 channels end in a single vector of 16; flows leave the map on every side, one of them for good.
  for (const int64_t radius : {3, 4, 6})
    for_each_target([&] {
      const int64_t h = 17, w = 21, k = 2 * radius + 1;
      const Frame from = random_frame(h, w, 40, 0, 1);
      Frame levels[kFlowLevels];
      CorrelationLookup c;
      c.from = from.data(), c.from_layout = from.layout();
      for (int64_t i = 0; i < kFlowLevels; ++i) {
        levels[i] = random_frame(std::max<int64_t>(h >> i, 1), std::max<int64_t>(w >> i, 1), 40, i % 2, static_cast<uint64_t>(2 + i));
        c.levels[i] = levels[i].data(), c.level_layouts[i] = levels[i].layout();
      }
      std::vector<float> flow = normals(h * w * 4, 9, 8);
      flow[2] = 1e30F, flow[7] = -1e9F;
      c.flow = flow.data(), c.flow_pitch = 4, c.flow_first = 2, c.flow_scale = 2, c.scale = 0.25F, c.radius = radius, c.first = 5;
      InlineStream stream(2);
      Frame got(processor(), h, w, 5 + kFlowLevels * k * k, 0), want(processor(), h, w, 5 + kFlowLevels * k * k, 0);
      correlation_lookup(stream, got.data(), got.layout(), c);
      reference::correlation_lookup(want.data(), want.layout(), c);
      // Positions of some 40 cells in fp32 are half a unit of 4e-6 off.
      EXPECT_LT(relative_error(values(got), values(want)), 5e-6);
      flow[2] = std::numeric_limits<float>::quiet_NaN();
      correlation_lookup(stream, got.data(), got.layout(), c);
      EXPECT_TRUE(std::isnan(got.data()[got.layout().cell(0, 0) + 5]));
      EXPECT_FALSE(std::isnan(got.data()[got.layout().cell(0, 1) + 5]));
    });
}

TEST(FlowKernels, InstanceNormEqualsItsPlainTwin) {
  for (const int64_t h : {3, 130})  // fewer and more rows than bands
    for_each_target([&] {
      // A mean of 100 deviations: sums of squares in fp32 would lose the variance.
      const Frame f = random_frame(h, 9, 24, 1, 1, 0.01, 1);
      const auto n = static_cast<size_t>(f.layout().stored());
      std::vector<float> scale(n), shift(n), want_scale(n), want_shift(n);
      std::vector<double> scratch(static_cast<size_t>(instance_norm_scratch(f.layout())));
      InlineStream stream(2);
      instance_norm_scale(stream, scale.data(), shift.data(), scratch.data(), f.data(), f.layout(), 1e-5F);
      reference::instance_norm_scale(want_scale.data(), want_shift.data(), f.data(), f.layout(), static_cast<double>(1e-5F));
      EXPECT_LT(relative_error(scale, want_scale), kFp32);
      EXPECT_LT(relative_error(shift, want_shift), kFp32);
    });
}

TEST(FlowKernels, ReluOfNormsAndResiduals) {
  for_each_target([] {
    const Frame x = random_frame(5, 3, 20, 1, 1), r = random_frame(5, 3, 20, 1, 2);
    std::vector<float> scale = normals(32, 3), shift = normals(32, 4);
    for (size_t c = 20; c < 32; ++c) shift[c] = 0;
    InlineStream stream;
    Frame got(processor(), 5, 3, 20);
    frame_relu(stream, got.data(), got.layout(), {x.data(), scale.data(), shift.data()}, {r.data(), nullptr, nullptr});
    for (int64_t i = 0; i < 15; ++i)
      for (int64_t c = 0; c < 20; ++c) {
        const int64_t at = x.layout().cell(i / 3, i % 3) + c;
        const float u = std::max(0.0F, std::fma(x.data()[at], scale[static_cast<size_t>(c)], shift[static_cast<size_t>(c)]));
        // The multiplication and the addition are rounded together or apart.
        EXPECT_NEAR(got.data()[at], std::max(0.0F, u + r.data()[at]), 1e-6);
      }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    Frame broken = random_frame(1, 1, 16, 0, 1);
    broken.data()[3] = nan;
    frame_relu(stream, broken.data(), broken.layout(), {broken.data(), nullptr, nullptr}, {});
    EXPECT_TRUE(std::isnan(broken.data()[3]));
  });
}

TEST(FlowKernels, GruEqualsItsPlainTwin) {
  for_each_target([] {
    const int64_t h = 5, w = 7;
    Frame gates = random_frame(h, w, 64, 0, 1, 4);
    gates.data()[0] = 200, gates.data()[1] = -200;
    const Frame q = random_frame(h, w, 32, 0, 2), state = random_frame(h, w, 32, 2, 3);
    const std::vector<float> raw = values(gates);
    Frame want(processor(), h, w, 32, 2), reset(processor(), h, w, 32, 2), got(processor(), h, w, 32, 2);
    std::copy_n(state.data(), state.layout().elements(), want.data());
    std::copy_n(state.data(), state.layout().elements(), got.data());
    reference::gru_step(want.data(), want.layout(), gates.data(), gates.layout(), q.data(), q.layout());
    InlineStream stream(2);
    gru_reset(stream, gates.data(), gates.layout(), reset.data(), state.data(), state.layout());
    gru_update(stream, got.data(), got.layout(), gates.data(), gates.layout(), q.data(), q.layout());
    EXPECT_LT(relative_error(values(got), values(want)), kFp32);
    for (int64_t i = 0; i < h * w; ++i)
      for (int64_t c = 0; c < 32; ++c) {
        const double r = 1 / (1 + std::exp(-static_cast<double>(raw[static_cast<size_t>(i * 64 + 32 + c)])));
        const int64_t at = state.layout().cell(i / w, i % w) + c;
        EXPECT_NEAR(reset.data()[at], r * static_cast<double>(state.data()[at]), 1e-6);
      }
    gru_update(stream, got.data(), got.layout(), nullptr, {}, q.data(), q.layout());
    EXPECT_NEAR(got.data()[got.layout().cell(2, 3) + 5], std::tanh(static_cast<double>(q.data()[q.layout().cell(2, 3) + 5])), 1e-6);
  });
}

TEST(FlowKernels, UpsamplingEqualsItsPlainTwin) {
  for_each_target([] {
    const Frame logits = random_frame(5, 4, 576, 0, 1, 3);
    const std::vector<float> flow = normals(5 * 4 * 2, 2);
    std::vector<float> got(2 * 40 * 32), want(got.size());
    InlineStream stream(2);
    convex_upsample(stream, got.data(), logits.data(), logits.layout(), flow.data());
    reference::convex_upsample(want.data(), logits.data(), logits.layout(), flow.data());
    EXPECT_LT(relative_error(got, want), kFp32);
  });
}

TEST(FlowKernels, PoolingDropsOddRowsAndColumns) {
  const Frame in = random_frame(5, 7, 20, 1, 1);
  Frame out(processor(), 2, 3, 20, 0);
  InlineStream stream;
  frame_pool(stream, out.data(), out.layout(), in.data(), in.layout());
  const auto at = [&](int64_t y, int64_t x) { return in.data()[in.layout().cell(y, x) + 19]; };
  EXPECT_NEAR(out.data()[out.layout().cell(1, 2) + 19], (at(2, 4) + at(2, 5) + at(3, 4) + at(3, 5)) / 4, 1e-6);
}

// A convolution of planes by its definition, zeros outside.
double plain(const std::vector<float>& w, const ConvShape& s, int64_t o, const std::function<double(int64_t c, int64_t y, int64_t x)>& at, int64_t y, int64_t x) {
  double sum = 0;
  for (int64_t c = 0; c < s.in; ++c)
    for (int64_t i = 0; i < s.kh; ++i)
      for (int64_t j = 0; j < s.kw; ++j)
        sum += static_cast<double>(w[static_cast<size_t>(((o * s.in + c) * s.kh + i) * s.kw + j)]) * at(c, y + i - s.kh / 2, x + j - s.kw / 2);
  return sum;
}

TEST(FlowKernels, StemOverBlocksIsTheConvolutionOfPixels) {
  const int64_t h = 12, w = 8;
  std::vector<uint8_t> rgb(static_cast<size_t>(h * w * 3));
  for (size_t i = 0; i < rgb.size(); ++i) rgb[i] = static_cast<uint8_t>(i * 37 % 251);
  ConvWeights c{{.in = 3, .out = 5, .kt = 1, .kh = 7, .kw = 7}, normals(5 * 3 * 49, 1, 0.1), normals(5, 2)};
  InlineStream stream(2);
  Frame blocks(processor(), h / 2, w / 2, 12, 2), out(processor(), h / 2, w / 2, 5);
  picture_frame(stream, blocks.data(), blocks.layout(), {.rgb = rgb.data(), .width = w, .height = h, .left = 0, .top = 0, .block = 2, .scale = 0.01F, .shift = -1});
  FrameConvolution(stream, over_blocks(c), {0.5F})(stream, out, blocks);
  for (int64_t y = 0; y < h / 2; ++y)
    for (int64_t x = 0; x < w / 2; ++x)
      for (int64_t o = 0; o < 5; ++o) {
        const auto pixel = [&](int64_t channel, int64_t py, int64_t px) {
          return py < 0 || px < 0 || py >= h || px >= w ? 0.0 : 0.01 * rgb[static_cast<size_t>((py * w + px) * 3 + channel)] - 1;
        };
        const double u = plain(c.w, c.shape, o, pixel, 2 * y, 2 * x) + static_cast<double>(c.bias[static_cast<size_t>(o)]);
        // 147 products of about 0.1, each rounded.
        EXPECT_NEAR(out.data()[out.layout().cell(y, x) + o], u < 0 ? 0.5 * u : u, 3e-6);
      }
}

TEST(FlowKernels, RowsUnrollTheFlow) {
  const int64_t h = 6, w = 5;
  ConvWeights c{{.in = 4, .out = 3, .kt = 1, .kh = 7, .kw = 7}, normals(3 * 4 * 49, 1, 0.1), normals(3, 2)};
  std::vector<float> flow = normals(h * w * 4, 3);
  const std::vector<float> before = flow;
  const Frame delta = random_frame(h, w, 4, 0, 4);
  Frame rows(processor(), h, w, 28, 3), beside(processor(), h, w, 40, 1), out(processor(), h, w, 3);
  InlineStream stream(2);
  FlowStep s;
  s.flow = flow.data(), s.channels = s.pitch = 4, s.delta = delta.data(), s.delta_layout = delta.layout();
  s.rows = rows.data(), s.rows_layout = rows.layout(), s.beside = beside.data(), s.beside_layout = beside.layout(), s.first = 30;
  flow_advance(stream, s);
  FrameConvolution(stream, over_rows(c))(stream, out, rows);
  for (int64_t y = 0; y < h; ++y)
    for (int64_t x = 0; x < w; ++x) {
      for (int64_t k = 0; k < 4; ++k) {
        const auto i = static_cast<size_t>((y * w + x) * 4 + k);
        EXPECT_EQ(flow[i], before[i] + delta.data()[delta.layout().cell(y, x) + k]);
        EXPECT_EQ(beside.data()[beside.layout().cell(y, x) + 30 + k], flow[i]);
      }
      const auto value = [&](int64_t k, int64_t py, int64_t px) {
        return py < 0 || px < 0 || py >= h || px >= w ? 0.0 : static_cast<double>(flow[static_cast<size_t>((py * w + px) * 4 + k)]);
      };
      for (int64_t o = 0; o < 3; ++o)
        EXPECT_NEAR(out.data()[out.layout().cell(y, x) + o], plain(c.w, c.shape, o, value, y, x) + static_cast<double>(c.bias[static_cast<size_t>(o)]), 3e-6);
    }
}

}  // namespace
}  // namespace megaslide
