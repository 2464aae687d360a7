#pragma once
#include <string>
#include <vector>

namespace megaslide {

// Directories with presets, found from the program's own folder, so that an installation can be moved.
std::vector<std::string> preset_directories();

}  // namespace megaslide
