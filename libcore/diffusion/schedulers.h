// Sigma grids and solvers of the flow-matching ODE dx/dσ = v(x, σ), from σ ≈ 1 (noise) to σ = 0 (spec wan.md D.1–D.4).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace megaslide {

enum class Solver {
  kUniPC,  // order 2, predicts x0, B(h) = expm1(h), corrector always on
  kEuler,
};

// Base grid u_k before the shift map S_s(u) = s·u / (1 + (s−1)·u):
enum class SigmaGrid {
  kDiffusers,  // UniPC: linspace(1, 0.001, N+1) without its end; Euler: linspace(1, S_s(0.001), N), so that the end is
               // shifted twice, as the library does
  kWan,        // linspace(0.999, 0, N+1) without its end: the Wan repository
  kClean,      // 1 − k/N
};

Solver parse_solver(std::string_view name);         // unipc | euler; a usage Error otherwise
SigmaGrid parse_sigma_grid(std::string_view name);  // diffusers | wan | clean

struct SigmaSchedule {
  std::vector<float> sigmas;      // N+1, descending; the last is 0
  std::vector<double> timesteps;  // N, what the model reads: 1000σ, for UniPC truncated to whole numbers
  int64_t steps() const { return static_cast<int64_t>(timesteps.size()); }
};

// `steps` in 1 … 1000, `shift` > 0; a usage Error otherwise.
SigmaSchedule make_sigma_schedule(Solver solver, SigmaGrid grid, int64_t steps, double shift);

// UniPC's corrector of order 2 from σ_s to σ_t with a further prediction at σ_before (σ_before > σ_s > σ_t > 0):
// weights ρ1 of (m1 − m0)/r and ρ2 of (m_t − m0).
struct CorrectorWeights {
  double rho1, rho2;
};
CorrectorWeights unipc_corrector_weights(double sigma_before, double sigma_s, double sigma_t);

// One trajectory. step() is called N times, in order; coefficients are fp64 from the fp32 sigmas, samples fp32.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // sample: x_σk in, x_σ(k+1) out. velocity: the model's output at sample, after guidance. Same size at every step.
  virtual void step(std::span<float> sample, std::span<const float> velocity) = 0;
};

std::unique_ptr<Scheduler> make_scheduler(Solver solver, SigmaSchedule schedule);

}  // namespace megaslide
