#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/philox.h"

namespace megaslide {
namespace {

uint64_t fnv1a(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325;
  for (char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return h;
}

double percentile(const std::vector<double>& sorted, double p) {
  const double at = p * static_cast<double>(sorted.size() - 1);
  const size_t i = static_cast<size_t>(at);
  const size_t j = std::min(i + 1, sorted.size() - 1);
  return sorted[i] + (at - static_cast<double>(i)) * (sorted[j] - sorted[i]);
}

}  // namespace

double stable_sum(const std::vector<double>& values) {
  double sum = 0, lost = 0;
  for (double v : values) {
    const double next = sum + v;
    if (!std::isfinite(next)) {
      sum = next, lost = 0;
      continue;
    }
    lost += std::fabs(sum) >= std::fabs(v) ? (sum - next) + v : (v - next) + sum;
    sum = next;
  }
  return sum + lost;
}

double mean_of(const std::vector<double>& values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return stable_sum(values) / static_cast<double>(values.size());
}

double weighted_mean(const std::vector<double>& values, const std::vector<double>& weights) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::vector<double> products(values.size());
  for (size_t i = 0; i < values.size(); ++i) products[i] = weights[i] * values[i];
  return stable_sum(products) / stable_sum(weights);
}

std::optional<Interval> bootstrap_mean_ci95(const std::vector<double>& values, uint64_t seed, std::string_view purpose,
                                            const std::vector<double>& weights) {
  constexpr size_t kResamples = 2000;
  const size_t n = values.size();
  if (n < 2 || !std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }))
    return std::nullopt;
  const Random random(seed, RandomPurpose::kSample);
  const uint64_t series = fnv1a(purpose);
  std::vector<double> means(kResamples);
  uint64_t draw = 0;
  for (double& mean : means) {
    // Sums of differences from the first value: equal values give their mean to the bit.
    double sum = 0, total = 0;
    for (size_t i = 0; i < n; ++i) {
      const size_t at = random.below(series, draw++, n);
      const double weight = weights.empty() ? 1 : weights[at];
      sum += weight * (values[at] - values[0]), total += weight;
    }
    mean = values[0] + sum / total;
  }
  std::sort(means.begin(), means.end());
  return Interval{percentile(means, 0.025), percentile(means, 0.975)};
}

}  // namespace megaslide
