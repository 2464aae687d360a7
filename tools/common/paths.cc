#include "common/paths.h"

#include <filesystem>

namespace megaslide {

std::vector<std::string> preset_directories() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  for (const char* place : {MEGASLIDE_CONFIGS, "../share/megaslide/configs"}) {
    const fs::path folder = (program.parent_path() / place).lexically_normal();
    if (fs::is_directory(folder, error)) return {folder.string()};
  }
  return {};
}

}  // namespace megaslide
