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

TokenGrid token_grid(const MotionSceneOptions& o, const TokenSize& token) {
  const bool whole = (o.frames - 1) % token.frames == 0 && o.height % token.height == 0 && o.width % token.width == 0;
  if (!whole)
    throw usage_error(fmt::format("{} frames of {}x{} pixels are no whole number of tokens of {} frames and {}x{} pixels", o.frames, o.width, o.height, token.frames, token.width, token.height),
                      "one frame more than a multiple of the token's, and multiples of its pixels");
  return {1 + (o.frames - 1) / token.frames, o.height / token.height, o.width / token.width, token};
}

std::vector<float> motion_displacement(const MotionScene& scene, const TokenGrid& grid) {
  std::vector<float> all;
  all.reserve(static_cast<size_t>(2 * grid.tokens() * grid.frames));
  for (int64_t t = 0; t < grid.frames; ++t)
    for (int64_t h = 0; h < grid.height; ++h)
      for (int64_t w = 0; w < grid.width; ++w) {
        const int64_t surface = scene.surface_at(grid.frame_of(t), static_cast<double>(grid.row_of(h)) + 0.5, static_cast<double>(grid.column_of(w)) + 0.5);
        const MotionScene::Surface& s = scene.surfaces()[static_cast<size_t>(surface)];
        const auto here = static_cast<size_t>(grid.frame_of(t));
        for (int64_t tau = 0; tau < grid.frames; ++tau) {
          const auto there = static_cast<size_t>(grid.frame_of(tau));
          all.push_back(static_cast<float>((s.at_h[there] - s.at_h[here]) / static_cast<double>(grid.token.height)));
          all.push_back(static_cast<float>((s.at_w[there] - s.at_w[here]) / static_cast<double>(grid.token.width)));
        }
      }
  return all;
}

namespace {

void make_folder(const std::string& path) {
  std::error_code problem;
  std::filesystem::create_directories(path, problem);
  if (problem) throw Error(fmt::format("cannot make {}: {}", path, problem.message()), "choose another folder");
}

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
  const std::string clip = directory + "/clips/" + name, truth = directory + "/truth/" + name;
  make_folder(clip);
  make_folder(directory + "/truth");
  for (int64_t t = 0; t < o.frames; ++t) write_png(fmt::format("{}/frame_{:03}.png", clip, t), scene.picture(t));
  write_file_atomic(clip + ".txt", scene.caption() + "\n");
  write_truth(truth + ".safetensors", motion_truth(scene, o), o);
  nlohmann::ordered_json surfaces = nlohmann::ordered_json::array();
  for (const MotionScene::Surface& s : scene.surfaces())
    surfaces.push_back({{"shape", s.shape.empty() ? "background" : s.shape}, {"colour", s.colour}, {"radius", s.radius},
                        {"pixels_a_frame", s.speed}, {"h", s.at_h}, {"w", s.at_w}});
  write_file_atomic(truth + ".json", nlohmann::ordered_json{{"caption", scene.caption()}, {"saturation", o.saturation}, {"surfaces", surfaces}}.dump(1) + "\n");
}

void write_motion_displacement(const std::string& directory, const std::string& name, const MotionScene& scene, const TokenGrid& grid) {
  make_folder(directory + "/displacement");
  const std::vector<float> values = motion_displacement(scene, grid);
  write_safetensors(directory + "/displacement/" + name + ".safetensors",
                    {{"displacement", {DType::kF32, {grid.frames, grid.height, grid.width, grid.frames, 2}, reinterpret_cast<const std::byte*>(values.data())}}});
}

}  // namespace megaslide
