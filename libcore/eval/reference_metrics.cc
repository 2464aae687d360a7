#include <cmath>
#include <limits>

#include "eval/metric.h"
#include "eval/pixel_ops.h"
#include "eval/statistics.h"

namespace megaslide {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double psnr_of(double mse) {
  return mse == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(255.0 * 255.0 / mse);
}

std::vector<double> present(const std::vector<double>& trace) {
  std::vector<double> values;
  for (double v : trace) {
    if (!std::isnan(v)) values.push_back(v);
  }
  return values;
}

class PsnrMetric : public Metric {
 public:
  void add(const FrameContext& f) override {
    if (f.reference == nullptr) {
      trace_.push_back(kNone);
      return;
    }
    const int64_t n = static_cast<int64_t>(f.picture.rgb.size());
    const uint64_t sum = sum_squared_difference(f.picture.rgb.data(), f.reference->rgb.data(), n);
    total_ += sum, bytes_ += static_cast<uint64_t>(n);
    trace_.push_back(psnr_of(static_cast<double>(sum) / static_cast<double>(n)));
  }

  Score finish() override {
    const std::vector<double> values = present(trace_);
    if (values.empty()) return {std::nullopt, "n/a: no reference"};
    const double pooled = psnr_of(static_cast<double>(total_) / static_cast<double>(bytes_));
    return {mean_of(values),
            "",
            std::move(trace_),
            "PSNR (dB)",
            {{"pooled", pooled}, {"frames", static_cast<double>(values.size())}}};
  }

 private:
  uint64_t total_ = 0, bytes_ = 0;
  std::vector<double> trace_;
};

class SsimMetric : public Metric {
 public:
  void add(const FrameContext& f) override {
    if (f.picture.width < kSsimWindow || f.picture.height < kSsimWindow) {
      too_small_ = true;
    } else {
      trace_.push_back(f.reference == nullptr ? kNone : ssim(f.picture, *f.reference, f.pool));
    }
  }

  Score finish() override {
    if (too_small_) return {std::nullopt, "n/a: a side is below 11 pixels"};
    const std::vector<double> values = present(trace_);
    if (values.empty()) return {std::nullopt, "n/a: no reference"};
    return {mean_of(values), "", std::move(trace_), "SSIM", {{"frames", static_cast<double>(values.size())}}};
  }

 private:
  bool too_small_ = false;
  std::vector<double> trace_;
};

}  // namespace

std::unique_ptr<Metric> make_psnr_metric() { return std::make_unique<PsnrMetric>(); }
std::unique_ptr<Metric> make_ssim_metric() { return std::make_unique<SsimMetric>(); }

}  // namespace megaslide
