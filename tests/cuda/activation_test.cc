#include "kernels/activation/activation.h"

#include <cmath>
#include <limits>

#include "kernels/activation/mlp_activation.h"
#include "kernels/gated_gelu/gated_gelu.h"
#include "tests/cuda/schedules.h"

namespace megaslide {
namespace {

using namespace testing_support;

double silu(double x) { return x / (1 + std::exp(-x)); }
double silu_derivative(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}
template <class F>
std::vector<float> each(const std::vector<float>& x, F f) {
  std::vector<float> r(x.size());
  for (size_t i = 0; i < x.size(); ++i) r[i] = static_cast<float>(f(static_cast<double>(x[i]), i));
  return r;
}
// Values around 0, and some where the sigmoid is 0 or 1.
std::vector<float> inputs(int64_t n) {
  std::vector<float> x = normals(n, 1, 2);
  for (size_t i = 5; i < x.size(); i += 11) x[i] *= 30;
  return x;
}

TEST(CudaActivation, GeluForward) {
  for (const int64_t n : {0, 1, 7, 1024, 1403})
    for (const DType dtype : kBothTypes)
      for (const int shift : {0, 1}) {
        const std::vector<float> x = inputs(n), seen = as_stored(dtype, x);
        const auto run = [&](bool keep) {
          return in_every_schedule([&](Stream& stream) {
            Array in(DType::kF32, x, shift), y = Array::empty(dtype, n, shift), kept(dtype, keep ? zeros(n) : seen, shift);
            cuda::gelu_forward(stream, y.data(), keep ? kept.data() : nullptr, in.floats(), n, dtype);
            return Results{y.values(), kept.values()};
          });
        };
        const Results r = run(true);
        EXPECT_EQ(r[1], seen);
        EXPECT_EQ(run(false)[0], r[0]);
        expect_close(r[0], each(seen, [](double v, size_t) { return reference::gelu(v); }), kFp32 + rounding(dtype), "y");
      }
}

TEST(CudaActivation, GeluBackward) {
  struct Case {
    int64_t rows, width;
  };
  for (const Case& c : {Case{0, 4}, {1, 1}, {63, 5}, {64, 8}, {130, 516}, {65, 1037}})
    for (const DType dtype : kBothTypes)
      for (const int shift : {0, 1}) {
        const int64_t n = c.rows * c.width;
        const std::vector<float> x = as_stored(dtype, inputs(n)), dy = normals(n, 2), dbias = normals(c.width, 3);
        const Results r = in_every_schedule([&](Stream& stream) {
          // y takes the place of what was kept.
          Array kept(dtype, x, shift), dx = Array::empty(dtype, n, shift), bias(DType::kF32, dbias), g(DType::kF32, dy, shift),
              scratch = Array::empty(DType::kF32, gelu_scratch(std::max<int64_t>(1, c.rows), c.width), shift);
          cuda::gelu_backward(stream, dx.data(), kept.data(), bias.floats(), scratch.floats(), g.floats(), kept.data(), c.rows, c.width, dtype);
          return Results{dx.values(), kept.values(), bias.values()};
        });
        const std::vector<float> expected = each(
            x, [&](double v, size_t i) { return static_cast<double>(dy[i]) * reference::gelu_derivative(v); });
        expect_close(r[0], expected, kFp32 + rounding(dtype), "dx");
        expect_close(r[1], each(x, [](double v, size_t) { return reference::gelu(v); }), kFp32 + rounding(dtype), "y");
        std::vector<float> bias = dbias;
        for (int64_t i = 0; i < n; ++i) bias[static_cast<size_t>(i % c.width)] += expected[static_cast<size_t>(i)];
        expect_close(r[2], bias, kFp32, "dbias");
      }
}

TEST(CudaActivation, MlpActivation) {
  for (const int64_t n : {0, 1, 7, 1024, 2411})
    for (const MlpActivation f : {MlpActivation::kGelu, MlpActivation::kQuickGelu})
      for (const DType dtype : kBothTypes)
        for (const int shift : {0, 1}) {
          std::vector<float> x = normals(n, 1, 3);
          for (size_t i = 0; i < x.size(); i += 23) x[i] *= 40;
          const Results r = in_every_schedule([&](Stream& stream) {
            Array in(DType::kF32, x, shift), y = Array::empty(dtype, n, shift);
            cuda::mlp_activation_forward(stream, y.data(), in.floats(), n, f, dtype);
            if (dtype == DType::kF32) cuda::mlp_activation_forward(stream, in.data(), in.floats(), n, f, dtype);
            return Results{y.values(), in.values()};
          });
          EXPECT_EQ(r[1], dtype == DType::kF32 ? r[0] : x);  // in place too
          for (size_t i = 0; i < x.size(); ++i) {
            const double v = static_cast<double>(x[i]), expected = reference::mlp_activation(v, f);
            // The header's bounds, below e^-87 cut off, and the rounding to dtype.
            const double relative = (std::abs(v) <= 5 ? 1e-6 : 0x1p-21 * (1 + v * v / 4)) + rounding(dtype);
            ASSERT_NEAR(static_cast<double>(r[0][i]), expected, relative * std::abs(expected) + 1e-18) << x[i];
          }
        }
  for (const MlpActivation f : {MlpActivation::kGelu, MlpActivation::kQuickGelu}) {
    const Results r = in_every_schedule([&](Stream& stream) {
      Array x(DType::kF32, {std::numeric_limits<float>::quiet_NaN()});
      cuda::mlp_activation_forward(stream, x.data(), x.floats(), 1, f, DType::kF32);
      return Results{x.values()};
    });
    EXPECT_TRUE(std::isnan(r[0][0]));
  }
}

TEST(CudaActivation, GatedGelu) {
  for (const int64_t n : {0, 1, 7, 1403})
    for (const DType dtype : kBothTypes)
      for (const int shift : {0, 1}) {
        const std::vector<float> gate = inputs(n), up = normals(n, 2);
        const Results r = in_every_schedule([&](Stream& stream) {
          Array g(DType::kF32, gate, shift), v(DType::kF32, up, shift), y = Array::empty(dtype, n, shift);
          cuda::gated_gelu_forward(stream, y.data(), g.floats(), v.floats(), n, dtype);
          return Results{y.values()};
        });
        expect_close(r[0], each(gate, [&](double x, size_t i) { return reference::gated_gelu(x, static_cast<double>(up[i])); }),
                     kFp32 + rounding(dtype), "y");
      }
}

TEST(CudaActivation, Silu) {
  for (const int64_t n : {0, 1, 6, 1030})
    for (const bool accumulate : {false, true}) {
      const std::vector<float> x = normals(n, 1, 3), dy = normals(n, 2), before = normals(n, 3);
      const Results r = in_every_schedule([&](Stream& stream) {
        Array in(DType::kF32, x), y = Array::empty(DType::kF32, n), g(DType::kF32, dy), dx(DType::kF32, accumulate ? before : dy);
        cuda::silu_forward(stream, y.floats(), in.floats(), n);
        cuda::silu_backward(stream, dx.floats(), accumulate ? g.floats() : dx.floats(), in.floats(), n, accumulate);
        return Results{y.values(), dx.values()};
      });
      expect_close(r[0], each(x, [](double v, size_t) { return silu(v); }), kFp32, "y");
      expect_close(r[1], each(x, [&](double v, size_t i) {
                     return (accumulate ? static_cast<double>(before[i]) : 0.0) + static_cast<double>(dy[i]) * silu_derivative(v);
                   }), kFp32, "dx");
    }
}

}  // namespace
}  // namespace megaslide
