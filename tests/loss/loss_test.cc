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

constexpr LossTerm kTerms[] = {{LossKind::kMse, 1}, {LossKind::kHuber, 0.75F}, {LossKind::kSmoothL1, 0.75F}};

TEST(VelocityLoss, MatchesThePlainTwinAndAnyThreads) {
  const LossGrid grids[] = {{1, 1, 1, 1}, {2, 3, 1, 17}, {3, 2, 5, 1}, {2, 4, 3, 4096}, {1, 16, 3, 1111}};
  for (const LossGrid& grid : grids)
    for (const LossTerm& term : kTerms)
      for (const bool weighted : {false, true}) {
        const int64_t n = grid.elements();
        const auto v = normals(n, 1), target = normals(n, 2);
        auto weight = normals(grid.batch * grid.frames, 3);
        for (float& w : weight) w = std::abs(w);
        weight[0] = 0;
        const float scale = 0.25F, *weights = weighted ? weight.data() : nullptr;
        double want = 0;
        std::vector<float> dwant(v.size());
        reference::velocity_loss(&want, dwant.data(), v.data(), target.data(), weights, grid, term, scale);
        double first = 0;
        for (const int threads : {1, 2, 3}) {
          InlineStream stream(threads);
          double loss = -1;
          std::vector<float> dout(v.size(), 7);
          velocity_loss(stream, &loss, dout.data(), v.data(), target.data(), weights, grid, term, scale);
          // The twin sums n terms one after the other: n roundings, of sums that only grow.
          EXPECT_NEAR(loss, want, want * (static_cast<double>(n) + 1100) * 0x1p-53);
          if (threads == 1) first = loss;
          EXPECT_EQ(loss, first);
          // Both in fp64, rounded once; products in another order differ by fp64 roundings at a tie of fp32.
          for (size_t i = 0; i < v.size(); ++i) ASSERT_NEAR(dout[i], dwant[i], std::abs(dwant[i]) * 0x1p-23);
          double again = -1;
          velocity_loss(stream, &again, nullptr, v.data(), target.data(), weights, grid, term, scale);
          EXPECT_EQ(again, loss);
        }
      }
}

TEST(VelocityLoss, OnesAreNoWeights) {
  const LossGrid grid{2, 3, 4, 1000};
  InlineStream stream(2);
  const auto v = normals(grid.elements(), 1), target = normals(grid.elements(), 2);
  const std::vector<float> ones(8, 1.0F);
  double with = 0, without = 0;
  std::vector<float> dwith(v.size()), dwithout(v.size());
  velocity_loss(stream, &with, dwith.data(), v.data(), target.data(), ones.data(), grid, {}, 0.5F);
  velocity_loss(stream, &without, dwithout.data(), v.data(), target.data(), nullptr, grid, {}, 0.5F);
  EXPECT_EQ(with, without);
  EXPECT_EQ(dwith, dwithout);
}

TEST(VelocityLoss, AWeightOfZeroLooksAtNothing) {
  const LossGrid grid{1, 1, 2, 2};
  const std::vector<float> v{NAN, INFINITY, 1, 2}, target{0, 0, 0, 0}, weight{0, 2};
  InlineStream stream;
  double loss = 0;
  std::vector<float> dout(4);
  velocity_loss(stream, &loss, dout.data(), v.data(), target.data(), weight.data(), grid, {}, 1.0F);
  EXPECT_EQ(loss, 2 * (1 + 4) / 4.0);
  EXPECT_EQ(dout, (std::vector<float>{0, 0, 1, 2}));
}

// torch 2.15 in fp64: (weight · loss(reduction="none")).mean() and its gradient; huber_loss(delta=0.75),
// smooth_l1_loss(beta=0.75), mse_loss.
TEST(VelocityLoss, GoldenOfTorch) {
  const std::vector<float> v{0.5F, -1.25F, 2, 0.75F, -0.5F, 3.5F, 1, 0.25F, -2.5F, 0, 1.5F, -0.75F};
  const std::vector<float> target{0.25F, -1, -0.5F, 0.5F, 1.75F, 0.5F, 1, -0.5F, 0.5F, 0.125F, 1.25F, 2.25F}, weight{0.5F, 2, 1.5F, 0};
  const double losses[] = {3.8151041666666665, 0.91796875, 1.2239583333333335};
  const std::vector<std::vector<double>> gradients{
      {0.020833333333333332, -0.020833333333333332, 0.20833333333333331, 0.08333333333333333, -0.75, 1, 0, 0.1875, -0.75, 0, 0, 0},
      {0.010416666666666666, -0.010416666666666666, 0.03125, 0.041666666666666664, -0.125, 0.125, 0, 0.09375, -0.09375, 0, 0, 0},
      {0.013888888888888888, -0.013888888888888888, 0.041666666666666664, 0.05555555555555555, -0.16666666666666666, 0.16666666666666666, 0, 0.125, -0.125, 0, 0, 0}};
  InlineStream stream;
  for (size_t k = 0; k < 3; ++k) {
    double loss = 0;
    std::vector<float> dout(12);
    velocity_loss(stream, &loss, dout.data(), v.data(), target.data(), weight.data(), {2, 1, 2, 3}, kTerms[k], 1.0F);
    EXPECT_NEAR(loss, losses[k], 12 * 0x1p-53 * losses[k]);
    for (size_t i = 0; i < 12; ++i) EXPECT_NEAR(dout[i], gradients[k][i], 0x1p-24);  // rounded to fp32
  }
}

// The gradient is that of scale·loss: a finite difference of the fp64 loss.
TEST(VelocityLoss, GradientOfTheLoss) {
  InlineStream stream;
  const LossGrid grid{2, 2, 4, 4};
  const auto target = normals(64, 2), weight = normals(8, 3);
  for (const LossTerm& term : kTerms) {
    auto v = normals(64, 1);
    std::vector<float> dout(64);
    double loss = 0, up = 0, down = 0;
    velocity_loss(stream, &loss, dout.data(), v.data(), target.data(), weight.data(), grid, term, 1.0F);
    for (const size_t i : {size_t{5}, size_t{40}}) {
      const float kept = v[i], h = 0x1p-10F;
      v[i] = kept + h;
      velocity_loss(stream, &up, nullptr, v.data(), target.data(), weight.data(), grid, term, 1.0F);
      v[i] = kept - h;
      velocity_loss(stream, &down, nullptr, v.data(), target.data(), weight.data(), grid, term, 1.0F);
      v[i] = kept;
      // Piecewise quadratic: exact but for the rounding of v ± h (1e-7 of h = 1e-3) and of dout.
      EXPECT_NEAR(dout[i], (up - down) / (2 * static_cast<double>(h)), 3e-4 * std::abs(dout[i]) + 1e-9);
    }
  }
}

}  // namespace
}  // namespace megaslide
