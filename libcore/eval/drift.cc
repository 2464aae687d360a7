#include "eval/drift.h"

#include <array>

namespace megaslide {
namespace {

constexpr int64_t kSide = 64;
constexpr std::array<int64_t, 16> kGaps{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};

}  // namespace

DriftCollector::DriftCollector() : sums_(kGaps.size()), counts_(kGaps.size()) {}

void DriftCollector::add(const Picture& picture) {
  SmallPicture small = shrink(picture, kSide);
  if (from_first_.empty()) first_ = small;
  from_first_.push_back(mean_abs_difference(small, first_) / 255);
  for (size_t i = 0; i < kGaps.size() && kGaps[i] <= static_cast<int64_t>(last_.size()); ++i) {
    sums_[i] += mean_abs_difference(small, last_[last_.size() - static_cast<size_t>(kGaps[i])]) / 255;
    ++counts_[i];
  }
  last_.push_back(std::move(small));
  if (static_cast<int64_t>(last_.size()) > kGaps.back()) last_.pop_front();
}

DriftCurve DriftCollector::finish() const {
  DriftCurve curve;
  curve.from_first = from_first_;
  for (size_t i = 0; i < kGaps.size() && counts_[i] > 0; ++i) {
    curve.gaps.push_back(kGaps[i]);
    curve.difference.push_back(sums_[i] / static_cast<double>(counts_[i]));
  }
  return curve;
}

}  // namespace megaslide
