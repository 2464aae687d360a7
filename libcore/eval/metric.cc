#include "eval/metric.h"

#include <algorithm>

#include "base/error.h"

namespace megaslide {

const std::vector<std::string_view>& metric_names() {
  static const std::vector<std::string_view> kNames{"temporal_flickering", "psnr", "ssim"};
  return kNames;
}

bool metric_needs_reference(std::string_view name) { return name == "psnr" || name == "ssim"; }

std::unique_ptr<Metric> make_metric(std::string_view name) {
  MS_CHECK(std::find(metric_names().begin(), metric_names().end(), name) != metric_names().end(), "{}", name);
  if (name == "psnr") return make_psnr_metric();
  if (name == "ssim") return make_ssim_metric();
  return make_flicker_metric();
}

}  // namespace megaslide
