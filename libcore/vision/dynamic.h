// Arithmetic of dynamic_degree and of the static filter before temporal_flickering, from given flows (spec vbench.md,
// vbench-networks.md §4). Flows are of the padded frames and count whole; sizes in thresholds are those of the frames as
// they were decoded. All motion is in pixels between the two frames of a pair.
#pragma once
#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace megaslide {

inline constexpr double kDynamicShare = 0.05, kStaticShare = 0.02;
// Mean of the ⌊share·H·W⌋ largest magnitudes √(u² + v²) of a flow [2,H,W]. Throws Error where the flow holds values that
// are not finite.
double largest_motion(const HostTensor& flow, double share);

struct DynamicVerdict {
  double threshold = 0;  // 6·min(H,W)/256
  int64_t needed = 0;    // frames/4 to nearest, ties to even
  int64_t count = 0;     // of pairs whose motion is above the threshold
  bool dynamic = false;  // there is a pair, and count ≥ needed; with two frames needed is 0 and any pair is enough
};
// motion: largest_motion of neighbours among the `frames` frames that were looked at, frames − 1 values.
DynamicVerdict dynamic_verdict(const std::vector<double>& motion, int64_t frames, int64_t width, int64_t height);

struct StaticVerdict {
  double threshold = 0;   // τ = 3·min(H,W)/256
  int64_t allowed = 0;    // K = n/8 to nearest, ties to even
  int64_t count = 0;      // of neighbours whose motion is above τ
  bool is_static = true;  // count ≤ K, and neither of the last two is above 2·K·τ
};
// motion: of all n − 1 neighbours in order, then from the first frame to the last, and from the last to the first.
StaticVerdict static_verdict(const std::vector<double>& motion, int64_t width, int64_t height);

}  // namespace megaslide
