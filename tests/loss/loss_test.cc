#include "kernels/loss/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/philox.h"

namespace megaslide {
namespace {

std::vector<float> normals(int64_t n, uint64_t series) {
  const Random random(21, RandomPurpose::kTest);
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random.normal(series, i));
  return x;
}

TEST(FlowMix, MatchesFp64) {
  InlineStream stream(2);
  for (const int64_t numel : {int64_t{1}, int64_t{1000}, int64_t{40'001}}) {
    const int64_t b = 3;
    const auto x0 = normals(b * numel, 1), noise = normals(b * numel, 2);
    const std::vector<float> sigma{0.0F, 0.37F, 1.0F};
    std::vector<float> x(x0.size()), target(x0.size());
    flow_mix(stream, x.data(), target.data(), x0.data(), noise.data(), sigma.data(), b, numel);
    for (size_t i = 0; i < x.size(); ++i) {
      const double s = sigma[i / static_cast<size_t>(numel)], a = x0[i], n = noise[i];
      // Four roundings: 1−σ, two products, the sum.
      ASSERT_NEAR(x[i], (1 - s) * a + s * n, 4 * 0x1p-24 * (std::abs(a) + std::abs(n)));
      ASSERT_EQ(target[i], noise[i] - x0[i]);
    }
    EXPECT_EQ(0, std::memcmp(x.data(), x0.data(), static_cast<size_t>(numel) * sizeof(float)));  // σ = 0
    EXPECT_EQ(0, std::memcmp(x.data() + 2 * numel, noise.data() + 2 * numel,
                             static_cast<size_t>(numel) * sizeof(float)));  // σ = 1
  }
}

TEST(MseLoss, MatchesFp64AndAnyThreads) {
  for (const int64_t numel : {int64_t{1}, int64_t{17}, int64_t{16'384}, int64_t{50'003}}) {
    const int64_t b = 2, n = b * numel;
    const auto v = normals(n, 1), target = normals(n, 2);
    const float scale = 0.25F;
    long double sum = 0;
    for (size_t i = 0; i < v.size(); ++i) {
      const long double d = static_cast<long double>(v[i]) - target[i];
      sum += d * d;
    }
    double first = 0;
    for (const int threads : {1, 2, 3}) {
      InlineStream stream(threads);
      double loss = -1;
      std::vector<float> dout(v.size());
      mse_loss(stream, &loss, dout.data(), v.data(), target.data(), b, numel, scale);
      // Fewer than 1,100 fp64 roundings on any path from a term to the result.
      EXPECT_NEAR(loss, static_cast<double>(sum / n), static_cast<double>(sum / n) * 1100 * 0x1p-53);
      if (threads == 1) first = loss;
      EXPECT_EQ(loss, first);
      for (size_t i = 0; i < v.size(); ++i) {
        const double want = 2.0 * scale * (static_cast<double>(v[i]) - target[i]) / static_cast<double>(n);
        ASSERT_NEAR(dout[i], want, std::abs(want) * 0x1p-23);
      }
      double again = -1;
      mse_loss(stream, &again, nullptr, v.data(), target.data(), b, numel, scale);
      EXPECT_EQ(again, loss);
    }
  }
}

// The gradient is that of scale·loss: a finite difference of the fp64 loss.
TEST(MseLoss, GradientOfTheLoss) {
  InlineStream stream;
  const auto target = normals(64, 2);
  auto v = normals(64, 1);
  std::vector<float> dout(64);
  double loss = 0, up = 0, down = 0;
  mse_loss(stream, &loss, dout.data(), v.data(), target.data(), 1, 64, 1.0F);
  const float kept = v[5];
  v[5] = kept + 0.125F;
  mse_loss(stream, &up, nullptr, v.data(), target.data(), 1, 64, 1.0F);
  v[5] = kept - 0.125F;
  mse_loss(stream, &down, nullptr, v.data(), target.data(), 1, 64, 1.0F);
  // The loss is quadratic: the central difference is exact but for the rounding of v[5] ± 1/8 and of dout.
  EXPECT_NEAR(dout[5], (up - down) / 0.25, 1e-6);
}

}  // namespace
}  // namespace megaslide
