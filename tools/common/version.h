#pragma once
#include <string>

#include "common/run_tool.h"

namespace megaslide {

// What --version prints: name and version; for a program that computes, the devices of this build and the instruction sets in
// use; the libraries of this program with their versions.
std::string version_text(const ToolInfo& info);

}  // namespace megaslide
