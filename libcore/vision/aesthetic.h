// The LAION aesthetic predictor v1 (aesthetic_quality, spec vbench.md): a linear map of normalised image features of CLIP ViT-L/14 to a
// score of about 1 to 10, of which VBench takes a tenth. The published head (sa_0_4_vit_l_14_linear) is under the MIT License.
#pragma once
#include <vector>

#include "vision/network_weights.h"

namespace megaslide {

class AestheticHead {
 public:
  // Tensors `weight` [1, embed] and `bias` [1]. Throws Error where the file holds others.
  static AestheticHead load(const NetworkWeights& file, int64_t embed);

  // features: F32 [N, embed] of ClipNetwork::image_features. Gives (w·f/‖f‖ + b)/10 a picture, not bounded. Throws Error for a feature
  // that is 0 or not finite.
  std::vector<double> scores(const HostTensor& features) const;
  // The same of one feature over its norm.
  double score(const std::vector<double>& direction) const;

 private:
  AestheticHead() = default;
  HostTensor weight_;
  double bias_ = 0;
};

}  // namespace megaslide
