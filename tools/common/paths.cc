#include "common/paths.h"

#include <filesystem>

namespace megaslide {

std::vector<std::string> preset_directories() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  std::vector<std::string> found;
  const fs::path installed = program.parent_path().parent_path() / MEGASLIDE_DATADIR / "megaslide" / "configs";
  if (fs::is_directory(installed, error)) found.push_back(installed.lexically_normal().string());
  if (fs::equivalent(program.parent_path(), MEGASLIDE_BUILD_BIN, error) && !error) found.push_back(MEGASLIDE_SOURCE_CONFIGS);
  return found;
}

}  // namespace megaslide
