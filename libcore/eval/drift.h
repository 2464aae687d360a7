// How far a clip moves away from itself. Scores between neighbouring frames saturate near 1 and hide a slow change of
// colours or content; differences over growing steps show it.
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "eval/pixel_ops.h"

namespace megaslide {

struct DriftCurve {
  std::vector<int64_t> gaps;       // frames: 1, 2, 3, 4, 6, 8, 12, ... up to 256 or the clip's length
  std::vector<double> difference;  // mean over i of mean |S_i+gap - S_i| / 255, S the frame shrunk to 64 cells a side
  std::vector<double> from_first;  // per frame: mean |S_i - S_0| / 255
};

// Keeps the last 256 shrunk frames (12.6 MB at most), whatever the length of the clip.
class DriftCollector {
 public:
  DriftCollector();
  void add(const Picture& picture);
  DriftCurve finish() const;

 private:
  SmallPicture first_;
  std::deque<SmallPicture> last_;  // newest at the back
  std::vector<double> sums_, from_first_;
  std::vector<int64_t> counts_;
};

}  // namespace megaslide
