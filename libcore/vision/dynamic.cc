#include "vision/dynamic.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"

namespace megaslide {
namespace {
// To nearest, ties to even: the rounding mode of every process that does not ask for another.
int64_t to_even(double v) { return static_cast<int64_t>(std::nearbyint(v)); }
}  // namespace

double largest_motion(const HostTensor& flow, double share) {
  MS_CHECK(flow.shape().size() == 3 && flow.shape()[0] == 2, "{}", to_string(flow.shape()));
  const auto cells = flow.elements() / 2;
  const auto count = static_cast<int64_t>(static_cast<double>(cells) * share);
  MS_CHECK(count >= 1, "{} of {} cells", share, cells);
  const float *u = flow.f32(), *v = u + cells;
  std::vector<float> magnitudes(static_cast<size_t>(cells));
  bool finite = true;
  for (int64_t i = 0; i < cells; ++i) {
    const float m = std::sqrt(u[i] * u[i] + v[i] * v[i]);
    magnitudes[static_cast<size_t>(i)] = m;
    finite = finite && std::isfinite(m);
  }
  if (!finite) throw Error("the optical flow is not finite", "check the weights of RAFT: the published file gives finite flows");
  std::nth_element(magnitudes.begin(), magnitudes.begin() + (count - 1), magnitudes.end(), std::greater<>());
  // In order, so that the sum does not depend on how the library selects.
  std::sort(magnitudes.begin(), magnitudes.begin() + count, std::greater<>());
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(magnitudes[static_cast<size_t>(i)]);
  return sum / static_cast<double>(count);
}

DynamicVerdict dynamic_verdict(const std::vector<double>& motion, int64_t frames, int64_t width, int64_t height) {
  MS_CHECK(static_cast<int64_t>(motion.size()) == std::max<int64_t>(frames - 1, 0), "{} pairs of {} frames", motion.size(), frames);
  DynamicVerdict d;
  d.threshold = 6.0 * (static_cast<double>(std::min(width, height)) / 256.0);
  d.needed = to_even(4.0 * (static_cast<double>(frames) / 16.0));
  d.count = std::ranges::count_if(motion, [&](double m) { return m > d.threshold; });
  d.dynamic = !motion.empty() && d.count >= d.needed;
  return d;
}

StaticVerdict static_verdict(const std::vector<double>& motion, int64_t width, int64_t height) {
  MS_CHECK(motion.size() >= 3, "{} pairs", motion.size());
  const auto ends = motion.end() - 2;
  const auto frames = static_cast<double>(motion.size() - 1);
  StaticVerdict s;
  s.threshold = 3.0 * (static_cast<double>(std::min(width, height)) / 256.0);
  s.allowed = to_even(2.0 * (frames / 16.0));
  s.count = std::count_if(motion.begin(), ends, [&](double m) { return m > s.threshold; });
  const double most = 2.0 * static_cast<double>(s.allowed) * s.threshold;
  s.is_static = s.count <= s.allowed && ends[0] <= most && ends[1] <= most;
  return s;
}

}  // namespace megaslide
