#include "common/version.h"

#include <CLI/Version.hpp>

#include "base/library_versions.h"
#include "device/device.h"
#include "kernels/instruction_sets.h"

namespace megaslide {
namespace {

std::string libraries() {
  std::string text = fmt::format("fmt {}.{}.{}, CLI11 {}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100, CLI11_VERSION);
  const auto add = [&](const char* name, std::string (*version)()) {
    if (version != nullptr) text += fmt::format(", {} {}", name, version());
  };
  add("yaml-cpp", &yaml_version);
  add("nlohmann-json", &json_version);
  add("OpenSSL", &openssl_version);
  add("libzip", &libzip_version);
  add("zlib", &zlib_version);
  add("libpng", &libpng_version);
  add("liburing", &liburing_version);
  add("sentencepiece", &sentencepiece_version);
  add("Highway", &highway_version);
  add("oneDNN", &onednn_version);
  return text;
}

}  // namespace

std::string version_text(const ToolInfo& info) {
  std::string text = info.name + " (MegaSlide) " + MEGASLIDE_VERSION;
  if ((info.flags & kDeviceFlag) || &make_cuda_device)
    text += fmt::format("\ndevices: cpu{}{}", &make_cuda_device ? " cuda (" MEGASLIDE_CUDA_TARGETS ")" : "", info.flags & kSimDevice ? " sim" : "");
  if (&instruction_sets) text += "\ninstructions: " + instruction_sets();
  text += "\nlibraries: " + libraries();
  if (&ffmpeg_version) text += "\nvideo: FFmpeg " + ffmpeg_version();
  return text;
}

}  // namespace megaslide
