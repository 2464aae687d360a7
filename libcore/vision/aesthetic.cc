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
    std::vector<double> direction(features.f32() + i * embed, features.f32() + (i + 1) * embed);
    double square = 0;
    for (const double f : direction) square += f * f;
    if (!(square > 0) || !std::isfinite(square)) throw Error(fmt::format("the features of picture {} have no direction: their squares add up to {}", i, square));
    for (double& f : direction) f /= std::sqrt(square);
    scores.push_back(score(direction));
  }
  return scores;
}

double AestheticHead::score(const std::vector<double>& direction) const {
  MS_CHECK(static_cast<int64_t>(direction.size()) == weight_.elements(), "{}", direction.size());
  double dot = 0;
  for (size_t c = 0; c < direction.size(); ++c) dot += direction[c] * static_cast<double>(weight_.f32()[c]);
  return (dot + bias_) / 10;
}

}  // namespace megaslide
