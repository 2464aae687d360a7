// Which frames of a video VBench's dimensions look at (spec vbench.md, vbench-networks.md §1, §3, §4). Counts are of decoded
// frames; indices begin at 0.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace megaslide {

// ViCLIP: the middle frames of min(wanted, frames) equal parts; where there are fewer, the last one again up to `wanted`.
std::vector<int64_t> middle_frames(int64_t frames, int64_t wanted = 8);

// dynamic_degree looks at every n-th frame: max(1, fps/8), halves to even; 1 where the rate is unknown (0).
int64_t dynamic_interval(double fps);

// motion_smoothness: `between` is predicted from the frames before and after it. With an even count the last frame has none.
struct MotionTriple {
  int64_t before, after, between;
};
// The triple whose last frame is frame `index`, nullopt where there is none.
std::optional<MotionTriple> motion_triple_ending_at(int64_t index);

}  // namespace megaslide
