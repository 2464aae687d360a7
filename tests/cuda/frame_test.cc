// Frames of the video autoencoder and the text encoders' attention under the emulator.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/causal_attention/causal_attention.h"
#include "kernels/conv3d/conv3d.h"
#include "kernels/frame/frame_ops.h"
#include "kernels/relative_attention/relative_attention.h"
#include "tests/cuda/frames.h"

namespace megaslide {
namespace {

using namespace testing_support;

std::vector<float> padded(int64_t n, uint64_t series, double mean) {
  std::vector<float> v = normals(n, series, 0.3, mean);
  v.resize(static_cast<size_t>((n + kConvPanel - 1) / kConvPanel * kConvPanel));
  return v;
}

struct Case {
  ConvShape shape;
  int64_t rows, columns;  // of the input
  int64_t stride = 1;
  int64_t step = 1;  // of the output
  bool residual = true, silu = true;
  int64_t absent = 0;  // frames
  bool slope = false;
  int64_t border = 1;  // of the input
};
// Fewer and more channels and cells than a tile has; strides, upsampling, rows without a column to the side, long kernels along an axis.
const Case kCases[] = {{.shape = {3, 20, 3, 3, 3}, .rows = 5, .columns = 9},
                       {.shape = {40, 72, 3, 3, 3}, .rows = 3, .columns = 4, .absent = 2},
                       {.shape = {64, 33, 1, 3, 3}, .rows = 6, .columns = 8, .stride = 2, .residual = false},
                       {.shape = {24, 48, 3, 1, 1}, .rows = 3, .columns = 1, .absent = 1},
                       {.shape = {48, 70, 1, 1, 1}, .rows = 9, .columns = 15, .silu = false, .slope = true},
                       {.shape = {32, 3, 1, 2, 2}, .rows = 4, .columns = 5, .step = 2},
                       {.shape = {20, 40, 2, 1, 5}, .rows = 3, .columns = 7, .silu = false, .border = 2},
                       {.shape = {14, 20, 1, 7, 1}, .rows = 5, .columns = 4, .residual = false, .slope = true, .border = 3}};

struct ConvSetup {
  ConvSetup(const Case& c, DType dtype, DType out_dtype)
      : test(c), in{c.rows, c.columns, c.shape.in, dtype, c.border}, out{c.rows / c.stride * c.step, c.columns / c.stride * c.step, c.shape.out, out_dtype},
        weights(as_stored(dtype, normals(c.shape.weights(), 1, 1 / std::sqrt(static_cast<double>(c.shape.in * c.shape.taps()))))),
        bias(padded(c.shape.out, 2, 0)), gamma(padded(c.shape.out, 3, 1)), slope(padded(c.shape.out, 6, 0.1)), residual(out_dtype, random_frame(out, 4)),
        residual2(out_dtype, random_frame(out, 5)) {
    for (int64_t t = 0; t < c.shape.kt; ++t) frames.emplace_back(dtype, random_frame(in, static_cast<uint64_t>(10 + t)));
  }
  FrameConv call(void* raw, void* normed) {
    FrameConv f;
    f.shape = test.shape, f.in = in, f.stride = test.stride;
    for (size_t t = static_cast<size_t>(test.absent); t < frames.size(); ++t) f.frames[t] = frames[t].data();
    const auto before = [&](int64_t taps) { return test.stride == 1 && taps % 2 == 1 ? -(taps / 2) : 0; };
    f.dy = before(test.shape.kh), f.dx = before(test.shape.kw);
    f.rows = test.rows / test.stride, f.columns = test.columns / test.stride;
    FrameFinish& g = f.finish;
    g.out = out, g.step = test.step, g.y = test.step - 1, g.bias = bias.data(), g.raw = raw, g.normed = normed, g.gamma = gamma.data(), g.silu = test.silu;
    if (test.slope) g.slope = slope.data();
    if (test.residual) g.residual = residual.data(), g.residual2 = residual2.data();
    return f;
  }
  Case test;
  FrameLayout in, out;
  std::vector<float> weights, bias, gamma, slope;
  Array residual, residual2;
  std::vector<Array> frames;
};

void check_conv(const Case& c, DType dtype, DType out_dtype) {
  SCOPED_TRACE(fmt::format("{}->{} {}x{}x{} {} {}", c.shape.in, c.shape.out, c.shape.kt, c.shape.kh, c.shape.kw, dtype_name(dtype), dtype_name(out_dtype)));
  ConvSetup s(c, dtype, out_dtype);
  const std::vector<float> empty = zeros(s.out.elements());
  const Results r = in_every_schedule([&](Stream& stream) {
    Array packed = Array::empty(DType::kF32, conv_packed_bytes(c.shape, dtype) / 4), raw(out_dtype, empty), normed(out_dtype, empty), alone(out_dtype, empty),
          only_raw(out_dtype, empty);
    cuda::conv_pack(stream, packed.data(), s.weights.data(), c.shape, dtype);
    const auto run = [&](void* to, void* norm) {
      FrameConv f = s.call(to, norm);
      f.packed = packed.data();
      cuda::frame_conv(stream, f);
    };
    run(raw.data(), normed.data());
    if (c.absent == 1) {
      run(nullptr, alone.data());
      run(only_raw.data(), nullptr);
    }
    return Results{raw.values(), normed.values(), alone.values(), only_raw.values()};
  });
  Array raw(out_dtype, empty), normed(out_dtype, empty);
  reference::frame_conv(s.call(raw.data(), normed.data()), s.weights.data());
  // fp32: sums of up to 1,080 products. bf16: one rounding, and two of random signs in the norm, whose root mean square is
  // 0.57 of the largest of each.
  expect_close(r[0], raw.values(), kFp32 + rounding(out_dtype), "raw");
  expect_close(r[1], normed.values(), kFp32 + rounding(out_dtype), "normed");
  if (c.absent == 1) {  // one case is enough for the results one at a time
    EXPECT_EQ(r[2], r[1]);
    EXPECT_EQ(r[3], r[0]);
  }
  for (const std::vector<float>& v : r) expect_clean(s.out, v);
}

TEST(CudaFrame, Conv) {
  for (const Case& c : kCases)
    for (const DType dtype : kBothTypes) check_conv(c, dtype, dtype);
  check_conv(kCases[0], DType::kBF16, DType::kF32);
}

TEST(CudaFrame, Finish) {
  for (const DType dtype : kBothTypes) {
    const FrameLayout l{3, 5, 140, dtype};
    const std::vector<float> in = random_frame(l, 1), added = random_frame(l, 2), bias = padded(l.channels, 3, 0), gamma = padded(l.channels, 4, 1);
    const Results r = in_every_schedule([&](Stream& stream) {
      Array x(dtype, in), residual(dtype, added), raw(dtype, zeros(l.elements())), normed(dtype, zeros(l.elements()));
      FrameFinish f;
      f.out = l, f.bias = bias.data(), f.gamma = gamma.data(), f.residual = residual.data(), f.raw = raw.data(), f.normed = normed.data();
      cuda::frame_finish(stream, x.data(), f);
      return Results{raw.values(), normed.values()};
    });
    std::vector<float> raw = zeros(l.elements()), normed = raw;
    for (int64_t y = 0; y < l.height; ++y)
      for (int64_t x = 0; x < l.width; ++x) {
        const auto at = static_cast<size_t>(l.cell(y, x));
        double squares = 0;
        for (size_t c = 0; c < 140; ++c) raw[at + c] = in[at + c] + bias[c] + added[at + c], squares += std::pow(static_cast<double>(raw[at + c]), 2);
        for (size_t c = 0; c < 140; ++c) {
          const double v = static_cast<double>(raw[at + c]) * std::sqrt(140 / squares) * static_cast<double>(gamma[c]);
          normed[at + c] = static_cast<float>(v / (1 + std::exp(-v)));
        }
      }
    expect_close(r[0], raw, kFp32 + rounding(dtype), "raw");
    expect_close(r[1], normed, kFp32 + rounding(dtype), "normed");
    for (const std::vector<float>& v : r) expect_clean(l, v);
  }
}

// A cell of a chain after the other by the same operations: the CPU's bits.
TEST(CudaFrame, Planes) {
  InlineStream cpu;
  for (const DType dtype : kBothTypes)
    for (const int64_t patch : {1, 2}) {
      const FrameLayout l{4, 7, 20, dtype};
      const FramePlanes p{.plane = l.height * l.width * patch * patch + 3, .width = l.width * patch, .patch = patch, .first = 2, .count = 3 * patch * patch};
      const std::vector<float> planes = normals(3 * p.plane, 1), scale = normals(3, 2), shift = normals(3, 3);
      for (const bool scaled : {false, true}) {
        const auto both = [&](Stream& stream, const auto& from, const auto& to) {
          Array frame(dtype, zeros(l.elements()));
          std::vector<float> back = zeros(3 * p.plane);
          from(stream, frame.data(), l, planes.data(), p, scaled ? scale.data() : nullptr, scaled ? shift.data() : nullptr);
          to(stream, back.data(), frame.data(), l, p);
          return Results{frame.values(), back};
        };
        EXPECT_EQ(in_every_schedule([&](Stream& stream) { return both(stream, cuda::frame_from_planes, cuda::frame_to_planes); }),
                  both(cpu, cpu::frame_from_planes, cpu::frame_to_planes));
      }
    }
}

TEST(CudaFrame, AverageAndRepeat) {
  InlineStream cpu;
  for (const DType dtype : kBothTypes)
    for (const auto& [ft, fs] : std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {2, 2}, {2, 1}})
      for (int64_t a = 0; a < ft; ++a) {
        const FrameLayout small{2, 3, 24, dtype}, large{2 * fs, 3 * fs, 12, dtype};
        const std::vector<float> coarse = random_frame(small, 1), fine = random_frame(large, 2);
        for (const bool add : {false, true}) {
          const auto both = [&](Stream& stream, const auto& average, const auto& repeat) {
            Array from(dtype, fine), down(dtype, coarse), up(dtype, zeros(large.elements())), source(dtype, coarse);
            average(stream, down.data(), small, from.data(), large, ft, fs, a, add);
            repeat(stream, up.data(), large, source.data(), small, ft, fs, a);
            return Results{down.values(), up.values()};
          };
          EXPECT_EQ(in_every_schedule([&](Stream& stream) { return both(stream, cuda::frame_average, cuda::frame_repeat); }),
                    both(cpu, cpu::frame_average, cpu::frame_repeat));
        }
      }
}

// Several tiles of keys, a tail of queries; channels of one, four and eight columns a thread.
TEST(CudaFrame, Attention) {
  for (const auto& [height, width, channels] : std::vector<std::array<int64_t, 3>>{{1, 1, 16}, {3, 13, 40}, {5, 15, 200}, {2, 5, 530}})
    for (const DType dtype : kBothTypes) {
      const FrameLayout l{height, width, channels, dtype, 0}, wide{height, width, 3 * channels, DType::kF32, 0};
      const std::vector<float> qkv = random_frame(wide, 1);
      const Results r = in_every_schedule([&](Stream& stream) {
        Array in(DType::kF32, qkv), out(dtype, zeros(l.elements()));
        cuda::frame_attention(stream, out.data(), l, in.floats(), wide);
        return Results{out.values()};
      });
      const int64_t n = height * width;
      // As relative attention of one head without a bias, q scaled.
      std::vector<float> part[3], out(static_cast<size_t>(n * channels)), got;
      for (int64_t cell = 0; cell < n; ++cell)
        for (int64_t c = 0; c < channels; ++c) {
          for (int64_t i = 0; i < 3; ++i)
            part[i].push_back(qkv[static_cast<size_t>(cell * wide.stored() + i * channels + c)] / (i == 0 ? std::sqrt(static_cast<float>(channels)) : 1.0f));
          got.push_back(r[0][static_cast<size_t>(cell * l.stored() + c)]);
        }
      reference::relative_attention_forward(out.data(), part[0].data(), part[1].data(), part[2].data(), zeros(kRelativeBuckets).data(), n, 1, channels);
      expect_close(got, out, kFp32 + rounding(dtype), "out");
      expect_clean(l, r[0]);
    }
}

TEST(CudaFrame, RelativeAttention) {
  for (const auto& [n, heads, d] : std::vector<std::array<int64_t, 3>>{{1, 1, 4}, {37, 3, 16}, {70, 1, 64}, {9, 2, 130}, {3, 1, 600}})
    for (const DType dtype : kBothTypes) {
      const int64_t size = n * heads * d;
      // Products of √d standard deviations: a softmax that is neither flat nor a single one.
      const double spread = 1 / std::sqrt(std::sqrt(static_cast<double>(d)));
      const std::vector<float> q = as_stored(dtype, normals(size, 1, spread)), k = as_stored(dtype, normals(size, 2, spread)), v = as_stored(dtype, normals(size, 3)),
                               bias = normals(kRelativeBuckets * heads, 4);
      const Results r = in_every_schedule([&](Stream& stream) {
        Array q_in(dtype, q), k_in(dtype, k), v_in(dtype, v), out = Array::empty(dtype, size);
        cuda::relative_attention_forward(stream, out.data(), q_in.data(), k_in.data(), v_in.data(), bias.data(), n, heads, d, dtype);
        return Results{out.values()};
      });
      std::vector<float> out(q.size());
      reference::relative_attention_forward(out.data(), q.data(), k.data(), v.data(), bias.data(), n, heads, d);
      expect_close(r[0], out, kFp32 + rounding(dtype), "out");
    }
}

// Fewer tokens than a block has queries, tiles of keys that end before and with the text, wide heads.
TEST(CudaFrame, CausalAttention) {
  for (const auto& [n, heads, d] : std::vector<std::array<int64_t, 3>>{{0, 1, 4}, {1, 1, 4}, {8, 2, 16}, {33, 1, 130}, {77, 3, 64}})
    for (const DType dtype : kBothTypes) {
      const int64_t size = n * heads * d;
      const std::vector<float> q = as_stored(dtype, normals(size, 1)), k = as_stored(dtype, normals(size, 2)), v = as_stored(dtype, normals(size, 3));
      const float scale = 1 / std::sqrt(static_cast<float>(d));
      const Results r = in_every_schedule([&](Stream& stream) {
        Array q_in(dtype, q), k_in(dtype, k), v_in(dtype, v), out = Array::empty(dtype, size);
        cuda::causal_attention_forward(stream, out.data(), q_in.data(), k_in.data(), v_in.data(), n, heads, d, scale, dtype);
        return Results{out.values()};
      });
      std::vector<float> out(q.size());
      reference::causal_attention_forward(out.data(), q.data(), k.data(), v.data(), n, heads, d, static_cast<double>(scale));
      expect_close(r[0], out, kFp32 + rounding(dtype), "out");
      // The first token sees itself alone.
      const int64_t row = std::min(size, heads * d);
      EXPECT_EQ(std::vector<float>(r[0].begin(), r[0].begin() + row), std::vector<float>(v.begin(), v.begin() + row));
    }
}

}  // namespace
}  // namespace megaslide
