#include "eval/dimensions.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "config/nearest.h"

namespace megaslide {
namespace {

constexpr std::string_view kDetector = "its detector or classifier is not built in";

void add_family(Aggregate& a, DimensionFamily family, const std::string& name, std::optional<double>& out) {
  double sum = 0, weights = 0;
  int of = 0;
  std::vector<std::string> absent;
  std::string terms;
  for (const Dimension& d : dimensions()) {
    if (d.family != family) continue;
    ++of;
    const auto found = a.normalised.find(std::string(d.name));
    if (found == a.normalised.end()) {
      absent.emplace_back(d.name);
      continue;
    }
    sum += d.weight * found->second;
    weights += d.weight;
    terms += fmt::format("{}{}{:.4f}", terms.empty() ? "" : " + ",
                         d.weight == 1 ? "" : fmt::format("{:g} x ", d.weight), found->second);
  }
  if (!absent.empty()) {
    a.withheld[name] = fmt::format("partial: {}/{} dimensions, absent: {}", of - static_cast<int>(absent.size()), of,
                                   fmt::join(absent, ", "));
    a.arithmetic.push_back(
        fmt::format("{} withheld (partial: {}/{} dimensions)", name, of - static_cast<int>(absent.size()), of));
    return;
  }
  out = sum / weights;
  a.arithmetic.push_back(fmt::format("{} = ({}) / {:g} = {:.6f}", name, terms, weights, *out));
}

}  // namespace

const std::vector<Dimension>& dimensions() {
  using F = DimensionFamily;
  static const std::vector<Dimension> kAll{
      {"subject_consistency", 0.1462, 1, 1, F::kQuality, {"dino_vitb16"}, ""},
      {"background_consistency", 0.2615, 1, 1, F::kQuality, {"clip_vit_b32"}, ""},
      {"temporal_flickering", 0.6293, 1, 1, F::kQuality, {}, ""},
      {"motion_smoothness", 0.706, 0.9975, 1, F::kQuality, {"amt_s"}, ""},
      {"dynamic_degree", 0, 1, 0.5, F::kQuality, {"raft_things"}, ""},
      {"aesthetic_quality", 0, 1, 1, F::kQuality, {"clip_vit_l14", "aesthetic_head"}, ""},
      {"imaging_quality", 0, 1, 1, F::kQuality, {"musiq_spaq"}, "", 100},
      {"object_class", 0, 1, 1, F::kSemantic, {}, kDetector},
      {"multiple_objects", 0, 1, 1, F::kSemantic, {}, kDetector},
      {"human_action", 0, 1, 1, F::kSemantic, {}, kDetector},
      {"color", 0, 1, 1, F::kSemantic, {}, kDetector},
      {"spatial_relationship", 0, 1, 1, F::kSemantic, {}, kDetector},
      {"scene", 0, 0.8222, 1, F::kSemantic, {}, kDetector},
      {"appearance_style", 0.0009, 0.2855, 1, F::kSemantic, {"clip_vit_b32"}, ""},
      {"temporal_style", 0, 0.364, 1, F::kSemantic, {"viclip_l14"}, ""},
      {"overall_consistency", 0, 0.364, 1, F::kSemantic, {"viclip_l14"}, ""},
      {"psnr", 0, 0, 0, F::kReference, {}, ""},
      {"ssim", 0, 0, 0, F::kReference, {}, ""},
  };
  return kAll;
}

const Dimension* find_dimension(std::string_view name) {
  for (const Dimension& d : dimensions()) {
    if (d.name == name) return &d;
  }
  return nullptr;
}

const Dimension& require_dimension(const std::string& name) {
  if (const Dimension* d = find_dimension(name)) return *d;
  std::vector<std::string> names;
  for (const Dimension& d : dimensions()) names.emplace_back(d.name);
  std::string near = nearest_name(name, names);
  for (const std::string& n : names) {
    if (near.empty() && name.size() > 2 && n.find(name) != std::string::npos) near = n;
  }
  throw usage_error(
      fmt::format("there is no dimension {}", quote_for_message(name)),
      near.empty() ? fmt::format("the names are: {}", fmt::join(names, ", ")) : fmt::format("did you mean {}?", near));
}

double normalised_score(const Dimension& d, double raw) { return (raw - d.low) / (d.high - d.low); }

Aggregate aggregate_scores(const std::map<std::string, double>& raw, bool clamp) {
  Aggregate a;
  for (const auto& [name, value] : raw) {
    const Dimension* d = find_dimension(name);
    if (d == nullptr || d->family == DimensionFamily::kReference) continue;
    ++a.present;
    const double n = normalised_score(*d, value);
    if (n < 0 || n > 1) a.outside.push_back(name);
    a.normalised[name] = clamp ? std::clamp(n, 0.0, 1.0) : n;
  }
  add_family(a, DimensionFamily::kQuality, "quality", a.quality);
  add_family(a, DimensionFamily::kSemantic, "semantic", a.semantic);
  if (a.quality && a.semantic) {
    a.total = (4 * *a.quality + *a.semantic) / 5;
    a.arithmetic.push_back(
        fmt::format("total = (4 x {:.6f} + {:.6f}) / 5 = {:.6f}", *a.quality, *a.semantic, *a.total));
  } else {
    a.withheld["total"] = fmt::format("partial: {}/16, total withheld", a.present);
    a.arithmetic.push_back(fmt::format("total withheld (partial: {}/16)", a.present));
  }
  return a;
}

}  // namespace megaslide
