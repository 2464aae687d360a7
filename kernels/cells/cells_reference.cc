#include <algorithm>
#include <cmath>

#include "kernels/cells/cells.h"

namespace megaslide::reference {
namespace {

// Channel c of cell (y,x) of a sample, 0 outside.
float cell(const float* in, const CellWindows& w, int64_t sample, int64_t y, int64_t x, int64_t c) {
  if (y < 0 || y >= w.height || x < 0 || x >= w.width) return 0;
  return in[((sample * w.height + y) * w.width + x) * w.channels + c];
}

// body(result, sample, top, left) of every window in order.
template <class Body>
void for_windows(const CellWindows& w, Body body) {
  for (int64_t result = 0; result < w.results(); ++result) {
    const int64_t column = result % w.columns, row = result / w.columns % w.rows;
    body(result, result / w.columns / w.rows, row * w.stride - w.before_y, column * w.stride - w.before_x);
  }
}

}  // namespace

void unfold_cells(float* out, const float* in, const CellWindows& w) {
  for_windows(w, [&](int64_t result, int64_t sample, int64_t top, int64_t left) {
    for (int64_t k = 0; k < w.window(); ++k) {
      const int64_t c = k % w.channels, j = k / w.channels % w.side, i = k / w.channels / w.side;
      out[result * w.window() + k] = cell(in, w, sample, top + i, left + j, c);
    }
  });
}

void max_pool_cells(float* out, const float* in, const CellWindows& w) {
  for_windows(w, [&](int64_t result, int64_t sample, int64_t top, int64_t left) {
    for (int64_t c = 0; c < w.channels; ++c) {
      float largest = -HUGE_VALF;
      for (int64_t i = 0; i < w.side; ++i)
        for (int64_t j = 0; j < w.side; ++j) largest = std::max(largest, cell(in, w, sample, top + i, left + j, c));
      out[result * w.channels + c] = largest;
    }
  });
}

void group_norm_forward(float* y, const float* x, const float* addend, const float* weight, const float* bias, const GroupNormShape& s, double eps,
                        bool relu) {
  const int64_t group = s.channels / s.groups;
  const double n = static_cast<double>(group * s.cells);
  for (int64_t sample = 0; sample < s.samples; ++sample)
    for (int64_t g = 0; g < s.groups; ++g) {
      const auto at = [&](int64_t i, int64_t k) { return (sample * s.cells + i) * s.channels + g * group + k; };
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < s.cells; ++i)
        for (int64_t k = 0; k < group; ++k) mean += static_cast<double>(x[at(i, k)]) / n;
      for (int64_t i = 0; i < s.cells; ++i)
        for (int64_t k = 0; k < group; ++k) variance += std::pow(static_cast<double>(x[at(i, k)]) - mean, 2) / n;
      for (int64_t i = 0; i < s.cells; ++i)
        for (int64_t k = 0; k < group; ++k) {
          const int64_t c = g * group + k;
          double v = (static_cast<double>(x[at(i, k)]) - mean) / std::sqrt(variance + eps) * static_cast<double>(weight[c]) + static_cast<double>(bias[c]);
          if (addend != nullptr) v += static_cast<double>(addend[at(i, k)]);
          y[at(i, k)] = static_cast<float>(relu ? std::max(v, 0.0) : v);
        }
    }
}

}  // namespace megaslide::reference
