#include <cmath>

#include "kernels/rms_norm/rms_norm.h"

namespace megaslide::reference {

void rms_norm_forward(float* y, const float* x, const float* w, int64_t rows, int64_t width, float eps) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    double square = 0;
    for (int64_t c = 0; c < width; ++c) square += static_cast<double>(x[c]) * static_cast<double>(x[c]);
    const double rstd = 1 / std::sqrt(square / static_cast<double>(width) + static_cast<double>(eps));
    for (int64_t c = 0; c < width; ++c) y[c] = static_cast<float>(static_cast<double>(w[c]) * static_cast<double>(x[c]) * rstd);
  }
}

}  // namespace megaslide::reference
