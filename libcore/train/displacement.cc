#include "train/displacement.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "io/safetensors.h"

namespace megaslide {

void check_displacement(const RunConfig& run, const ModelConfig& model) {
  const bool needed = model.attention.needs_displacement(), there = !run.data.displacement.empty();
  if (needed && !there)
    throw usage_error("the model takes its offsets from a known motion (dsa.offsets: net+given), but data.displacement names no folder",
                      "name the folder with where the clips' tokens go, or set model.dsa.offsets=net+motion");
  if (!needed && there)
    throw usage_error("data.displacement: the model does not take its offsets from a known motion", "leave it out, or set model.dsa.offsets=net+given");
  if (needed && !run.data.replay.empty()) throw usage_error("data.displacement goes with data.cache, not with data.replay");
}

HostTensor read_displacement(const std::string& folder, const CachedClip& clip, const BatchShape& shape) {
  namespace fs = std::filesystem;
  const std::string path = (fs::path(folder) / fs::path(clip.path).relative_path().replace_extension(".safetensors")).string();
  const std::string remedy = "make it for this clip at this size, or leave the clip out";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) throw Error(fmt::format("{}: no such file; the clip {} has no known motion", path, clip.path), remedy);
  const auto file = SafetensorsFile::open(path);
  HostTensor tensor = read_f32(file, "displacement");
  const Shape expected{shape.frames, shape.height, shape.width, shape.frames, 2};
  if (tensor.shape() != expected)
    throw Error(fmt::format("{}: displacement is {}, the clip's tokens are {}", path, to_string(tensor.shape()), to_string(expected)), remedy);
  if (!std::all_of(tensor.f32(), tensor.f32() + tensor.elements(), [](float x) { return std::isfinite(x); }))
    throw Error(path + ": displacement has values that are not finite", remedy);
  return tensor;
}

}  // namespace megaslide
