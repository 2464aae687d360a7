#include "kernels/activation/mlp_activation.h"

#include <cmath>
#include <limits>

#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using namespace testing_support;

std::vector<float> points() {
  std::vector<float> v = normals(4003, 1, 3);
  for (float x : {0.0F, -0.0F, 1e-30F, -1e-6F, 8.0F, -8.0F, 12.0F, -12.0F, 50.0F, -50.0F, 1e4F, -1e4F, 3e18F, -3e18F}) v.push_back(x);
  return v;
}

TEST(MlpActivation, AgreesWithTheTwin) {
  const std::vector<float> x = points();
  const int64_t n = static_cast<int64_t>(x.size());
  for_each_target([&] {
    InlineStream stream(2);
    for (const MlpActivation f : {MlpActivation::kGelu, MlpActivation::kQuickGelu}) {
      std::vector<float> y(x.size());
      mlp_activation_forward(stream, y.data(), x.data(), n, f, DType::kF32);
      std::vector<bf16> narrow(x.size());
      mlp_activation_forward(stream, narrow.data(), x.data(), n, f, DType::kBF16);
      for (size_t i = 0; i < x.size(); ++i) {
        const double v = static_cast<double>(x[i]), expected = reference::mlp_activation(v, f);
        // The exponent, x²/2 or 1.702 x, is rounded; below e^-87 it is cut off.
        ASSERT_NEAR(static_cast<double>(y[i]), expected, 0x1p-21 * (1 + v * v / 4) * std::abs(expected) + 1e-18) << x[i];
        if (std::abs(v) <= 5) {
          ASSERT_NEAR(static_cast<double>(y[i]), expected, 1e-6 * std::abs(expected)) << x[i];
        }
        ASSERT_EQ(narrow[i].bits, to_bf16(y[i]).bits) << x[i];
      }
      std::vector<float> in_place = x;
      mlp_activation_forward(stream, in_place.data(), in_place.data(), n, f, DType::kF32);
      EXPECT_EQ(in_place, y);
      float nan = std::numeric_limits<float>::quiet_NaN();
      mlp_activation_forward(stream, &nan, &nan, 1, f, DType::kF32);
      EXPECT_TRUE(std::isnan(nan));
    }
  });
}

}  // namespace
}  // namespace megaslide
