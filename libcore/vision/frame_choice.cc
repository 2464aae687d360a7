#include "vision/frame_choice.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace megaslide {

std::vector<int64_t> middle_frames(int64_t frames, int64_t wanted) {
  MS_CHECK(frames > 0 && wanted > 0, "{} of {}", wanted, frames);
  const int64_t parts = std::min(wanted, frames);
  std::vector<int64_t> out;
  for (int64_t k = 0; k < parts; ++k) out.push_back((k * frames / parts + (k + 1) * frames / parts - 1) / 2);
  out.resize(static_cast<size_t>(wanted), out.back());
  return out;
}

int64_t dynamic_interval(double fps) {
  if (!(fps > 8) || std::isinf(fps)) return 1;
  return static_cast<int64_t>(std::nearbyint(std::min(fps, 1e9) / 8));
}

std::optional<MotionTriple> motion_triple_ending_at(int64_t index) {
  if (index < 2 || index % 2 != 0) return std::nullopt;
  return MotionTriple{index - 2, index, index - 1};
}

}  // namespace megaslide
