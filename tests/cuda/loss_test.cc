#include "kernels/loss/loss.h"

#include <algorithm>
#include <cstring>

#include "tests/cuda/schedules.h"

namespace megaslide {
namespace {

using namespace testing_support;

TEST(CudaLoss, FlowMixHasTheBitsOfTheCpu) {
  struct Case {
    int64_t b, numel;
    int shift;
  };
  for (const Case& c : {Case{0, 8, 0}, {1, 1, 0}, {1, 1031, 0}, {3, 7, 0}, {2, 1032, 0}, {2, 64, 1}}) {
    const int64_t n = c.b * c.numel;
    const std::vector<float> x0 = normals(n, 1), noise = normals(n, 2), sigma = {0.25F, 0.7F, 1};
    const auto run = [&](auto* mix) {
      return [&, mix](Stream& stream) {
        Array x = Array::empty(DType::kF32, n, c.shift), target = x, in(DType::kF32, x0, c.shift), e(DType::kF32, noise, c.shift),
            s(DType::kF32, sigma);
        mix(stream, x.floats(), target.floats(), in.floats(), e.floats(), s.floats(), c.b, c.numel);
        return Results{x.values(), target.values()};
      };
    };
    InlineStream stream;
    EXPECT_EQ(in_every_schedule(run(&cuda::flow_mix)), run(&cpu::flow_mix)(stream));
  }
}

// fp64 with the CPU's order of sums: its bits. 67 blocks of elements need a second turn of the block of threads.
TEST(CudaLoss, VelocityLossHasTheBitsOfTheCpu) {
  const LossGrid grids[] = {{.batch = 0}, {}, {.batch = 2, .channels = 3, .frames = 5, .area = 7},
                            {.batch = 1, .channels = 2, .frames = 3, .area = 6000},
                            {.batch = 1, .channels = 1, .frames = 2, .area = 9, .mean_of = 50, .add = true},
                            {.batch = 1, .channels = 1, .frames = 67, .area = 16384}};
  for (const LossGrid& grid : grids)
    for (const LossKind kind : {LossKind::kMse, LossKind::kHuber, LossKind::kSmoothL1})
      for (const bool weighted : {false, true}) {
        const int64_t n = grid.elements();
        if (n > 200000 && (kind != LossKind::kHuber || !weighted)) continue;
        std::vector<float> v = normals(n, 1), target = normals(n, 2), weight = normals(grid.batch * grid.frames, 3, 0.5, 1);
        if (weight.size() > 1) weight[1] = 0;
        if (weighted && weight.size() == 2 && grid.area == 9) v[9] = NAN;  // under the weight 0
        const auto run = [&](auto* entry, bool gradient) {
          return [&, entry, gradient](Stream& stream) {
            Array dout = Array::empty(DType::kF32, gradient ? n : 0), vv(DType::kF32, v), t(DType::kF32, target), w(DType::kF32, weight);
            double loss = 0.375;
            entry(stream, &loss, gradient ? dout.floats() : nullptr, vv.floats(), t.floats(), weighted ? w.floats() : nullptr, grid,
                  LossTerm{kind, 0.75F}, 0.25F);
            std::vector<float> halves(2);
            std::memcpy(halves.data(), &loss, sizeof loss);
            return Results{halves, dout.values()};
          };
        };
        InlineStream stream;
        const Results cpu = run(&cpu::velocity_loss, true)(stream), alone = run(&cuda::velocity_loss, false)(stream);
        EXPECT_EQ(std::memcmp(alone[0].data(), cpu[0].data(), sizeof(double)), 0);
        if (n > 200000) continue;  // one schedule is enough
        const Results r = in_every_schedule(run(&cuda::velocity_loss, true));
        EXPECT_EQ(std::memcmp(r[0].data(), cpu[0].data(), sizeof(double)), 0);
        EXPECT_EQ(r[1], cpu[1]);
      }
}

}  // namespace
}  // namespace megaslide
