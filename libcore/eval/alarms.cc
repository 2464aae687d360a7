#include "eval/alarms.h"

#include <fmt/format.h>

#include <algorithm>

#include "eval/pixel_ops.h"

namespace megaslide {
namespace {

constexpr double kStillLevels = 0.1, kStillShare = 0.95, kBlackShare = 0.98;
constexpr int kBlackLevel = 25;

// "3, 4, 9 and 12 more"
std::string list_frames(const std::vector<int64_t>& frames) {
  constexpr size_t kShown = 8;
  const std::vector<int64_t> shown(frames.begin(),
                                   frames.begin() + static_cast<std::ptrdiff_t>(std::min(frames.size(), kShown)));
  return fmt::format("{}{}", fmt::join(shown, ", "),
                     frames.size() > kShown ? fmt::format(" and {} more", frames.size() - kShown) : "");
}

int64_t longest_run(const std::vector<int64_t>& frames) {
  int64_t longest = 0, run = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    run = i > 0 && frames[i] == frames[i - 1] + 1 ? run + 1 : 1;
    longest = std::max(longest, run);
  }
  return longest;
}

}  // namespace

void AlarmCollector::add(const FrameContext& f) {
  ++frames_;
  if (dark_share(f.picture, kBlackLevel) >= kBlackShare) black_.push_back(f.index);
  if (f.previous == nullptr) return;
  if (static_cast<double>(f.difference) <= kStillLevels * static_cast<double>(f.picture.rgb.size())) ++still_;
  if (f.difference == 0) duplicates_.push_back(f.index);
}

std::vector<Alarm> AlarmCollector::finish() const {
  std::vector<Alarm> alarms;
  const int64_t pairs = frames_ - 1;
  const bool frozen = pairs > 0 && static_cast<double>(still_) >= kStillShare * static_cast<double>(pairs);
  if (frozen) {
    const bool all = static_cast<int64_t>(duplicates_.size()) == pairs;
    alarms.push_back({"frozen",
                      all ? fmt::format("frozen: all {} frames are equal", frames_)
                          : fmt::format("frozen: {} of {} steps change nothing visible", still_, pairs),
                      {}});
  }
  if (!black_.empty()) {
    const bool all = static_cast<int64_t>(black_.size()) == frames_;
    alarms.push_back({"black_frames",
                      all ? fmt::format("black: all {} frames", frames_)
                          : fmt::format("black: {} of {} frames ({})", black_.size(), frames_, list_frames(black_)),
                      black_});
  }
  if (!frozen && !duplicates_.empty()) {
    alarms.push_back({"duplicate_frames",
                      fmt::format("duplicates: {} of {} frames repeat the one before, up to {} in a row ({})",
                                  duplicates_.size(), frames_, longest_run(duplicates_), list_frames(duplicates_)),
                      duplicates_});
  }
  return alarms;
}

}  // namespace megaslide
