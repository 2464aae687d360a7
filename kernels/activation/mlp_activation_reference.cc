#include <cmath>

#include "kernels/activation/mlp_activation.h"

namespace megaslide::reference {

double mlp_activation(double x, MlpActivation f) {
  return f == MlpActivation::kGelu ? 0.5 * x * std::erfc(-x / std::sqrt(2.0)) : x / (1 + std::exp(-1.702 * x));
}

}  // namespace megaslide::reference
