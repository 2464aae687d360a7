#include "eval/weights.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"

namespace megaslide {

std::string WeightsReport::reason(const Dimension& d) const {
  if (d.networks.empty()) return fmt::format("{}; import its score with --import", d.missing);
  std::vector<std::string> parts;
  for (std::string_view n : d.networks) {
    const auto found = networks.find(std::string(n));
    parts.push_back(fmt::format("{}{}", n, found == networks.end() ? "" : " (found)"));
  }
  return fmt::format("needs {}, and {}; import its score with --import", fmt::join(parts, " and "), d.missing);
}

WeightsReport inspect_weights(const std::string& folder, std::vector<std::string>& warnings) {
  namespace fs = std::filesystem;
  WeightsReport report;
  if (folder.empty()) return report;
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) throw usage_error(fmt::format("--weights {}: no such folder", folder));
  report.folder = folder;
  std::vector<std::string> found;
  for (const Dimension& d : dimensions()) {
    for (std::string_view n : d.networks) {
      for (const char* extension : {".safetensors", ".pth"}) {
        const std::string path = (fs::path(folder) / fmt::format("{}{}", n, extension)).string();
        if (fs::exists(path, ec) && report.networks.emplace(n, path).second) found.emplace_back(n);
      }
    }
  }
  if (found.empty()) {
    warnings.push_back(fmt::format("--weights {}: none of the known networks is in it", folder));
  } else {
    warnings.push_back(
        fmt::format("--weights {}: this version runs none of these networks ({}): their dimensions stay withheld",
                    folder, fmt::join(found, ", ")));
  }
  return report;
}

}  // namespace megaslide
