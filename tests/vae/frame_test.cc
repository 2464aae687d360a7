// Attention, shortcuts and planes of frames against their formulas (spec wan.md C.2, C.7).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/frame/frame_ops.h"
#include "tests/vae/vae_files.h"

namespace megaslide {
namespace {
using namespace testing_support;

FrameLayout layout(int64_t h, int64_t w, int64_t c, DType dtype = DType::kF32, int64_t border = 1) {
  return {h, w, c, dtype, border};
}

// Frames from and to [C, H, W].
HostTensor frame_of(Stream& stream, const HostTensor& planes, const FrameLayout& l) {
  HostTensor frame(l.dtype, {l.elements()});
  frame_from_planes(stream, frame.data(), l, planes.f32(),
                    {.plane = l.height * l.width, .width = l.width, .count = l.channels}, nullptr, nullptr);
  return frame;
}
HostTensor planes_of(Stream& stream, const HostTensor& frame, const FrameLayout& l) {
  HostTensor planes(DType::kF32, {l.channels, l.height, l.width});
  frame_to_planes(stream, planes.f32(), frame.data(), l,
                  {.plane = l.height * l.width, .width = l.width, .count = l.channels});
  return planes;
}

TEST(FramePlanes, GoThereAndBack) {
  InlineStream stream(2);
  const FrameLayout l = layout(5, 7, 19);
  const HostTensor planes = random_tensor({19, 5, 7}, 1);
  EXPECT_EQ(distance(planes_of(stream, frame_of(stream, planes, l), l), planes), 0);
}

// Channel (c·2 + r)·2 + q is row q, column r of a patch: the height is the fast index.
TEST(FramePlanes, PatchesHaveTheHeightFastest) {
  InlineStream stream(1);
  const HostTensor video = random_tensor({3, 4, 6}, 1);
  const FrameLayout l = layout(2, 3, 12);
  HostTensor frame(DType::kF32, {l.elements()});
  const float scale[3] = {1, 2, 3}, shift[3] = {0, 0.5f, -1};
  frame_from_planes(stream, frame.data(), l, video.f32(), {.plane = 24, .width = 6, .patch = 2, .count = 12}, scale,
                    shift);
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t y = 0; y < 4; ++y)
      for (int64_t x = 0; x < 6; ++x)
        EXPECT_EQ(frame.f32()[l.cell(y / 2, x / 2) + (c * 2 + x % 2) * 2 + y % 2],
                  video.f32()[(c * 4 + y) * 6 + x] * scale[c] + shift[c]);
}

TEST(FrameAttention, EqualsItsFormula) {
  constexpr int64_t kH = 9, kW = 11, kC = 24, kN = kH * kW;
  const FrameLayout q = layout(kH, kW, 3 * kC, DType::kF32, 0);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const FrameLayout out = layout(kH, kW, kC, dtype, 0);
    const HostTensor qkv = random_tensor({3 * kC, kH, kW}, 2, 1.5);
    InlineStream one(1), three(3);
    const HostTensor in = frame_of(one, qkv, q);
    HostTensor got(dtype, {out.elements()}), again(dtype, {out.elements()});
    frame_attention(one, got.data(), out, in.f32(), q);
    frame_attention(three, again.data(), out, in.f32(), q);
    EXPECT_EQ(std::memcmp(got.data(), again.data(), static_cast<size_t>(got.bytes())), 0);
    HostTensor want(DType::kF32, {kC, kH, kW});
    const auto at = [&](int64_t c, int64_t n) { return static_cast<double>(qkv.f32()[c * kN + n]); };
    for (int64_t i = 0; i < kN; ++i) {
      std::vector<double> p(kN);
      double sum = 0;
      for (int64_t j = 0; j < kN; ++j) {
        double s = 0;
        for (int64_t c = 0; c < kC; ++c) s += at(c, i) * at(kC + c, j);
        sum += p[static_cast<size_t>(j)] = std::exp(s / std::sqrt(static_cast<double>(kC)));
      }
      for (int64_t c = 0; c < kC; ++c) {
        double v = 0;
        for (int64_t j = 0; j < kN; ++j) v += p[static_cast<size_t>(j)] * at(2 * kC + c, j);
        want.f32()[c * kN + i] = static_cast<float>(v / sum);
      }
    }
    EXPECT_LE(distance(planes_of(one, got, out), want), dtype == DType::kBF16 ? 2e-3 : 1e-6);  // bf16: its rounding
  }
}

// AvgDown3D over a whole clip, literally: zeros in front, channels c·(ft·fs²) + (a·fs + b)·fs + d in groups, means.
TEST(FrameAverage, EqualsTheShortcutOfTheEncoder) {
  InlineStream stream(2);
  for (const auto& [in, out, ft, fs] :
       std::vector<std::array<int64_t, 4>>{{8, 8, 1, 2}, {4, 8, 2, 2}, {16, 16, 1, 1}, {8, 4, 2, 2}, {6, 3, 1, 1}}) {
    constexpr int64_t kFrames = 5;
    const int64_t h = 2 * fs, w = 3 * fs, parts = ft * fs * fs, group = in * parts / out;
    const FrameLayout li = layout(h, w, in), lo = layout(2, 3, out);
    const HostTensor x = random_tensor({kFrames, in, h, w}, 3);
    HostTensor sum(DType::kF32, {lo.elements()});
    for (int64_t t = 0; t < kFrames; ++t) {
      HostTensor one(DType::kF32, {in, h, w});
      std::copy_n(x.f32() + t * one.elements(), one.elements(), one.f32());
      const int64_t a = ft == 1 || t % 2 == 0 ? ft - 1 : 0;
      frame_average(stream, sum.data(), lo, frame_of(stream, one, li).data(), li, ft, fs, a, a == 1 && t > 0);
      if (a != ft - 1) continue;
      const HostTensor got = planes_of(stream, sum, lo);
      const int64_t frame = ft == 1 ? t : t / 2;
      for (int64_t o = 0; o < out; ++o)
        for (int64_t y = 0; y < 2; ++y)
          for (int64_t xx = 0; xx < 3; ++xx) {
            double mean = 0;
            for (int64_t f = o * group; f < (o + 1) * group; ++f) {
              const int64_t c = f / parts, ta = f / (fs * fs) % ft, b = f / fs % fs, d = f % fs;
              const int64_t source = frame * ft + ta - (ft - 1);
              if (source >= 0)
                mean += static_cast<double>(x.f32()[((source * in + c) * h + y * fs + b) * w + xx * fs + d]);
            }
            EXPECT_NEAR(got.f32()[(o * 2 + y) * 3 + xx], mean / static_cast<double>(group), 1e-6);
          }
    }
  }
}

TEST(FrameRepeat, EqualsTheShortcutOfTheDecoder) {
  InlineStream stream(2);
  for (const auto& [in, out, ft] : std::vector<std::array<int64_t, 3>>{{8, 8, 2}, {8, 4, 1}, {4, 4, 1}, {4, 8, 2}}) {
    const FrameLayout li = layout(3, 5, in), lo = layout(6, 10, out);
    const HostTensor x = random_tensor({in, 3, 5}, 4);
    const HostTensor frame = frame_of(stream, x, li);
    const int64_t repeats = out * ft * 4 / in;
    for (int64_t a = 0; a < ft; ++a) {
      HostTensor y(DType::kF32, {lo.elements()});
      frame_repeat(stream, y.data(), lo, frame.data(), li, ft, 2, a);
      const HostTensor got = planes_of(stream, y, lo);
      for (int64_t o = 0; o < out; ++o)
        for (int64_t r = 0; r < 6; ++r)
          for (int64_t c = 0; c < 10; ++c)
            EXPECT_EQ(got.f32()[(o * 6 + r) * 10 + c],
                      x.f32()[((((o * ft + a) * 2 + r % 2) * 2 + c % 2) / repeats * 3 + r / 2) * 5 + c / 2]);
    }
  }
}

}  // namespace
}  // namespace megaslide
