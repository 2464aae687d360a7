// Grids and trajectories against stored runs of the reference schedulers (tests/data/schedulers).
#include "diffusion/schedulers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "io/safetensors.h"

namespace megaslide {
namespace {

const SafetensorsFile& golden() {
  static const auto file = SafetensorsFile::open(MEGASLIDE_TEST_DATA "/schedulers/trajectories.safetensors");
  return file;
}

std::vector<float> floats(const std::string& name) {
  const auto tensor = HostTensor::f32_from(golden().view(name));
  return {tensor.f32(), tensor.f32() + tensor.elements()};
}

std::vector<double> timesteps(const std::string& name) {
  const TensorView view = golden().view(name);
  std::vector<double> out(static_cast<size_t>(view.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    if (view.dtype == DType::kI64) {
      int64_t v;
      std::memcpy(&v, view.data + i * 8, 8);
      out[i] = static_cast<double>(v);
    } else {
      float v;
      std::memcpy(&v, view.data + i * 4, 4);
      out[i] = v;
    }
  }
  return out;
}

int ulps(float a, float b) {
  return static_cast<int>(std::abs(static_cast<int64_t>(std::bit_cast<int32_t>(a)) - std::bit_cast<int32_t>(b)));
}

// The velocity field of the stored runs: v = a·x + b·sin(c·t/1000) + d·tanh(x).
double field(double x, double t) { return 0.65 * x + 0.4 * std::sin(7.3 * t / 1000) + 0.9 * std::tanh(x); }

struct Kind {
  const char* name;
  Solver solver;
  SigmaGrid grid;
  int grid_ulps;  // the library rounds the end, or the unshifted grid, to fp32 before shifting
};
constexpr Kind kKinds[] = {{"unipc", Solver::kUniPC, SigmaGrid::kDiffusers, 0},
                           {"unipc_wan", Solver::kUniPC, SigmaGrid::kWan, 0},
                           {"euler", Solver::kEuler, SigmaGrid::kDiffusers, 1},
                           {"euler_clean", Solver::kEuler, SigmaGrid::kClean, 2}};

class Schedulers : public testing::TestWithParam<std::tuple<Kind, int, int>> {
 protected:
  const Kind& kind() const { return std::get<0>(GetParam()); }
  int shift() const { return std::get<1>(GetParam()); }
  int steps() const { return std::get<2>(GetParam()); }
  std::string prefix() const { return fmt::format("{}.shift{}.steps{}.", kind().name, shift(), steps()); }
};

TEST_P(Schedulers, GridEqualsTheStoredOne) {
  const auto schedule = make_sigma_schedule(kind().solver, kind().grid, steps(), shift());
  const auto sigmas = floats(prefix() + "sigmas");
  const auto times = timesteps(prefix() + "timesteps");
  ASSERT_EQ(schedule.sigmas.size(), sigmas.size());
  ASSERT_EQ(schedule.timesteps.size(), times.size());
  for (size_t k = 0; k < sigmas.size(); ++k)
    EXPECT_LE(ulps(schedule.sigmas[k], sigmas[k]), kind().grid_ulps) << "sigma " << k;
  for (size_t k = 0; k < times.size(); ++k) {
    if (kind().solver == Solver::kUniPC)
      EXPECT_EQ(schedule.timesteps[k], times[k]) << "timestep " << k;
    else  // 1000·σ rounded to fp32 adds one ulp
      EXPECT_LE(ulps(static_cast<float>(schedule.timesteps[k]), static_cast<float>(times[k])), kind().grid_ulps + 1);
  }
}

TEST_P(Schedulers, TrajectoryEqualsTheStoredOne) {
  SigmaSchedule schedule{floats(prefix() + "sigmas"), timesteps(prefix() + "timesteps")};
  const auto samples = floats(prefix() + "samples");
  const size_t n = samples.size() / schedule.sigmas.size();
  std::vector<float> x(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(n)), v(n);
  const auto scheduler = make_scheduler(kind().solver, schedule);
  for (size_t k = 0; k < schedule.timesteps.size(); ++k) {
    for (size_t i = 0; i < n; ++i) v[i] = static_cast<float>(field(x[i], schedule.timesteps[k]));
    scheduler->step(x, v);
    double error = 0, norm = 0;
    for (size_t i = 0; i < n; ++i) {
      const double want = samples[(k + 1) * n + i];
      error += (x[i] - want) * (x[i] - want);
      norm += want * want;
    }
    // The stored run is fp64. The library's fp32 run differs by up to 5.6e-7 (50 steps); rounding x and v to fp32 at
    // each step costs the same here.
    EXPECT_LE(std::sqrt(error / norm), 6e-7) << "after step " << k;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Schedulers,
                         testing::Combine(testing::ValuesIn(kKinds), testing::Values(1, 3, 5, 8),
                                          testing::Values(4, 10, 50)),
                         [](const auto& test) {
                           return fmt::format("{}_shift{}_steps{}", std::get<0>(test.param).name,
                                              std::get<1>(test.param), std::get<2>(test.param));
                         });

TEST(UniPC, CorrectorWeights) {
  const auto w = unipc_corrector_weights(0.97, 0.9, 0.8);
  EXPECT_NEAR(w.rho1, 0.0639756, 5e-8);  // spec wan.md D.2, seven digits
  EXPECT_NEAR(w.rho2, 0.5028726, 5e-8);
}

// A constant x0 estimate is the exact straight path: every solver must end on it.
TEST(Schedulers, StraightPathIsExact) {
  for (const Solver solver : {Solver::kUniPC, Solver::kEuler})
    for (const SigmaGrid grid : {SigmaGrid::kDiffusers, SigmaGrid::kWan, SigmaGrid::kClean})
      for (const int64_t steps : {1, 2, 3, 7, 1000}) {
        const auto schedule = make_sigma_schedule(solver, grid, steps, 3);
        const double goal = -1.5, noise = 0.75;
        std::vector<float> x{static_cast<float>((1.0 - schedule.sigmas[0]) * goal + schedule.sigmas[0] * noise)}, v(1);
        const auto scheduler = make_scheduler(solver, schedule);
        for (int64_t k = 0; k < steps; ++k) {
          v[0] = static_cast<float>((x[0] - goal) / schedule.sigmas[static_cast<size_t>(k)]);
          scheduler->step(x, v);
        }
        // v is rounded to fp32, its error is multiplied by the step's width: the widths add up to 1.
        EXPECT_NEAR(x[0], goal, 2e-6) << "steps " << steps;
      }
}

TEST(Schedulers, RefusesNonsense) {
  EXPECT_THROW(make_sigma_schedule(Solver::kEuler, SigmaGrid::kWan, 0, 3), Error);
  EXPECT_THROW(make_sigma_schedule(Solver::kEuler, SigmaGrid::kWan, 1001, 3), Error);
  EXPECT_THROW(make_sigma_schedule(Solver::kEuler, SigmaGrid::kWan, 10, 0), Error);
  EXPECT_THROW(make_sigma_schedule(Solver::kEuler, SigmaGrid::kWan, 10, NAN), Error);
  EXPECT_THROW(parse_solver("dpm"), Error);
  EXPECT_THROW(parse_sigma_grid("karras"), Error);
}

}  // namespace
}  // namespace megaslide
