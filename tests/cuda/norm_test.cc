#include "kernels/norm/norm.h"

#include "kernels/rms_norm/rms_norm.h"
#include "tests/cuda/schedules.h"

namespace megaslide {
namespace {

using namespace testing_support;

constexpr float kEps = 1e-6F;

// Widths around quads, and for each number of them a thread has; rows around pieces of 64.
struct Case {
  int64_t groups, group_rows, width;
  int shift;
};
const Case kCases[] = {{0, 1, 8, 0}, {1, 1, 1, 0}, {2, 3, 7, 1}, {2, 65, 24, 0}, {3, 2, 132, 1}, {1, 3, 1536, 0}, {1, 2, 2052, 0},
                       {1, 1, 5120, 1}, {1, 1, 8190, 0}};

TEST(CudaNorm, LayerNormForward) {
  for (const Case& c : kCases) {
    std::vector<float> wide;
    for (const DType dtype : kBothTypes) {
      SCOPED_TRACE(c.width);
      const int64_t rows = c.groups * c.group_rows, n = rows * c.width, stride = 3 * c.width;
      const std::vector<float> x = normals(n, 1, 2, 3), mul = normals(c.groups * stride, 2, 0.5, 1), add = normals(c.groups * stride, 3);
      const Results r = in_every_schedule([&](Stream& stream) {
        Array y = Array::empty(dtype, n, c.shift), in(DType::kF32, x, c.shift), m(DType::kF32, mul), a(DType::kF32, add);
        cuda::layer_norm_forward(stream, y.data(), in.floats(), m.floats(), a.floats(), rows, c.width, c.group_rows, stride, kEps, dtype);
        return Results{y.values()};
      });
      std::vector<float> expected(x.size());
      reference::layer_norm_forward(expected.data(), x.data(), mul.data(), add.data(), rows, c.width, c.group_rows, stride, kEps);
      if (dtype == DType::kF32) expect_close(wide = r[0], expected, kFp32, "y");
      EXPECT_EQ(r[0], as_stored(dtype, wide));
    }
  }
}

TEST(CudaNorm, LayerNormBackward) {
  for (const Case& c : kCases)
    for (const bool with_residual : {false, true}) {
      const int64_t rows = c.groups * c.group_rows, n = rows * c.width, stride = 2 * c.width, vectors = c.groups * stride;
      if (rows > 100 && !with_residual) continue;
      SCOPED_TRACE(c.width);
      const std::vector<float> x = normals(n, 1, 2, 3), mul = normals(vectors, 2, 0.5, 1), dy = normals(n, 4), residual = normals(n, 5),
                               dmul = normals(vectors, 6), dadd = normals(vectors, 7);
      const Results r = in_every_schedule([&](Stream& stream) {
        // In the place of the residual, or else of dy.
        Array dx(DType::kF32, with_residual ? residual : dy, c.shift), g(DType::kF32, dy), in(DType::kF32, x), m(DType::kF32, mul),
            gmul(DType::kF32, dmul), gadd(DType::kF32, dadd),
            scratch = Array::empty(DType::kF32, layer_norm_scratch(rows, c.group_rows, c.width));
        cuda::layer_norm_backward(stream, dx.floats(), gmul.floats(), gadd.floats(), scratch.floats(), with_residual ? g.floats() : dx.floats(),
                                  with_residual ? dx.floats() : nullptr, in.floats(), m.floats(), rows, c.width, c.group_rows, stride, kEps);
        return Results{dx.values(), gmul.values(), gadd.values()};
      });
      std::vector<float> dx(x.size()), gmul = dmul, gadd = dadd;
      reference::layer_norm_backward(dx.data(), gmul.data(), gadd.data(), dy.data(), with_residual ? residual.data() : nullptr, x.data(),
                                     mul.data(), rows, c.width, c.group_rows, stride, kEps);
      // Of one channel dx is the residual, or 0 but for a rounding.
      if (c.width > 1 || with_residual) expect_close(r[0], dx, kFp32, "dx");
      expect_close(r[1], gmul, kFp32, "dmul");
      expect_close(r[2], gadd, kFp32, "dadd");
    }
}

TEST(CudaNorm, RmsNormForward) {
  for (const Case& c : kCases) {
    std::vector<float> wide;
    for (const DType dtype : kBothTypes) {
      SCOPED_TRACE(c.width);
      const int64_t rows = c.groups * c.group_rows, n = rows * c.width;
      const std::vector<float> x = normals(n, 1, 2, 3), w = normals(c.width, 2, 0.5, 1);
      const Results r = in_every_schedule([&](Stream& stream) {
        Array y = Array::empty(dtype, n, c.shift), in(DType::kF32, x, c.shift), weight(DType::kF32, w);
        cuda::rms_norm_forward(stream, y.data(), in.floats(), weight.floats(), rows, c.width, kEps, dtype);
        return Results{y.values()};
      });
      std::vector<float> expected(x.size());
      reference::rms_norm_forward(expected.data(), x.data(), w.data(), rows, c.width, kEps);
      if (dtype == DType::kF32) expect_close(wide = r[0], expected, kFp32, "y");
      EXPECT_EQ(r[0], as_stored(dtype, wide));
    }
  }
}

TEST(CudaNorm, AMeanOfManyDeviationsKeepsTheVariance) {
  const int64_t width = 256;
  const std::vector<float> x = normals(width, 1, 1e-3, 1), one(256, 1.0F), zero(256);
  std::vector<float> y(256), expected(256);
  InlineStream stream;
  cuda::layer_norm_forward(stream, y.data(), x.data(), one.data(), zero.data(), 1, width, 1, 0, 0.0F, DType::kF32);
  reference::layer_norm_forward(expected.data(), x.data(), one.data(), zero.data(), 1, width, 1, 0, 0.0F);
  EXPECT_LT(relative_error(y, expected), 1e-3);  // two passes: three digits are lost, not all seven
}

TEST(CudaNorm, RowsWiderThanABlockAreAnError) {
  InlineStream stream;
  EXPECT_THROW(cuda::layer_norm_forward(stream, nullptr, nullptr, nullptr, nullptr, 1, 8193, 1, 0, kEps, DType::kF32), Error);
}

}  // namespace
}  // namespace megaslide
