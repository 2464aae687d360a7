#include "diffusion/schedulers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "diffusion/flow_matching.h"

namespace megaslide {
namespace {

// UniPC needs ln(1 − σ): a first sigma this close to 1 is moved below it by the same amount.
constexpr double kBelowOne = 1e-6;

double base_grid(Solver solver, SigmaGrid grid, int64_t k, int64_t steps, double shift) {
  const double n = static_cast<double>(steps), i = static_cast<double>(k);
  switch (grid) {
    case SigmaGrid::kClean: return 1 - i / n;
    case SigmaGrid::kWan: return 0.999 + i * (-0.999 / n);
    case SigmaGrid::kDiffusers: break;
  }
  if (solver == Solver::kUniPC) return 1 + i * ((0.001 - 1) / n);
  // The library computes its smallest sigma in fp32 and spaces N points down to it, both ends included.
  const auto s = static_cast<float>(shift);
  const double end = s * 0.001f / (1 + (s - 1) * 0.001f);
  return steps == 1 ? 1 : 1 + i * ((end - 1) / (n - 1));
}

class EulerScheduler final : public Scheduler {
 public:
  explicit EulerScheduler(SigmaSchedule schedule) : schedule_(std::move(schedule)) {}

  void step(std::span<float> sample, std::span<const float> velocity) override {
    MS_CHECK(sample.size() == velocity.size() && k_ < schedule_.timesteps.size());
    const double width = static_cast<double>(schedule_.sigmas[k_ + 1]) - static_cast<double>(schedule_.sigmas[k_]);
    for (size_t i = 0; i < sample.size(); ++i) sample[i] = static_cast<float>(sample[i] + width * velocity[i]);
    ++k_;
  }

 private:
  SigmaSchedule schedule_;
  size_t k_ = 0;
};

// The pieces of an update from σ_s to σ_t; E = exp(−h) − 1 with h = λ_t − λ_s, λ = ln((1−σ)/σ).
struct Interval {
  double scale;    // σ_t / σ_s, of the old sample
  double alpha_e;  // (1 − σ_t)·E
  double e;
  double h;
};

double lambda(double sigma) { return std::log1p(-sigma) - std::log(sigma); }

Interval interval(double sigma_s, double sigma_t) {
  const double e = sigma_t * (1 - sigma_s) / ((1 - sigma_t) * sigma_s) - 1;
  return {sigma_t / sigma_s, (1 - sigma_t) * e, e, sigma_t > 0 ? lambda(sigma_t) - lambda(sigma_s) : INFINITY};
}

class UniPCScheduler final : public Scheduler {
 public:
  explicit UniPCScheduler(SigmaSchedule schedule) : schedule_(std::move(schedule)) {}

  void step(std::span<float> sample, std::span<const float> velocity) override {
    const size_t n = sample.size();
    MS_CHECK(n == velocity.size() && k_ < schedule_.timesteps.size());
    if (k_ == 0) {
      for (auto* v : {&before_, &newest_, &older_}) v->assign(n, 0.f);
      prediction_.resize(n);
    }
    MS_CHECK(n == before_.size());
    for (size_t i = 0; i < n; ++i)
      prediction_[i] = static_cast<float>(sample[i] - static_cast<double>(sigma(k_)) * velocity[i]);
    if (k_ > 0) correct(sample);
    std::swap(older_, newest_);
    std::swap(newest_, prediction_);
    std::copy(sample.begin(), sample.end(), before_.begin());
    order_ = static_cast<int>(std::min<size_t>({2, schedule_.timesteps.size() - k_, k_ + 1}));
    predict(sample);
    ++k_;
  }

 private:
  double sigma(size_t k) const { return schedule_.sigmas[k]; }

  // Replaces the sample by the corrected one at σ_k, from the sample before the last prediction.
  void correct(std::span<float> sample) const {
    const Interval step = interval(sigma(k_ - 1), sigma(k_));
    double w1 = 0, wt = 0.5;  // weights of (older − newest) and of (prediction − newest)
    if (order_ == 2) {
      const auto w = unipc_corrector_weights(sigma(k_ - 2), sigma(k_ - 1), sigma(k_));
      w1 = w.rho1 / ((lambda(sigma(k_ - 2)) - lambda(sigma(k_ - 1))) / step.h);
      wt = w.rho2;
    }
    for (size_t i = 0; i < sample.size(); ++i) {
      const double m0 = newest_[i];
      const double sum = m0 + w1 * (older_[i] - m0) + wt * (prediction_[i] - m0);
      sample[i] = static_cast<float>(step.scale * before_[i] - step.alpha_e * sum);
    }
  }

  void predict(std::span<float> sample) const {
    const Interval step = interval(sigma(k_), sigma(k_ + 1));
    double w1 = 0;
    if (order_ == 2) w1 = 0.5 / ((lambda(sigma(k_ - 1)) - lambda(sigma(k_))) / step.h);
    for (size_t i = 0; i < sample.size(); ++i) {
      const double m0 = newest_[i];
      sample[i] = static_cast<float>(step.scale * sample[i] - step.alpha_e * (m0 + w1 * (older_[i] - m0)));
    }
  }

  SigmaSchedule schedule_;
  size_t k_ = 0;
  int order_ = 0;                        // of the last prediction step
  std::vector<float> before_;            // sample the last prediction step started from
  std::vector<float> newest_, older_;    // x0 estimates, each at the uncorrected sample of its step
  std::vector<float> prediction_;        // x0 estimate of this step
};

}  // namespace

Solver parse_solver(std::string_view name) {
  if (name == "unipc") return Solver::kUniPC;
  if (name == "euler") return Solver::kEuler;
  throw usage_error(fmt::format("unknown solver '{}'", name), "use unipc or euler");
}

SigmaGrid parse_sigma_grid(std::string_view name) {
  if (name == "diffusers") return SigmaGrid::kDiffusers;
  if (name == "wan") return SigmaGrid::kWan;
  if (name == "clean") return SigmaGrid::kClean;
  throw usage_error(fmt::format("unknown sigma grid '{}'", name), "use diffusers, wan or clean");
}

SigmaSchedule make_sigma_schedule(Solver solver, SigmaGrid grid, int64_t steps, double shift) {
  if (steps < 1 || steps > 1000) throw usage_error(fmt::format("{} sampling steps", steps), "use 1 to 1000");
  if (!(shift > 0) || !std::isfinite(shift)) throw usage_error(fmt::format("flow shift {}", shift), "use a number > 0");
  SigmaSchedule schedule;
  for (int64_t k = 0; k < steps; ++k) {
    double sigma = shift_sigma(base_grid(solver, grid, k, steps, shift), shift);
    if (solver == Solver::kUniPC) {
      if (k == 0 && std::abs(sigma - 1) < kBelowOne) sigma -= kBelowOne;
      schedule.timesteps.push_back(std::trunc(1000 * sigma));
    } else {
      schedule.timesteps.push_back(1000 * static_cast<float>(sigma));
    }
    schedule.sigmas.push_back(static_cast<float>(sigma));
  }
  schedule.sigmas.push_back(0);
  return schedule;
}

CorrectorWeights unipc_corrector_weights(double sigma_before, double sigma_s, double sigma_t) {
  const Interval step = interval(sigma_s, sigma_t);
  const double r = (lambda(sigma_before) - lambda(sigma_s)) / step.h, hh = -step.h;
  const double phi = step.e / hh - 1;
  const double g1 = phi / step.e, g2 = 2 * (phi / hh - 0.5) / step.e;
  const double rho1 = (g1 - g2) / (1 - r);
  return {rho1, g1 - rho1};
}

std::unique_ptr<Scheduler> make_scheduler(Solver solver, SigmaSchedule schedule) {
  MS_CHECK(!schedule.timesteps.empty() && schedule.sigmas.size() == schedule.timesteps.size() + 1);
  if (solver == Solver::kEuler) return std::make_unique<EulerScheduler>(std::move(schedule));
  return std::make_unique<UniPCScheduler>(std::move(schedule));
}

}  // namespace megaslide
