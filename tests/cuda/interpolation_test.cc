// What networks that interpolate frames do, as CUDA kernels.
#include "kernels/flow/interpolation.h"

#include <cmath>
#include <limits>

#include "tests/cuda/frames.h"

namespace megaslide {
namespace {

using namespace testing_support;

// Positions up to 70 cells in fp32 are half a unit of 8e-6 off, times differences of about 1 between neighbours.
constexpr double kPositions = 5e-6;

TEST(CudaInterpolation, Resize) {
  const FrameLayout in{8, 36, 20};
  const std::vector<float> from = random_frame(in, 1);
  for (const auto& [up, down] : {std::pair{1, 1}, {2, 1}, {4, 1}, {1, 2}, {1, 4}})
    for (const bool add : {false, true}) {
      const int64_t h = 8 * up / down, w = 36 * up / down;
      const FrameLayout out{h / 2, w, 20, DType::kF32, 0};
      const FrameScaling s{.up = up, .down = down, .factor = 0.5F, .add = add, .first_row = h / 2};
      const std::vector<float> before = random_frame(out, 2);
      const Results r = in_every_schedule([&](Stream& stream) {
        Array source(DType::kF32, from), to(DType::kF32, before);
        cuda::frame_resize(stream, to.floats(), out, source.floats(), in, s);
        return Results{to.values()};
      });
      std::vector<float> want = before;
      reference::frame_resize(want.data(), out, from.data(), in, s);
      expect_close(r[0], want, kFp32, "frame");  // positions are exact: factors are powers of 2
      expect_clean(out, r[0]);
    }
}

TEST(CudaInterpolation, Warp) {
  // Channels that begin at a quad and beside one, and end within one.
  for (const int64_t to : {4, 5}) {
    const FrameLayout in{9, 67, 22}, field{9, 67, 4, DType::kF32, 0}, out{6, 67, 40};
    const WarpPlace p{.to = to, .from = 2, .first_row = 3};
    const std::vector<float> from = random_frame(in, 1);
    std::vector<float> flow = random_frame(field, 2, 8);
    flow[static_cast<size_t>(field.cell(5, 5) + 2)] = 1e30F;
    const auto run = [&] {
      return in_every_schedule([&](Stream& stream) {
        Array source(DType::kF32, from), vectors(DType::kF32, flow), to_frame(DType::kF32, zeros(out.elements()));
        cuda::frame_warp(stream, to_frame.floats(), out, source.floats(), in, vectors.floats(), field, p);
        return Results{to_frame.values()};
      })[0];
    };
    std::vector<float> want = zeros(out.elements());
    reference::frame_warp(want.data(), out, from.data(), in, flow.data(), field, p);
    const std::vector<float> got = run();
    expect_close(got, want, kPositions, "frame");
    expect_clean(out, got);
    // Whatever the flow, nothing outside the frame is read.
    flow[static_cast<size_t>(field.cell(5, 5) + 3)] = std::numeric_limits<float>::quiet_NaN();
    run();
  }
}

TEST(CudaInterpolation, Blend) {
  const int64_t h = 11, w = 59, padded_h = 16, padded_w = 64, count = 3;
  const std::vector<uint8_t> a = bytes(3 * h * w, 53), b = bytes(3 * h * w, 97);
  const FrameLayout decoded_layout{6, padded_w, 8 * count, DType::kF32, 0}, base_layout{6, padded_w, 4, DType::kF32, 0}, out{6, padded_w, 3 * count};
  Array decoded = frame_array(decoded_layout, 1, 3), base = frame_array(base_layout, 2, 5);
  CandidateBlend c;
  c.first = {.rgb = a.data(), .width = w, .height = h, .left = 3, .top = 2};
  c.second = c.first;
  c.second.rgb = b.data();
  c.height = padded_h, c.width = padded_w;
  c.decoded = decoded.floats(), c.decoded_layout = decoded_layout;
  c.base = base.floats(), c.base_layout = base_layout;
  c.first_row = 7;
  const Results r = in_every_schedule([&](Stream& stream) {
    Array to(DType::kF32, zeros(out.elements()));
    cuda::blend_candidates(stream, to.floats(), out, c);
    return Results{to.values()};
  });
  std::vector<float> want = zeros(out.elements());
  reference::blend_candidates(want.data(), out, c);
  expect_close(r[0], want, kPositions, "candidates");
  expect_clean(out, r[0]);
}

TEST(CudaInterpolation, ChannelsAndPredictionAreTheCpus) {
  InlineStream cpu;
  const FrameLayout in{7, 90, 9}, out{5, 90, 20, DType::kF32, 0}, correction_layout{7, 90, 3, DType::kF32, 0};
  const std::vector<float> from = random_frame(in, 1, 0.5, 0.5), correction = random_frame(correction_layout, 2, 0.3), before = random_frame(out, 3);
  const auto run = [&](auto* move, auto* predict) {
    return [&, move, predict](Stream& stream) {
      Array source(DType::kF32, from), more(DType::kF32, correction), moved(DType::kF32, before), picture(DType::kF32, std::vector<float>(3 * 10 * 90, -7.0f));
      move(stream, moved.floats(), out, source.floats(), in, {.to = 3, .from = 2, .count = 5, .first_row = 1, .add = false});
      move(stream, moved.floats(), out, source.floats(), in, {.to = 7, .from = 1, .count = 7, .first_row = 2, .add = true});
      predict(stream, picture.floats(), source.floats(), in, more.floats(), correction_layout,
              {.height = 10, .width = 90, .first = 5, .rows = 4, .first_row = 3});
      return Results{moved.values(), picture.values()};
    };
  };
  EXPECT_EQ(in_every_schedule(run(&cuda::frame_channels, &cuda::predict_rows)), run(&cpu::frame_channels, &cpu::predict_rows)(cpu));
}

TEST(CudaInterpolation, PredictionsThatAreNoNumbersStay) {
  const FrameLayout one{1, 1, 3};
  const Results r = in_every_schedule([&](Stream& stream) {
    Array candidates(DType::kF32, random_frame(one, 1)), correction(DType::kF32, random_frame(one, 2)), picture = Array::empty(DType::kF32, 3);
    correction.floats()[one.cell(0, 0) + 1] = std::numeric_limits<float>::quiet_NaN();
    cuda::predict_rows(stream, picture.floats(), candidates.floats(), one, correction.floats(), one, {.height = 1, .width = 1, .rows = 1, .count = 1});
    return Results{picture.values()};
  });
  EXPECT_FALSE(std::isnan(r[0][0]));
  EXPECT_TRUE(std::isnan(r[0][1]));
}

TEST(CudaInterpolation, FramesWithoutCellsAreLeftAlone) {
  const FrameLayout none{0, 4, 16};
  InlineStream stream;
  Array a(DType::kF32, zeros(none.elements()));
  cuda::frame_channels(stream, a.floats(), none, a.floats(), none, {.count = 4});
  cuda::frame_resize(stream, a.floats(), none, a.floats(), none, {});
  cuda::frame_warp(stream, a.floats(), none, a.floats(), none, a.floats(), none, {});
  cuda::predict_rows(stream, nullptr, nullptr, none, nullptr, none, {});
  EXPECT_EQ(a.values(), zeros(none.elements()));
}

}  // namespace
}  // namespace megaslide
