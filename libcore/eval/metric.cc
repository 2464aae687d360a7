#include "eval/metric.h"

#include <algorithm>

#include "base/error.h"
#include "eval/network_metrics.h"

namespace megaslide {

const std::vector<std::string_view>& metric_names() {
  static const std::vector<std::string_view> kNames{
      "subject_consistency", "background_consistency", "temporal_flickering", "motion_smoothness", "dynamic_degree",      "aesthetic_quality",
      "imaging_quality",     "appearance_style",       "temporal_style",      "overall_consistency", "psnr",              "ssim"};
  return kNames;
}

bool metric_needs_reference(std::string_view name) { return name == "psnr" || name == "ssim"; }

std::string_view shared_metric(std::string_view name) { return name == "overall_consistency" ? "temporal_style" : name; }

std::unique_ptr<Metric> make_metric(std::string_view name, const MetricContext& c) {
  if (name == "psnr") return make_psnr_metric();
  if (name == "ssim") return make_ssim_metric();
  if (name == "temporal_flickering" && !c.static_filter) return make_flicker_metric();
  MS_CHECK(c.networks != nullptr, "{}", name);
  if (name == "temporal_flickering") return make_static_flicker_metric(*c.networks);
  if (name == "subject_consistency") return make_subject_metric(*c.networks);
  if (name == "background_consistency") return make_background_metric(*c.networks);
  if (name == "motion_smoothness") return make_smoothness_metric(*c.networks);
  if (name == "dynamic_degree") return make_dynamic_metric(*c.networks, c.fps);
  if (name == "imaging_quality") return make_imaging_metric(*c.networks);
  if (name == "aesthetic_quality") return make_aesthetic_metric(*c.networks);
  if (name == "appearance_style") return make_appearance_metric(*c.networks, c.style);
  MS_CHECK(name == "temporal_style" || name == "overall_consistency", "{}", name);
  return make_viclip_metric(*c.networks, c.prompt);
}

}  // namespace megaslide
