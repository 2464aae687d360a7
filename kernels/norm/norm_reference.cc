#include <cmath>

#include "kernels/norm/norm.h"

namespace megaslide::reference {

namespace {
struct Statistics {
  double mean, rstd;
};

Statistics statistics(const float* x, int64_t width, float eps) {
  double mean = 0, variance = 0;
  for (int64_t c = 0; c < width; ++c) mean += static_cast<double>(x[c]);
  mean /= static_cast<double>(width);
  for (int64_t c = 0; c < width; ++c) {
    const double d = static_cast<double>(x[c]) - mean;
    variance += d * d;
  }
  return {mean, 1 / std::sqrt(variance / static_cast<double>(width) + static_cast<double>(eps))};
}
}  // namespace

void layer_norm_forward(float* y, const float* x, const float* mul, const float* add, int64_t rows, int64_t width,
                        int64_t group_rows, int64_t group_stride, float eps) {
  for (int64_t r = 0; r < rows; ++r) {
    const float *row = x + r * width, *m = mul + r / group_rows * group_stride,
                *a = add + r / group_rows * group_stride;
    const Statistics s = statistics(row, width, eps);
    for (int64_t c = 0; c < width; ++c)
      y[r * width + c] = static_cast<float>(
          (static_cast<double>(row[c]) - s.mean) * s.rstd * static_cast<double>(m[c]) + static_cast<double>(a[c]));
  }
}

void layer_norm_backward(float* dx, float* dmul, float* dadd, const float* dy, const float* residual, const float* x,
                         const float* mul, int64_t rows, int64_t width, int64_t group_rows, int64_t group_stride,
                         float eps) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t group = r / group_rows * group_stride;
    const float *row = x + r * width, *d = dy + r * width;
    const Statistics s = statistics(row, width, eps);
    const auto unit = [&](int64_t c) { return (static_cast<double>(row[c]) - s.mean) * s.rstd; };
    const auto g = [&](int64_t c) { return static_cast<double>(d[c]) * static_cast<double>(mul[group + c]); };
    double mean_g = 0, mean_gu = 0;
    for (int64_t c = 0; c < width; ++c) {
      mean_g += g(c);
      mean_gu += g(c) * unit(c);
      dmul[group + c] += static_cast<float>(static_cast<double>(d[c]) * unit(c));
      dadd[group + c] += d[c];
    }
    mean_g /= static_cast<double>(width);
    mean_gu /= static_cast<double>(width);
    for (int64_t c = 0; c < width; ++c)
      dx[r * width + c] = static_cast<float>((residual ? static_cast<double>(residual[r * width + c]) : 0.0) +
                                             s.rstd * (g(c) - mean_g - unit(c) * mean_gu));
  }
}

}  // namespace megaslide::reference
