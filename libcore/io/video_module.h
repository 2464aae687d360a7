// Finds and loads the libav module once.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "io/video.h"
#include "io/video_plugin.h"

namespace megaslide {

// Throws Error with the places searched and a remedy. Thread-safe.
const MsVideoModule& video_module();

// A buffer for the module's messages.
struct ModuleError {
  char text[1024] = {};
  operator MsVideoError() { return {text, sizeof text}; }  // NOLINT: implicit on purpose
};

std::vector<std::string> lines_of(const char* text);  // of the module's warnings

std::unique_ptr<VideoReader> open_frame_folder(const std::string& path, std::vector<std::string> pictures);
std::unique_ptr<VideoWriter> create_frame_folder(const std::string& path, int64_t width, int64_t height);

}  // namespace megaslide
