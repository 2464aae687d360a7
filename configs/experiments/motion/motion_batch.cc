#include "motion_batch.h"

#include <algorithm>
#include <iterator>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/cache.h"
#include "diffusion/flow_matching.h"
#include "io/json.h"
#include "motion_scene.h"

namespace megaslide {
namespace {

constexpr int64_t kLevels = std::ssize(kNoiseLevels);

// The tensors of a batch while they grow.
struct Growing {
  std::vector<float> latent, timesteps, text, velocity, displacement;
  std::vector<uint8_t> surface, kind;
};

std::span<const float> floats_of(const TensorView& v) {
  return {reinterpret_cast<const float*>(v.data), static_cast<size_t>(v.elements())};
}

template <class T, class From>
void append(std::vector<T>& to, const From& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// The surface at the middle pixel of every token, and its pace.
void read_tokens(const std::string& folder, const std::string& name, const TokenGrid& grid, std::vector<uint8_t>& surface, std::vector<uint8_t>& kind) {
  const std::string truth = folder + "/truth/" + name;
  const auto file = SafetensorsFile::open(truth + ".safetensors");
  const TensorView pixels = file.view("surface");
  const nlohmann::json surfaces = read_json(truth + ".json").at("surfaces");
  const int64_t rows = grid.height * grid.token.height, columns = grid.width * grid.token.width;
  if (pixels.dtype != DType::kU8 || pixels.shape != Shape{1 + (grid.frames - 1) * grid.token.frames, rows, columns})
    throw Error(fmt::format("{}.safetensors: surface {} is not of the clip that was encoded", truth, to_string(pixels.shape)), "encode whole clips at their own size");
  for (int64_t t = 0; t < grid.frames; ++t)
    for (int64_t h = 0; h < grid.height; ++h)
      for (int64_t w = 0; w < grid.width; ++w) {
        const auto s = static_cast<uint8_t>(pixels.data[static_cast<size_t>((grid.frame_of(t) * rows + grid.row_of(h)) * columns + grid.column_of(w))]);
        const double pixels_a_frame = surfaces.at(s).at("pixels_a_frame").get<double>();
        const double tokens = pixels_a_frame * static_cast<double>(grid.token.frames) / static_cast<double>(grid.token.height);
        surface.push_back(s);
        kind.push_back(static_cast<uint8_t>(s == 0 ? TokenKind::kBackground : tokens < 1 ? TokenKind::kSlow : TokenKind::kFast));
      }
}

void add_clip(Growing& all, const LatentCache& cache, size_t number, const std::string& folder, const ModelConfig& model, uint64_t seed) {
  const CachedClip& info = cache.info(number);
  const LatentCache::Clip clip = cache.clip(number);
  const Shape& latent = info.latent;
  const TokenGrid grid{latent[1], latent[2] / 2, latent[3] / 2, {}};
  std::vector<uint8_t> surface, kind;
  read_tokens(folder, info.path, grid, surface, kind);
  const HostTensor displacement = read_f32(SafetensorsFile::open(folder + "/displacement/" + info.path + ".safetensors"), "displacement");
  if (displacement.shape() != Shape{grid.frames, grid.height, grid.width, grid.frames, 2})
    throw Error(fmt::format("{}: displacement {} is not of the latent {}", info.path, to_string(displacement.shape()), to_string(latent)), "make the clips with --token 4x8x8");
  const auto clean = floats_of(clip.latent), rows = floats_of(clip.text);
  std::vector<float> noise(clean.size()), x(clean.size()), velocity(clean.size()), text(static_cast<size_t>(model.text_len * model.text_dim));
  std::copy(rows.begin(), rows.end(), text.begin());
  for (int64_t level = 0; level < kLevels; ++level) {
    const double sigma = kNoiseLevels[level];
    fill_normal(noise, seed, RandomPurpose::kNoise, sample_series(0, static_cast<int64_t>(number) * kLevels + level));
    add_noise(x, velocity, clean, noise, sigma);
    all.timesteps.push_back(static_cast<float>(timestep_of_sigma(sigma)));
    append(all.latent, x), append(all.velocity, velocity), append(all.text, text);
    append(all.displacement, floats_of(displacement.view()));
    append(all.surface, surface), append(all.kind, kind);
  }
}

}  // namespace

void write_motion_batch(const std::string& path, const std::string& cache_path, const std::string& folder, const ModelConfig& model, uint64_t seed) {
  const LatentCache cache = LatentCache::open(cache_path);
  if (cache.size() == 0) throw Error(cache_path + ": no clip", "encode some");
  const Shape latent = cache.info(0).latent;
  Growing all;
  for (size_t i = 0; i < cache.size(); ++i) {
    if (cache.info(i).latent != latent) throw Error(fmt::format("{}: its clips differ in size", cache_path), "encode clips of one size");
    require_text_of(cache.clip(i), model);
    add_clip(all, cache, i, folder, model, seed);
  }
  const auto b = static_cast<int64_t>(all.timesteps.size());
  const int64_t t = latent[1], h = latent[2] / 2, w = latent[3] / 2;
  const auto bytes = [](const auto& v) { return reinterpret_cast<const std::byte*>(v.data()); };
  write_safetensors(path, {{"latent", {DType::kF32, {b, latent[0], t, latent[2], latent[3]}, bytes(all.latent)}},
                           {"velocity", {DType::kF32, {b, latent[0], t, latent[2], latent[3]}, bytes(all.velocity)}},
                           {"timesteps", {DType::kF32, {b}, bytes(all.timesteps)}},
                           {"text", {DType::kF32, {b, model.text_len, model.text_dim}, bytes(all.text)}},
                           {"displacement", {DType::kF32, {b, t, h, w, t, 2}, bytes(all.displacement)}},
                           {"surface", {DType::kU8, {b, t, h, w}, bytes(all.surface)}},
                           {"kind", {DType::kU8, {b, t, h, w}, bytes(all.kind)}}});
}

MotionBatch MotionBatch::open(const std::string& path) {
  MotionBatch batch(SafetensorsFile::open(path));
  const TensorInfo* latent = batch.file_.find("latent");
  if (latent == nullptr || latent->shape.size() != 5) throw Error(path + ": no batch of noised clips", "make it with motion-batch");
  const Shape& s = latent->shape;
  batch.samples_ = s[0];
  batch.latent_shape_ = {s[1], s[2], s[3], s[4]};
  const int64_t h = s[3] / 2, w = s[4] / 2;
  const auto require = [&](const char* name, DType dtype, const Shape& shape) {
    const TensorInfo* info = batch.file_.find(name);
    if (info == nullptr || info->dtype != dtype || info->shape != shape) throw Error(fmt::format("{}: {} is missing or not {}", path, name, to_string(shape)), "make it with motion-batch");
  };
  require("latent", DType::kF32, s), require("velocity", DType::kF32, s), require("timesteps", DType::kF32, {s[0]});
  require("displacement", DType::kF32, {s[0], s[2], h, w, s[2], 2});
  require("surface", DType::kU8, {s[0], s[2], h, w}), require("kind", DType::kU8, {s[0], s[2], h, w});
  return batch;
}

double MotionBatch::sigma(int64_t sample) const {
  return sigma_of_timestep(static_cast<double>(floats("timesteps", sample)[0]));
}

std::vector<float> MotionBatch::clean(int64_t sample, std::span<const float> velocity) const {
  const auto x = latent(sample);
  const auto sigma_now = static_cast<float>(sigma(sample));
  std::vector<float> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] - sigma_now * velocity[i];
  return out;
}

std::span<const float> MotionBatch::floats(const char* tensor, int64_t sample) const {
  const auto all = floats_of(file_.view(tensor));
  const size_t n = all.size() / static_cast<size_t>(samples_);
  return all.subspan(static_cast<size_t>(sample) * n, n);
}

std::span<const uint8_t> MotionBatch::bytes(const char* tensor, int64_t sample) const {
  const TensorView v = file_.view(tensor);
  const auto n = static_cast<size_t>(v.elements() / samples_);
  return {reinterpret_cast<const uint8_t*>(v.data) + static_cast<size_t>(sample) * n, n};
}

}  // namespace megaslide
