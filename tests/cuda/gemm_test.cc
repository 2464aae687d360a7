// The products of cuBLASLt (under the emulator: of its mock), and the device kernels around them.
#include <gtest/gtest.h>

#include <thread>

#include "kernels/activation/activation.h"
#include "tests/cuda/gemm_layer.h"

namespace megaslide {
namespace {

using namespace testing_support;

// One number; a row; odd sizes; more than a piece of rows; a long sum, which the mock cuts in two in its workspace.
const ProductShape kShapes[] = {{1, 1, 1}, {1, 64, 96}, {7, 13, 29}, {130, 40, 36}, {9, 16, 600}};

template <class F>
void each_layer(F body) {
  for (const ProductShape& s : kShapes)
    for (const DType dtype : kBothTypes)
      for (const int shift : {0, 1}) {
        SCOPED_TRACE(fmt::format("{} {}x{}x{} shift {}", dtype_name(dtype), s.m, s.n, s.k, shift));
        body(Layer(s, dtype), shift);
      }
}

TEST(CudaGemm, Forward) {
  const Workspace workspace(1 << 16);
  each_layer([](const Layer& l, int shift) {
    for (const bool bias : {false, true}) {
      const Results r = in_every_schedule([&](Stream& stream) {
        Array w = l.packed(stream, PackFor::kForward), x(l.dtype, l.x, shift), b(l.dtype, l.b, shift), y = Array::empty(DType::kF32, l.m * l.n, shift),
              rounded = Array::empty(l.dtype, l.m * l.n, shift);
        const void* added = bias ? b.data() : nullptr;
        cuda::linear_forward(stream, y.floats(), x.data(), w.data(), added, l.m, l.n, l.k, l.dtype);
        cuda::linear_operand(stream, rounded.data(), x.data(), w.data(), added, l.m, l.n, l.k, l.dtype);
        return Results{y.values(), rounded.values()};
      });
      expect_close(r[0], l.y(bias), kFp32, "y");
      if (under_emulator) {
        EXPECT_EQ(r[1], as_stored(l.dtype, r[0]));
      }
      // cuBLASLt may sum in another order for another type of result: then roundings turn.
      expect_close(r[1], r[0], kFp32 + rounding(l.dtype), "rounded");
    }
  });
}

TEST(CudaGemm, Gradients) {
  const Workspace workspace(1 << 16);
  each_layer([](const Layer& l, int shift) {
    const std::vector<float> dx0 = normals(l.m * l.k, 5), dw0 = normals(l.n * l.k, 6);
    const Results r = in_every_schedule([&](Stream& stream) {
      Array w = l.packed(stream, PackFor::kInputGradient), x(l.dtype, l.x, shift), dy(l.dtype, l.dy, shift),
            dx = Array::empty(DType::kF32, l.m * l.k, shift), sum(DType::kF32, dx0, shift), dw(DType::kF32, dw0, shift);
      cuda::linear_input_gradient(stream, dx.floats(), dy.data(), w.data(), l.m, l.n, l.k, l.dtype, false);
      cuda::linear_input_gradient(stream, sum.floats(), dy.data(), w.data(), l.m, l.n, l.k, l.dtype, true);
      cuda::linear_weight_gradient(stream, dw.floats(), nullptr, dy.data(), x.data(), l.m, l.n, l.k, l.dtype);
      return Results{dx.values(), sum.values(), dw.values()};
    });
    expect_close(r[0], l.dx(zeros(l.m * l.k)), kFp32, "dx");
    expect_close(r[1], l.dx(dx0), kFp32, "dx accumulated");
    expect_close(r[2], l.dw(dw0), kFp32, "dw");
  });
}

TEST(CudaGemm, Gelu) {
  const Workspace workspace(1 << 16);
  each_layer([](const Layer& l, int shift) {
    const Results r = in_every_schedule([&](Stream& stream) {
      Array w = l.packed(stream, PackFor::kForward), x(l.dtype, l.x, shift), b(l.dtype, l.b, shift), kept = Array::empty(l.dtype, l.m * l.n, shift),
            y = Array::empty(l.dtype, l.m * l.n, shift), alone = Array::empty(l.dtype, l.m * l.n, shift);
      cuda::linear_gelu(stream, y.data(), kept.data(), x.data(), w.data(), b.data(), l.m, l.n, l.k, l.dtype);
      cuda::linear_gelu(stream, alone.data(), nullptr, x.data(), w.data(), b.data(), l.m, l.n, l.k, l.dtype);
      return Results{kept.values(), y.values(), alone.values()};
    });
    // Sums whose rounding turns the other way, twice at most.
    expect_close(r[0], l.y(true), kFp32 + rounding(l.dtype), "kept");
    std::vector<float> value = r[0];
    for (float& v : value) v = static_cast<float>(reference::gelu(static_cast<double>(v)));
    expect_close(r[1], value, kFp32 + rounding(l.dtype), "y");
    EXPECT_EQ(r[2], r[1]);
  });
}

// Groups of 5 rows, the first of which began 3 rows before; without `kept` in runs of 64 rows of the workspace.
TEST(CudaGemm, GatedAdd) {
  each_layer([](const Layer& l, int shift) {
    constexpr int64_t kGroup = 5, kFirst = 3;
    // Not a multiple of four where the rows are not.
    const int64_t stride = l.n + 4;
    const Workspace workspace(static_cast<size_t>(2 * (70 * l.n * dtype_bytes(l.dtype) + 256)));
    const std::vector<float> residual = normals(l.m * l.n, 5), gate = normals(stride * ((kFirst + l.m) / kGroup + 1), 6);
    for (const bool gated : {true, false}) {
      const Results r = in_every_schedule([&](Stream& stream) {
        Array w = l.packed(stream, PackFor::kForward), x(l.dtype, l.x, shift), b(l.dtype, l.b, shift), kept = Array::empty(l.dtype, l.m * l.n, shift),
              y = Array::empty(DType::kF32, l.m * l.n, shift), before(DType::kF32, residual, shift), in_place(DType::kF32, residual, shift),
              g(DType::kF32, gate, shift);
        const float* factor = gated ? g.floats() : nullptr;
        cuda::linear_gated_add(stream, y.floats(), kept.data(), before.floats(), factor, x.data(), w.data(), b.data(), l.m, l.n, l.k, kFirst,
                               kGroup, stride, l.dtype);
        cuda::linear_gated_add(stream, in_place.floats(), nullptr, in_place.floats(), factor, x.data(), w.data(), b.data(), l.m, l.n, l.k, kFirst,
                               kGroup, stride, l.dtype);
        return Results{kept.values(), y.values(), in_place.values()};
      });
      expect_close(r[0], l.y(true), kFp32 + rounding(l.dtype), "kept");
      std::vector<float> sum = residual;
      for (int64_t i = 0; i < l.m * l.n; ++i) {
        const float factor = gated ? item(gate, (kFirst + i / l.n) / kGroup * stride + i % l.n) : 1.0f;
        sum[static_cast<size_t>(i)] = std::fma(factor, item(r[0], i), item(residual, i));
      }
      EXPECT_EQ(r[1], sum);
      // Runs of other heights: sums in another order, and so roundings that turn.
      expect_close(r[2], sum, kFp32 + rounding(l.dtype), "in place");
    }
  });
}

TEST(CudaGemm, GeluGradient) {
  each_layer([](const Layer& l, int shift) {
    const Workspace workspace(static_cast<size_t>(2 * (70 * l.k * 4 + 256)));
    const std::vector<float> before = as_stored(l.dtype, normals(l.m * l.k, 5)), dbias0 = normals(l.k, 6);
    const Results r = in_every_schedule([&](Stream& stream) {
      // y takes the place of what was kept.
      Array w = l.packed(stream, PackFor::kInputGradient), dy(l.dtype, l.dy, shift), kept(l.dtype, before, shift), dx = Array::empty(l.dtype, l.m * l.k, shift),
            dbias(DType::kF32, dbias0, shift), scratch = Array::empty(DType::kF32, gelu_scratch(l.m, l.k), shift);
      cuda::linear_gelu_gradient(stream, dx.data(), kept.data(), dbias.floats(), scratch.floats(), dy.data(), w.data(), kept.data(), l.m, l.n, l.k,
                                 l.dtype);
      return Results{dx.values(), kept.values(), dbias.values()};
    });
    std::vector<float> dx = l.dx(zeros(l.m * l.k)), y = before, dbias = dbias0;
    for (int64_t i = 0; i < l.m * l.k; ++i) {
      const auto u = static_cast<size_t>(i);
      dx[u] = static_cast<float>(static_cast<double>(dx[u]) * reference::gelu_derivative(static_cast<double>(before[u])));
      y[u] = static_cast<float>(reference::gelu(static_cast<double>(before[u])));
      dbias[static_cast<size_t>(i % l.k)] += dx[u];
    }
    // Of the sum behind a small derivative 1.1 is subtracted and added: twice the error of a sum.
    expect_close(r[0], dx, 2 * kFp32 + rounding(l.dtype), "dx");
    expect_close(r[1], y, kFp32 + rounding(l.dtype), "y");
    expect_close(r[2], dbias, 2 * kFp32, "dbias");
  });
}

// The CPU's bits: blocks of 64 rows in order; more than the 2,048 rows that a block has in flight.
TEST(CudaGemm, BiasGradient) {
  for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {1, 1}, {64, 33}, {200, 77}, {2200, 5}}) {
    const std::vector<float> dy = normals(m * n, 1), before = normals(n, 2);
    std::vector<float> expected = before;
    InlineStream cpu;
    cpu::bias_gradient(cpu, expected.data(), dy.data(), m, n);
    EXPECT_EQ(in_every_schedule([&](Stream& stream) {
                std::vector<float> db = before;
                cuda::bias_gradient(stream, db.data(), dy.data(), m, n);
                return Results{db};
              })[0],
              expected)
        << m << "x" << n;
  }
}

TEST(CudaGemm, CastOperand) {
  for (const int64_t n : {0, 1, 7, 1024, 2051})
    for (const DType dtype : kBothTypes)
      for (const int shift : {0, 1}) {
        const std::vector<float> in = normals(n, 1);
        const Results r = in_every_schedule([&](Stream& stream) {
          Array from(DType::kF32, in, shift), to = Array::empty(dtype, n, shift);
          cuda::cast_operand(stream, to.data(), from.floats(), n, dtype);
          return Results{to.values()};
        });
        EXPECT_EQ(r[0], as_stored(dtype, in)) << n;
      }
}

TEST(CudaGemm, NothingToDo) {
  InlineStream stream;
  std::vector<float> dw(12, 3.0f), dbias(4, 2.0f);
  for (const DType dtype : kBothTypes) {
    cuda::linear_forward(stream, nullptr, nullptr, nullptr, nullptr, 0, 3, 4, dtype);
    cuda::linear_operand(stream, nullptr, nullptr, nullptr, nullptr, 0, 3, 4, dtype);
    cuda::linear_gelu(stream, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 3, 4, dtype);
    cuda::linear_gated_add(stream, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 3, 4, 0, 1, 3, dtype);
    cuda::linear_input_gradient(stream, nullptr, nullptr, nullptr, 0, 3, 4, dtype, true);
    cuda::linear_weight_gradient(stream, dw.data(), nullptr, nullptr, nullptr, 0, 3, 4, dtype);
    cuda::linear_gelu_gradient(stream, nullptr, nullptr, dbias.data(), nullptr, nullptr, nullptr, nullptr, 0, 3, 4, dtype);
  }
  EXPECT_EQ(dw, std::vector<float>(12, 3.0f));
  EXPECT_EQ(dbias, std::vector<float>(4, 2.0f));
}

}  // namespace
}  // namespace megaslide
