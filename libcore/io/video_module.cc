#include "io/video_module.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/library_versions.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

// The module's file, or an empty path; the places looked at are added to `searched`.
fs::path find_module(std::string& searched) {
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* folder : {"../lib", MEGASLIDE_MODULE_DIR, "../lib/megaslide", "."}) {
    fs::path candidate = (here / folder / "megaslide_video.so").lexically_normal();
    searched += (searched.empty() ? "" : ", ") + candidate.string();
    if (fs::exists(candidate, ignored)) return candidate;
  }
  return {};
}

const MsVideoModule* load() {
  std::string searched;
  const fs::path file = find_module(searched);
  if (file.empty())
    throw Error("the video module is missing; looked for " + searched,
                "install MegaSlide with `cmake --install`, or run the programs from the build tree");
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    throw Error(fmt::format("the video module cannot be loaded: {}", dlerror()),
                "install the FFmpeg libraries it was built with (Debian: libavformat, libavcodec, libswscale), or build again");
  const auto entry = reinterpret_cast<MsVideoModuleEntry>(dlsym(handle, "megaslide_video_module"));
  const MsVideoModule* module = entry != nullptr ? entry() : nullptr;
  if (module == nullptr || module->version != kMsVideoModuleVersion)
    throw Error(fmt::format("{} is from another version of MegaSlide", file.string()), "install the programs and the module together");
  return module;  // stays loaded: libav keeps state of its own
}

}  // namespace

const MsVideoModule& video_module() {
  static const MsVideoModule* const module = load();  // a failed load is tried again at the next call
  return *module;
}

std::vector<std::string> lines_of(const char* text) {
  std::vector<std::string> out;
  std::string line;
  for (; *text != 0; ++text) {
    if (*text == '\n') out.push_back(std::exchange(line, {}));
    else line += *text;
  }
  return out;
}

std::string version_of_ffmpeg() {
  std::string searched;
  if (find_module(searched).empty()) return "none: the video module is missing";
  void* handle = dlopen(MEGASLIDE_LIBAVUTIL, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return fmt::format("none: {}", dlerror());
  const auto ask = [&](const char* name) {
    const auto function = reinterpret_cast<const char* (*)()>(dlsym(handle, name));
    return function != nullptr ? function() : "?";
  };
  return fmt::format("{}, {}", ask("av_version_info"), ask("avutil_license"));
}

}  // namespace megaslide
