#include "kernels/activation/activation.h"

#include <cmath>
#include <limits>

#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using namespace testing_support;

// From far below to far above what a network holds, and all the bends.
std::vector<float> points() {
  std::vector<float> v = normals(1001, 1, 3);
  for (float x : {0.0F, -0.0F, 1e-30F, -1e-6F, 10.0F, -10.0F, 50.0F, -50.0F, 1e4F, -1e4F, 3e18F, -3e18F})
    v.push_back(x);
  return v;
}

TEST(Gelu, ForwardAgreesWithTheTwin) {
  const std::vector<float> x = points();
  for_each_target([&] {
    InlineStream stream(2);
    std::vector<float> y(x.size()), kept(x.size());
    gelu_forward(stream, y.data(), kept.data(), x.data(), static_cast<int64_t>(x.size()), DType::kF32);
    EXPECT_EQ(kept, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = reference::gelu(static_cast<double>(x[i]));
      // The exponent of x loses up to 87·2^-24 to rounding; beyond it the value is below any that matters.
      ASSERT_NEAR(static_cast<double>(y[i]), expected, 1e-5 * std::abs(expected) + 1e-9) << x[i];
    }
    std::vector<bf16> narrow(x.size()), narrow_kept(x.size());
    gelu_forward(stream, narrow.data(), narrow_kept.data(), x.data(), static_cast<int64_t>(x.size()), DType::kBF16);
    EXPECT_EQ(narrow_kept, rounded(x));
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = reference::gelu(static_cast<double>(to_float(to_bf16(x[i]))));
      ASSERT_NEAR(static_cast<double>(to_float(narrow[i])), expected, 0x1p-8 * std::abs(expected) + 1e-9) << x[i];
    }
  });
}

TEST(Gelu, NaNStaysNaN) {
  InlineStream stream;
  const float x = std::numeric_limits<float>::quiet_NaN();
  float y = 0;
  gelu_forward(stream, &y, nullptr, &x, 1, DType::kF32);
  EXPECT_TRUE(std::isnan(y));
}

TEST(Gelu, BackwardAgreesWithTheTwin) {
  const int64_t rows = 131, width = 37;
  const std::vector<float> x = normals(rows * width, 1, 2), dy = normals(rows * width, 2);
  std::vector<float> dx(x.size()), y(x.size()), dbias = normals(width, 3);
  const std::vector<float> dbias0 = dbias;
  std::vector<double> sum(static_cast<size_t>(width));
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = static_cast<float>(reference::gelu(static_cast<double>(x[i])));
    const double d = static_cast<double>(dy[i]) * reference::gelu_derivative(static_cast<double>(x[i]));
    dx[i] = static_cast<float>(d);
    sum[i % static_cast<size_t>(width)] += d;
  }
  for (size_t c = 0; c < dbias.size(); ++c) dbias[c] += static_cast<float>(sum[c]);
  for_each_target([&] {
    for (int threads : {1, 2}) {
      InlineStream stream(threads);
      std::vector<float> got(x.size()), gy = x, gbias = dbias0,
                                        scratch(static_cast<size_t>(gelu_scratch(rows, width)), NAN);
      gelu_backward(stream, got.data(), gy.data(), gbias.data(), scratch.data(), dy.data(), gy.data(), rows, width,
                    DType::kF32);
      EXPECT_LT(relative_error(got, dx), kFp32);
      EXPECT_LT(relative_error(gy, y), kFp32);
      EXPECT_LT(relative_error(gbias, dbias), kFp32);
      std::vector<bf16> narrow(x.size()), ny(x.size());
      const std::vector<bf16> nx = rounded(x);
      gelu_backward(stream, narrow.data(), ny.data(), gbias.data(), scratch.data(), dy.data(), nx.data(), rows, width,
                    DType::kBF16);
      EXPECT_LT(relative_error(widened(narrow), dx), 2 * kBf16);  // x and dx are both rounded
    }
  });
}

TEST(Silu, AgreesWithItsFormula) {
  const std::vector<float> x = normals(500, 1, 4), dy = normals(500, 2);
  std::vector<float> y(500), dx(500), sum = dy, expected(500), slope(500), expected_sum = dy;
  for (size_t i = 0; i < 500; ++i) {
    const double v = static_cast<double>(x[i]), s = 1 / (1 + std::exp(-v)),
                 d = static_cast<double>(dy[i]) * s * (1 + v * (1 - s));
    expected[i] = static_cast<float>(v * s);
    slope[i] = static_cast<float>(d);
    expected_sum[i] += slope[i];
  }
  InlineStream stream;
  silu_forward(stream, y.data(), x.data(), 500);
  silu_backward(stream, dx.data(), dy.data(), x.data(), 500, false);
  silu_backward(stream, sum.data(), dy.data(), x.data(), 500, true);
  EXPECT_LT(relative_error(y, expected), kFp32);
  EXPECT_LT(relative_error(dx, slope), kFp32);
  EXPECT_LT(relative_error(sum, expected_sum), kFp32);
}

}  // namespace
}  // namespace megaslide
