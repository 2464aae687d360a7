#pragma once
#include <string>
#include <vector>

namespace megaslide {

// Directories with presets: ../share/megaslide/configs of the program, or the source tree's for a program that is run
// from the build tree.
std::vector<std::string> preset_directories();

}  // namespace megaslide
