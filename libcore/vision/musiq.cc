#include "vision/musiq.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace megaslide {
namespace {

constexpr double kEps = 1e-6;

const TransformerNames& block_names() {
  static const TransformerNames names{.blocks = "transformer_encoder.transformer.encoderblock_", .norm1 = "norm1", .q = "attention.query",
                                      .k = "attention.key", .v = "attention.value", .out = "attention.out", .norm2 = "norm2",
                                      .fc1 = "mlp.fc1", .fc2 = "mlp.fc2"};
  return names;
}

constexpr const char *kClassToken = "transformer_encoder.cls", *kPositions = "transformer_encoder.posembed_input.position_emb",
                     *kScales = "transformer_encoder.scaleembed_input.scale_emb", *kNorm = "transformer_encoder.encoder_norm";

}  // namespace

MusiqNetwork MusiqNetwork::load(const Place& place, const NetworkWeights& file, int64_t heads) {
  MS_CHECK(heads > 0, "{}", heads);
  const TransformerShape shape = transformer_shape(file, block_names(), kEps, MlpActivation::kGelu, false, heads);
  const MusiqStem::Channels stem = MusiqStem::Channels::of(file);
  const int64_t cells = MusiqStem::kResultSide * MusiqStem::kResultSide, width = shape.width;
  std::map<std::string, Shape> expected{{"embedding.weight", {width, cells * stem.outer}},
                                        {"embedding.bias", {width}},
                                        {kClassToken, {1, 1, width}},
                                        {kPositions, {1, kMusiqGrid * kMusiqGrid, width}},
                                        {kScales, {kMusiqScales, width}},
                                        {std::string(kNorm) + ".weight", {width}},
                                        {std::string(kNorm) + ".bias", {width}},
                                        {"head.weight", {1, width}},
                                        {"head.bias", {1}}};
  stem.add_tensors(expected);
  add_transformer_tensors(expected, shape, block_names());
  file.require(expected);
  MusiqNetwork m;
  m.stem_ = MusiqStem(place, file, stem);
  m.embedding_ = {place, file.read("embedding.weight"), file.read("embedding.bias"), Products::kFloat};
  m.class_token_ = file.read(kClassToken);
  m.positions_ = file.read(kPositions);
  m.scales_ = file.read(kScales);
  m.transformer_ = {place, file, shape, block_names(), DType::kF32};
  m.norm_ = AffineNorm(place, file, kNorm, kEps);
  m.head_weight_ = file.read("head.weight");
  m.head_bias_ = file.read("head.bias");
  return m;
}

HostTensor MusiqNetwork::embedding(const Place& place, const MusiqPatches& patches) const {
  const PlacedTensor stem = stem_.forward(place, patches.pixels);
  PlacedTensor out(place, DType::kF32, {patches.count(), width()});
  embedding_.forward(place, out.f32(), stem.data(), patches.count());
  return out.to_host(place);
}

HostTensor MusiqNetwork::class_feature(const Place& place, const HostTensor& embedding, const MusiqPatches& patches) const {
  const int64_t n = patches.count(), w = width();
  HostTensor rows(DType::kF32, {1 + n, w});
  std::copy_n(class_token_.f32(), w, rows.f32());
  for (int64_t i = 0; i < n; ++i) {
    const float *from = embedding.f32() + i * w, *position = positions_.f32() + patches.positions[static_cast<size_t>(i)] * w,
                *scale = scales_.f32() + patches.scales[static_cast<size_t>(i)] * w;
    float* to = rows.f32() + (1 + i) * w;
    for (int64_t c = 0; c < w; ++c) to[c] = from[c] + position[c] + scale[c];
  }
  PlacedTensor x(place, std::move(rows)), feature = transformer_.forward(place, x.f32(), 1, 1 + n, 0);
  norm_.forward(place, feature.f32(), feature.f32(), 1, DType::kF32);
  return feature.to_host(place);
}

double MusiqNetwork::score_of(const HostTensor& class_feature) const {
  double score = static_cast<double>(head_bias_.f32()[0]);
  for (int64_t c = 0; c < width(); ++c) score += static_cast<double>(class_feature.f32()[c]) * static_cast<double>(head_weight_.f32()[c]);
  return score;
}

double MusiqNetwork::score(const Place& place, const Picture& picture) const {
  ThreadPool& pool = place.stream().pool();
  const MusiqPatches patches = musiq_patches(musiq_frame(picture, pool), pool);
  return score_of(class_feature(place, embedding(place, patches), patches));
}

}  // namespace megaslide
