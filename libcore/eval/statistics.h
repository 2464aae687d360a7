// Means with bootstrap intervals.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace megaslide {

// Adds in index order with a compensation term (Neumaier), so that the result depends on the values alone and long
// sums lose nothing. Infinite values add as usual.
double stable_sum(const std::vector<double>& values);
double mean_of(const std::vector<double>& values);  // NaN for none
double weighted_mean(const std::vector<double>& values, const std::vector<double>& weights);

using Interval = std::pair<double, double>;

// The percentile bootstrap of the mean: 2000 draws of n values with replacement, the 2.5th and 97.5th
// percentile of their means (linear between neighbours). Draws come from Philox keyed by (seed, FNV-1a of `purpose`):
// the same on every machine and for any number of threads. nullopt for fewer than two values or one not finite.
// weights: of the values in each mean, none for equal ones.
std::optional<Interval> bootstrap_mean_ci95(const std::vector<double>& values, uint64_t seed, std::string_view purpose,
                                            const std::vector<double>& weights = {});

}  // namespace megaslide
