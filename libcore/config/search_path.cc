#include "config/search_path.h"

#include <algorithm>
#include <filesystem>

namespace megaslide {
namespace {
std::vector<std::string>& current_directories() {
  static std::vector<std::string> d;
  return d;
}
}  // namespace

void set_config_directories(std::vector<std::string> directories) { current_directories() = std::move(directories); }
const std::vector<std::string>& config_directories() { return current_directories(); }

std::string find_preset(const std::string& kind, const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos) return {};
  for (const std::string& d : current_directories()) {
    const std::filesystem::path file = std::filesystem::path(d) / kind / (name + ".yaml");
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error)) return file.string();
  }
  return {};
}

std::vector<std::string> preset_names(const std::string& kind) {
  std::vector<std::string> names;
  for (const std::string& d : current_directories()) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(d) / kind, error))
      if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace megaslide
