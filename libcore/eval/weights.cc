#include "eval/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"

namespace megaslide {
namespace {

struct Published {
  std::string_view network, where;  // what to fetch: a repository of Hugging Face, or a file
  std::string_view licence;         // as stated beside the published weights or the code that they come with
  bool non_commercial = false;
};
constexpr std::array kPublished{
    Published{"dino_vitb16", "facebook/dino-vitb16", "Apache-2.0"},
    Published{"clip_vit_b32", "openai/clip-vit-base-patch32", "MIT"},
    Published{"clip_vit_l14", "openai/clip-vit-large-patch14", "MIT"},
    Published{"aesthetic_head", "LAION's sa_0_4_vit_l_14_linear.pth", "MIT"},
    Published{"viclip_l14", "ViClip-InternVid-10M-FLT.pth", "Apache-2.0"},
    Published{"raft_things", "raft-things.pth", "BSD-3-Clause"},
    Published{"musiq_spaq", "musiq_spaq_ckpt-358bb6af.pth", "PolyForm Noncommercial 1.0.0", true},
    Published{"amt_s", "amt-s.pth", "CC BY-NC 4.0", true},
};
const Published& published(std::string_view network) {
  const auto at = std::ranges::find(kPublished, network, &Published::network);
  MS_CHECK(at != kPublished.end(), "{}", network);
  return *at;
}

}  // namespace

std::string published_licence(std::string_view network) {
  const auto at = std::ranges::find(kPublished, network, &Published::network);
  return at == kPublished.end() ? std::string() : std::string(at->licence);
}

bool WeightsReport::serves(const Dimension& d) const {
  return d.missing.empty() && std::ranges::all_of(d.networks, [&](std::string_view n) { return networks.contains(std::string(n)); });
}

std::string WeightsReport::reason(const Dimension& d) const {
  if (d.networks.empty()) return fmt::format("{}; import its score with --import", d.missing);
  std::vector<std::string> parts;
  for (std::string_view n : d.networks) {
    const bool found = networks.contains(std::string(n));
    if (!d.missing.empty()) parts.push_back(fmt::format("{}{}", n, found ? " (found)" : ""));
    else if (!found) parts.push_back(fmt::format("{} ({})", n, published(n).where));
  }
  if (!d.missing.empty()) return fmt::format("needs {}, and {}; import its score with --import", fmt::join(parts, " and "), d.missing);
  return fmt::format("needs {} in {}", fmt::join(parts, " and "), folder.empty() ? "--weights" : folder);
}

WeightsReport inspect_weights(const std::string& folder, std::vector<std::string>& warnings) {
  namespace fs = std::filesystem;
  WeightsReport report;
  if (folder.empty()) return report;
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) throw usage_error(fmt::format("--weights {}: no such folder", folder),
                                                      "name the folder with the networks' files; man eval-vbench lists them");
  report.folder = folder;
  std::vector<std::string> unused;
  for (const Dimension& d : dimensions()) {
    for (std::string_view n : d.networks) {
      for (const char* extension : {".safetensors", ".pth"}) {
        const std::string path = (fs::path(folder) / fmt::format("{}{}", n, extension)).string();
        if (!fs::exists(path, ec) || !report.networks.emplace(n, path).second) continue;
        if (!d.missing.empty()) unused.emplace_back(n);
        else if (published(n).non_commercial)
          warnings.push_back(fmt::format("{}: published under {}: for non-commercial use", path, published(n).licence));
      }
    }
  }
  if (report.networks.empty()) warnings.push_back(fmt::format("--weights {}: none of the known networks is in it", folder));
  if (!unused.empty())
    warnings.push_back(fmt::format("--weights {}: this version does not run {}: their dimensions stay withheld", folder, fmt::join(unused, ", ")));
  return report;
}

}  // namespace megaslide
