#include "vision/text_tower.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace megaslide {

int64_t rows_of_matrix(const NetworkWeights& file, const std::string& name, int64_t columns) {
  const Shape& s = file.shape(name);
  if (s.size() != 2 || s[0] < 1 || s[1] != columns)
    throw Error(fmt::format("{}: {} is {}, not [any, {}]", file.path(), quote_for_message(name), to_string(s), columns), "use the published file");
  return s[0];
}

int64_t columns_of_matrix(const NetworkWeights& file, const std::string& name, int64_t rows) {
  const Shape& s = file.shape(name);
  if (s.size() != 2 || s[0] != rows || s[1] < 1)
    throw Error(fmt::format("{}: {} is {}, not [{}, any]", file.path(), quote_for_message(name), to_string(s), rows), "use the published file");
  return s[1];
}

TransformerShape TextTower::expect(std::map<std::string, Shape>& expected, const NetworkWeights& file, const TextTowerNames& n, double eps) {
  const TransformerShape s = transformer_shape(file, n.blocks, eps, MlpActivation::kQuickGelu, true);
  expected[n.tokens] = {rows_of_matrix(file, n.tokens, s.width), s.width};
  expected[n.places] = {rows_of_matrix(file, n.places, s.width), s.width};
  expected[n.norm + ".weight"] = expected[n.norm + ".bias"] = {s.width};
  expected[n.projection] = n.projection_from_right ? Shape{s.width, columns_of_matrix(file, n.projection, s.width)}
                                                   : Shape{rows_of_matrix(file, n.projection, s.width), s.width};
  add_transformer_tensors(expected, s, n.blocks);
  return s;
}

TextTower::TextTower(const Place& place, const NetworkWeights& file, const TransformerShape& shape, const TextTowerNames& n, DType compute)
    : tokens_(file.read(n.tokens)), places_(file.read(n.places)), transformer_(place, file, shape, n.blocks, compute), norm_(place, file, n.norm, shape.eps) {
  const HostTensor projection = file.read(n.projection);
  projection_ = {place, n.projection_from_right ? transposed(projection) : projection.clone(), {}, Products::kFloat};
}

HostTensor TextTower::feature(const Place& place, const std::vector<int64_t>& ids) const {
  const int64_t width = tokens_.shape()[1];
  if (ids.empty() || static_cast<int64_t>(ids.size()) > context())
    throw Error(fmt::format("a text of {} tokens, where the network takes 1 to {}", ids.size(), context()), "shorten the prompt");
  for (const int64_t id : ids)
    if (id < 0 || id >= vocabulary())
      throw Error(fmt::format("token id {} is not below the {} of the network's vocabulary", id, vocabulary()), "use the vocabulary that came with the network");
  const int64_t tokens = std::ranges::max_element(ids) - ids.begin() + 1;
  HostTensor x(DType::kF32, {tokens, width});
  for (int64_t i = 0; i < tokens; ++i) {
    const float *position = places_.f32() + i * width, *token = tokens_.f32() + ids[static_cast<size_t>(i)] * width;
    for (int64_t c = 0; c < width; ++c) x.f32()[i * width + c] = position[c] + token[c];
  }
  PlacedTensor rows(place, std::move(x));
  PlacedTensor last = transformer_.forward(place, rows.f32(), 1, tokens, tokens - 1), feature(place, DType::kF32, {embed()});
  norm_.forward(place, last.f32(), last.f32(), 1, DType::kF32);
  projection_.forward(place, feature.f32(), last.f32(), 1);
  return feature.to_host(place);
}

}  // namespace megaslide
