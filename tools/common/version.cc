#include "common/version.h"

#include <CLI/Version.hpp>

#include "base/library_versions.h"
#include "device/device.h"
#include "kernels/instructions_in_use.h"

namespace megaslide {
namespace {

std::string libraries() {
  std::string text = fmt::format("fmt {}.{}.{}, CLI11 {}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100, CLI11_VERSION);
  const auto add = [&](const char* name, std::string (*version)()) {
    if (version != nullptr) text += fmt::format(", {} {}", name, version());
  };
  add("yaml-cpp", &version_of_yaml);
  add("nlohmann-json", &version_of_json);
  add("OpenSSL", &version_of_openssl);
  add("libzip", &version_of_libzip);
  add("zlib", &version_of_zlib);
  add("libpng", &version_of_libpng);
  add("liburing", &version_of_liburing);
  add("sentencepiece", &version_of_sentencepiece);
  add("Highway", &version_of_highway);
  add("oneDNN", &version_of_onednn);
  add("CUDA", &version_of_cudart);
  return text;
}

}  // namespace

std::string version_text(const ToolInfo& info) {
  std::string text = info.name + " (MegaSlide) " + MEGASLIDE_VERSION;
  if ((info.flags & kDeviceFlag) || &make_cuda_device)
    text += fmt::format("\ndevices: cpu{}{}", &make_cuda_device ? " cuda (" MEGASLIDE_CUDA_TARGETS ")" : "", info.flags & kSimDevice ? " sim" : "");
  if (&instructions_in_use) text += "\ninstructions: " + instructions_in_use();
  text += "\nlibraries: " + libraries();
  if (&version_of_ffmpeg) text += "\nvideo: FFmpeg " + version_of_ffmpeg();
  return text;
}

}  // namespace megaslide
