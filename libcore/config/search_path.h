// Where presets are looked for. The program tells (tools/common, relative to its own file); the library knows no place.
#pragma once
#include <string>
#include <vector>

namespace megaslide {

// Directories that hold models/, machines/ and train/, in order of preference. Call before threads start.
void set_config_directories(std::vector<std::string> directories);
const std::vector<std::string>& config_directories();

// The file of a preset ("models", "tiny" → ".../models/tiny.yaml"), or "" where there is none.
std::string find_preset(const std::string& kind, const std::string& name);
// All preset names of a kind, sorted.
std::vector<std::string> preset_names(const std::string& kind);

}  // namespace megaslide
