#include <cmath>

#include "kernels/activation/activation.h"

namespace megaslide::reference {

namespace {
const double kRootTwoOverPi = std::sqrt(2 / 3.14159265358979323846);
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x))); }

double gelu_derivative(double x) {
  const double t = std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRootTwoOverPi * (1 + 3 * 0.044715 * x * x);
}

}  // namespace megaslide::reference
