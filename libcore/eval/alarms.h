// What is wrong with a clip that a score does not tell: it stands still, it is black, pictures repeat.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "eval/metric.h"

namespace megaslide {

struct Alarm {
  std::string kind;             // "frozen", "black_frames", "duplicate_frames"
  std::string text;             // one sentence
  std::vector<int64_t> frames;  // where, ascending; for "frozen" empty
};

// frozen: at least 95% of the neighbouring pairs differ by no more than 0.1 levels on average (an encoder's noise on a
// still picture stays below that). black: at least 98% of the pixels have no channel above 25 (a tenth of the range).
// duplicate: a picture equal, byte for byte, to the one before, in a clip that is not frozen.
class AlarmCollector {
 public:
  void add(const FrameContext& frame);
  std::vector<Alarm> finish() const;

 private:
  int64_t frames_ = 0, still_ = 0;
  std::vector<int64_t> black_, duplicates_;
};

}  // namespace megaslide
