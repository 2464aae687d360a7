#include "io/video_module.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

const MsVideoModule* load() {
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  constexpr const char* kFile = "megaslide_video.so";
  std::string searched;
  for (const char* folder : {"../lib", MEGASLIDE_MODULE_DIR, "../lib/megaslide", "."}) {
    const fs::path candidate = (here / folder / kFile).lexically_normal();
    searched += (searched.empty() ? "" : ", ") + candidate.string();
    if (!fs::exists(candidate, ignored)) continue;
    void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      throw Error(fmt::format("the video module cannot be loaded: {}", dlerror()),
                  "install the FFmpeg libraries it was built with (Debian: libavformat, libavcodec, libswscale), or build again");
    const auto entry = reinterpret_cast<MsVideoModuleEntry>(dlsym(handle, "megaslide_video_module"));
    const MsVideoModule* module = entry != nullptr ? entry() : nullptr;
    if (module == nullptr || module->version != kMsVideoModuleVersion)
      throw Error(fmt::format("{} is from another version of MegaSlide", candidate.string()), "install the programs and the module together");
    return module;  // stays loaded: libav keeps state of its own
  }
  throw Error("the video module is missing; looked for " + searched,
              "install MegaSlide with `cmake --install`, or run the programs from the build tree");
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

}  // namespace megaslide
