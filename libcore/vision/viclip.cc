#include "vision/viclip.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

constexpr double kEps = 1e-5;

const std::string kClassToken = "vision_encoder.class_embedding", kPlaces = "vision_encoder.positional_embedding",
                  kTimes = "vision_encoder.temporal_positional_embedding", kPatches = "vision_encoder.conv1.weight",
                  kBefore = "vision_encoder.ln_pre", kAfter = "vision_encoder.ln_post", kProjection = "vision_encoder.proj";

const TransformerNames& video_blocks() {
  static const TransformerNames names = openai_names("vision_encoder.transformer.resblocks.");
  return names;
}
const TextTowerNames& text_names() {
  static const TextTowerNames names{"text_encoder.token_embedding.weight", "text_encoder.positional_embedding", "text_encoder.ln_final",
                                    "text_encoder.text_projection", true, openai_names("text_encoder.transformer.resblocks.")};
  return names;
}

// The class token has a place but no time.
HostTensor places_and_times(const HostTensor& class_token, const HostTensor& places, const HostTensor& times) {
  const int64_t width = class_token.elements(), patches = places.shape()[0] - 1, frames = times.shape()[1];
  HostTensor out(DType::kF32, {1 + frames * patches, width});
  for (int64_t c = 0; c < width; ++c) out.f32()[c] = class_token.f32()[c] + places.f32()[c];
  for (int64_t t = 0; t < frames; ++t)
    for (int64_t l = 0; l < patches; ++l)
      for (int64_t c = 0; c < width; ++c)
        out.f32()[(1 + t * patches + l) * width + c] = places.f32()[(1 + l) * width + c] + times.f32()[t * width + c];
  return out;
}

}  // namespace

ViclipNetwork ViclipNetwork::load(const Place& place, const NetworkWeights& file, DType compute) {
  const TransformerShape shape = transformer_shape(file, video_blocks(), kEps, MlpActivation::kQuickGelu, false);
  std::map<std::string, Shape> expected;
  const TransformerShape text = TextTower::expect(expected, file, text_names(), kEps);
  const Shape &kernel = file.shape(kPatches), &times = file.shape(kTimes);
  const int64_t side = kernel.empty() ? 0 : kernel.back(), places = rows_of_matrix(file, kPlaces, shape.width);
  const int64_t grid = std::lround(std::sqrt(static_cast<double>(places - 1))), frames = times.size() == 3 ? times[1] : 0;
  if (side < 1 || grid < 1 || grid * grid + 1 != places || frames < 1)
    throw Error(fmt::format("{}: {} is {}, {} has {} rows, {} is {}: not those of square patches, of 1 + g² places and of times", file.path(),
                            quote_for_message(kPatches), to_string(kernel), quote_for_message(kPlaces), places, quote_for_message(kTimes), to_string(times)),
                "use the published file of ViCLIP");
  expected[kClassToken] = {shape.width};
  expected[kPlaces] = {places, shape.width};
  expected[kTimes] = {1, frames, shape.width};
  expected[kPatches] = {shape.width, 3, 1, side, side};
  for (const std::string& norm : {kBefore, kAfter}) expected[norm + ".weight"] = expected[norm + ".bias"] = {shape.width};
  expected[kProjection] = {shape.width, expected.at(text_names().projection)[1]};
  add_transformer_tensors(expected, shape, video_blocks());
  file.require(expected, {"temp"});

  ViclipNetwork v;
  v.image_size_ = grid * side;
  v.frames_ = frames;
  v.embedding_ = {place, file.read(kPatches), {}, products_for(place, compute)};
  v.places_ = {place, places_and_times(file.read(kClassToken), file.read(kPlaces), file.read(kTimes))};
  v.before_ = AffineNorm(place, file, kBefore, kEps);
  v.after_ = AffineNorm(place, file, kAfter, kEps);
  v.transformer_ = {place, file, shape, video_blocks(), compute};
  v.projection_ = {place, transposed(file.read(kProjection)), {}, Products::kFloat};
  v.text_ = {place, file, text, text_names(), compute};
  return v;
}

HostTensor ViclipNetwork::video_features(const Place& place, const HostTensor& pixels) const { return video_features(place, pixels, {}); }

HostTensor ViclipNetwork::video_features(const Place& place, const HostTensor& pixels, const Observers& observers) const {
  const ImageSizes n = image_sizes(pixels);
  if (n.count != frames_ || n.height != image_size_ || n.width != image_size_)
    throw Error(fmt::format("{} pictures of {}×{} pixels, where this ViCLIP takes {} of {}×{}", n.count, n.width, n.height, frames_, image_size_, image_size_));
  PlacedTensor x = embedding_.tokens(place, pixels, 1, places_);
  const int64_t tokens = places_.shape()[0];
  before_.forward(place, x.f32(), x.f32(), tokens, DType::kF32);
  if (observers.tokens) observers.tokens(x.to_host(place));
  PlacedTensor last = transformer_.forward(place, x.f32(), 1, tokens, 0, observers.blocks), feature(place, DType::kF32, {embed()});
  after_.forward(place, last.f32(), last.f32(), 1, DType::kF32);
  projection_.forward(place, feature.f32(), last.f32(), 1);
  return feature.to_host(place);
}

}  // namespace megaslide
