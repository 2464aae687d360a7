#include <cmath>

#include "kernels/gated_gelu/gated_gelu.h"

namespace megaslide::reference {

double gated_gelu(double gate, double up) {
  static const double kRootTwoOverPi = std::sqrt(2 / 3.14159265358979323846);
  return 0.5 * gate * (1 + std::tanh(kRootTwoOverPi * (gate + 0.044715 * gate * gate * gate))) * up;
}

}  // namespace megaslide::reference
