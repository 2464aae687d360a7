// The truth about a scene's pixels, and its files.
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/safetensors.h"
#include "motion_scene.h"

namespace megaslide {

MotionTruth motion_truth(const MotionScene& scene, const MotionSceneOptions& o) {
  MotionTruth truth;
  for (int64_t t = 0; t < o.frames; ++t)
    for (int64_t y = 0; y < o.height; ++y)
      for (int64_t x = 0; x < o.width; ++x) {
        const double h = static_cast<double>(y) + 0.5, w = static_cast<double>(x) + 0.5;
        const int64_t surface = scene.surface_at(t, h, w);
        truth.surface.push_back(static_cast<uint8_t>(surface));
        if (t + 1 == o.frames) continue;
        const MotionScene::Surface& s = scene.surfaces()[static_cast<size_t>(surface)];
        const auto now = static_cast<size_t>(t), next = now + 1;
        const double dh = s.at_h[next] - s.at_h[now], dw = s.at_w[next] - s.at_w[now];
        truth.flow.push_back(static_cast<float>(dh)), truth.flow.push_back(static_cast<float>(dw));
        const bool inside = h + dh >= 0 && h + dh < static_cast<double>(o.height) && w + dw >= 0 && w + dw < static_cast<double>(o.width);
        truth.seen.push_back(inside && scene.surface_at(t + 1, h + dh, w + dw) == surface);
      }
  return truth;
}

namespace {

void write_truth(const std::string& path, const MotionTruth& truth, const MotionSceneOptions& o) {
  const auto bytes = [](const auto& v) { return reinterpret_cast<const std::byte*>(v.data()); };
  const int64_t pairs = o.frames - 1;
  std::vector<std::pair<std::string, TensorView>> tensors;
  tensors.push_back({"surface", {DType::kU8, {o.frames, o.height, o.width}, bytes(truth.surface)}});
  tensors.push_back({"flow", {DType::kF32, {pairs, o.height, o.width, 2}, bytes(truth.flow)}});
  tensors.push_back({"seen", {DType::kU8, {pairs, o.height, o.width}, bytes(truth.seen)}});
  write_safetensors(path, tensors);
}

}  // namespace

void write_motion_clip(const std::string& directory, const std::string& name, const MotionScene& scene, const MotionSceneOptions& o) {
  namespace fs = std::filesystem;
  const std::string clip = directory + "/clips/" + name, truth = directory + "/truth/" + name;
  std::error_code problem;
  fs::create_directories(clip, problem);
  if (!problem) fs::create_directories(directory + "/truth", problem);
  if (problem) throw Error(fmt::format("cannot make {}: {}", clip, problem.message()), "choose another folder");
  for (int64_t t = 0; t < o.frames; ++t) write_png(fmt::format("{}/frame_{:03}.png", clip, t), scene.picture(t));
  write_file_atomic(clip + ".txt", scene.caption() + "\n");
  write_truth(truth + ".safetensors", motion_truth(scene, o), o);
  nlohmann::ordered_json surfaces = nlohmann::ordered_json::array();
  for (const MotionScene::Surface& s : scene.surfaces())
    surfaces.push_back({{"shape", s.shape.empty() ? "background" : s.shape}, {"colour", s.colour}, {"radius", s.radius},
                        {"pixels_a_frame", s.speed}, {"h", s.at_h}, {"w", s.at_w}});
  write_file_atomic(truth + ".json", nlohmann::ordered_json{{"caption", scene.caption()}, {"surfaces", surfaces}}.dump(1) + "\n");
}

}  // namespace megaslide
