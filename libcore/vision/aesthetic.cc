#include "vision/aesthetic.h"

#include <cmath>

#include "base/error.h"

namespace megaslide {

AestheticHead AestheticHead::load(const NetworkWeights& file, int64_t embed) {
  file.require({{"weight", {1, embed}}, {"bias", {1}}});
  AestheticHead h;
  h.weight_ = file.read("weight");
  h.bias_ = static_cast<double>(file.read("bias").f32()[0]);
  return h;
}

std::vector<double> AestheticHead::scores(const HostTensor& features) const {
  const int64_t embed = weight_.elements();
  MS_CHECK(features.shape().size() == 2 && features.shape()[1] == embed, "{}", to_string(features.shape()));
  std::vector<double> scores;
  for (int64_t i = 0; i < features.shape()[0]; ++i) {
    double dot = 0, square = 0;
    for (int64_t c = 0; c < embed; ++c) {
      const auto f = static_cast<double>(features.f32()[i * embed + c]);
      dot += f * static_cast<double>(weight_.f32()[c]);
      square += f * f;
    }
    if (!(square > 0) || !std::isfinite(square)) throw Error(fmt::format("the features of picture {} have no direction: their squares add up to {}", i, square));
    scores.push_back((dot / std::sqrt(square) + bias_) / 10);
  }
  return scores;
}

}  // namespace megaslide
