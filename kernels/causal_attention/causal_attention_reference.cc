#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/causal_attention/causal_attention.h"

namespace megaslide::reference {

void causal_attention_forward(float* out, const float* q, const float* k, const float* v, int64_t n, int64_t heads, int64_t d, double scale) {
  const auto at = [&](const float* t, int64_t row, int64_t head, int64_t c) { return static_cast<double>(t[(row * heads + head) * d + c]); };
  std::vector<double> p(static_cast<size_t>(n));
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < n; ++i) {
      double top = -INFINITY, total = 0;
      for (int64_t j = 0; j <= i; ++j) {
        double s = 0;
        for (int64_t c = 0; c < d; ++c) s += at(q, i, h, c) * at(k, j, h, c);
        top = std::max(top, p[static_cast<size_t>(j)] = scale * s);
      }
      for (int64_t j = 0; j <= i; ++j) total += p[static_cast<size_t>(j)] = std::exp(p[static_cast<size_t>(j)] - top);
      for (int64_t c = 0; c < d; ++c) {
        double sum = 0;
        for (int64_t j = 0; j <= i; ++j) sum += p[static_cast<size_t>(j)] * at(v, j, h, c);
        out[(i * heads + h) * d + c] = static_cast<float>(sum / total);
      }
    }
}

}  // namespace megaslide::reference
