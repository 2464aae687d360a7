#include "vision/dino.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

constexpr double kEps = 1e-6;

struct Names {
  std::string class_token, places, patches, norm;
  TransformerNames blocks;
};

const Names& hub_names() {
  static const Names names{"cls_token", "pos_embed", "patch_embed.proj", "norm",
                           {.blocks = "blocks.", .norm1 = "norm1", .q = "attn.qkv", .k = {}, .v = {}, .out = "attn.proj", .norm2 = "norm2",
                            .fc1 = "mlp.fc1", .fc2 = "mlp.fc2"}};
  return names;
}
const Names& hugging_face_names() {
  static const Names names{"embeddings.cls_token", "embeddings.position_embeddings", "embeddings.patch_embeddings.projection", "layernorm",
                           {.blocks = "encoder.layer.", .norm1 = "layernorm_before", .q = "attention.attention.query",
                            .k = "attention.attention.key", .v = "attention.attention.value", .out = "attention.output.dense",
                            .norm2 = "layernorm_after", .fc1 = "intermediate.dense", .fc2 = "output.dense"}};
  return names;
}

// Four taps of an output place.
struct Taps {
  std::array<int64_t, 4> at;
  std::array<double, 4> weight;
};
Taps taps(int64_t i, int64_t from, int64_t to) {
  constexpr double a = -0.75;
  const auto near = [](double x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto far = [](double x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  const double source = (static_cast<double>(i) + 0.5) * static_cast<double>(from) / (static_cast<double>(to) + 0.1) - 0.5;
  const double base = std::floor(source), t = source - base;
  Taps result{{}, {far(t + 1), near(t), near(1 - t), far(2 - t)}};
  for (int64_t k = 0; k < 4; ++k) result.at[static_cast<size_t>(k)] = std::clamp<int64_t>(static_cast<int64_t>(base) - 1 + k, 0, from - 1);
  return result;
}

}  // namespace

DinoNetwork DinoNetwork::load(const Place& place, const NetworkWeights& file, DType compute) {
  const Names& names = file.has(hugging_face_names().class_token) ? hugging_face_names() : hub_names();
  const TransformerShape shape = transformer_shape(file, names.blocks, kEps, MlpActivation::kGelu, false);
  const Shape &kernel = file.shape(names.patches + ".weight"), &table = file.shape(names.places);
  const int64_t side = kernel.empty() ? 0 : kernel.back(), rows = table.size() == 3 ? table[1] : 0;
  DinoNetwork d;
  d.grid_ = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(std::max<int64_t>(rows - 1, 0)))));
  if (side < 1 || d.grid_ < 1 || d.grid_ * d.grid_ + 1 != rows)
    throw Error(fmt::format("{}: {} is {} and {} is {}: not those of square patches and of 1 + g² places", file.path(),
                            quote_for_message(names.patches + ".weight"), to_string(kernel), quote_for_message(names.places), to_string(table)),
                "use the published file of DINO ViT-B/16");
  std::map<std::string, Shape> expected{{names.class_token, {1, 1, shape.width}},
                                        {names.places, {1, rows, shape.width}},
                                        {names.patches + ".weight", {shape.width, 3, side, side}},
                                        {names.patches + ".bias", {shape.width}},
                                        {names.norm + ".weight", {shape.width}},
                                        {names.norm + ".bias", {shape.width}}};
  add_transformer_tensors(expected, shape, names.blocks);
  file.require(expected, {"pooler.dense.weight", "pooler.dense.bias"});
  d.class_token_ = file.read(names.class_token);
  d.table_ = file.read(names.places);
  d.embedding_ = {place, file.read(names.patches + ".weight"), file.read(names.patches + ".bias"), products_for(place, compute)};
  d.transformer_ = {place, file, shape, names.blocks, compute};
  d.norm_ = AffineNorm(place, file, names.norm, kEps);
  return d;
}

HostTensor DinoNetwork::resized_places(int64_t rows, int64_t columns) const {
  const int64_t w = width();
  const float* stored = table_.f32() + w;
  // Down the columns of the table first, (rows, g, width), then along the rows.
  std::vector<double> down(static_cast<size_t>(rows * grid_ * w));
  for (int64_t y = 0; y < rows; ++y) {
    const Taps t = taps(y, grid_, rows);
    double* to = down.data() + y * grid_ * w;
    for (size_t k = 0; k < 4; ++k) {
      const float* from = stored + t.at[k] * grid_ * w;
      for (int64_t i = 0; i < grid_ * w; ++i) to[i] += t.weight[k] * static_cast<double>(from[i]);
    }
  }
  HostTensor out(DType::kF32, {rows * columns, w});
  for (int64_t x = 0; x < columns; ++x) {
    const Taps t = taps(x, grid_, columns);
    for (int64_t y = 0; y < rows; ++y) {
      const double* line = down.data() + y * grid_ * w;
      float* to = out.f32() + (y * columns + x) * w;
      for (int64_t c = 0; c < w; ++c) {
        double sum = 0;
        for (size_t k = 0; k < 4; ++k) sum += t.weight[k] * line[t.at[k] * w + c];
        to[c] = static_cast<float>(sum);
      }
    }
  }
  return out;
}

// Class token and patches. A square picture of the table's own grid takes the table as it is.
HostTensor DinoNetwork::places(int64_t height, int64_t width_) const {
  const int64_t rows = height / patch(), columns = width_ / patch(), w = width();
  HostTensor out(DType::kF32, {1 + rows * columns, w});
  for (int64_t c = 0; c < w; ++c) out.f32()[c] = class_token_.f32()[c] + table_.f32()[c];
  if (height == width_ && rows == grid_) {
    std::copy_n(table_.f32() + w, rows * columns * w, out.f32() + w);
  } else {
    const HostTensor resized = resized_places(rows, columns);
    std::copy_n(resized.f32(), resized.elements(), out.f32() + w);
  }
  return out;
}

HostTensor DinoNetwork::features(const Place& place, const HostTensor& pixels) const {
  const ImageSizes n = image_sizes(pixels);
  if (n.height < patch() || n.width < patch())
    throw Error(fmt::format("a picture of {}×{} pixels holds no patch of {}×{}", n.width, n.height, patch(), patch()));
  PlacedTensor x = embedding_.tokens(place, pixels, n.count, {place, places(n.height, n.width)});
  PlacedTensor feature = transformer_.forward(place, x.f32(), n.count, x.shape()[1], 0);
  norm_.forward(place, feature.f32(), feature.f32(), n.count, DType::kF32);
  return feature.to_host(place);
}

}  // namespace megaslide
