#include <limits>

#include "eval/metric.h"

namespace megaslide {
namespace {

class FlickerMetric : public Metric {
 public:
  void add(const FrameContext& f) override {
    const double bytes = static_cast<double>(f.picture.rgb.size());
    if (f.previous == nullptr) {
      trace_.push_back(std::numeric_limits<double>::quiet_NaN());
      return;
    }
    total_ += f.difference;
    bytes_ += f.picture.rgb.size();
    trace_.push_back(static_cast<double>(f.difference) / bytes);
  }

  Score finish() override {
    if (bytes_ == 0) return {std::nullopt, "n/a: needs at least 2 frames"};
    // All pictures have one size, so the mean of means is the mean over all bytes: one division of exact integers.
    return {(255 - static_cast<double>(total_) / static_cast<double>(bytes_)) / 255, "", std::move(trace_),
            "difference from the frame before (levels of 255)"};
  }

 private:
  uint64_t total_ = 0, bytes_ = 0;  // 2^64 / 255 bytes: far more than any video
  std::vector<double> trace_;
};

}  // namespace

std::unique_ptr<Metric> make_flicker_metric() { return std::make_unique<FlickerMetric>(); }

}  // namespace megaslide
