#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/relative_attention/relative_attention.h"

namespace megaslide::reference {

void relative_attention_forward(float* out, const float* q, const float* k, const float* v, const float* bias, int64_t n,
                                int64_t heads, int64_t head_dim) {
  const int64_t stride = heads * head_dim;
  std::vector<double> p(static_cast<size_t>(n));
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t a = 0; a < n; ++a) {
      double top = -INFINITY, sum = 0;
      for (int64_t b = 0; b < n; ++b) {
        double dot = static_cast<double>(bias[relative_bucket(b - a) * heads + h]);
        for (int64_t c = h * head_dim; c < (h + 1) * head_dim; ++c)
          dot += static_cast<double>(q[a * stride + c]) * static_cast<double>(k[b * stride + c]);
        p[static_cast<size_t>(b)] = dot;
        top = std::max(top, dot);
      }
      for (double& x : p) sum += x = std::exp(x - top);
      for (int64_t c = h * head_dim; c < (h + 1) * head_dim; ++c) {
        double weighed = 0;
        for (int64_t b = 0; b < n; ++b) weighed += p[static_cast<size_t>(b)] * static_cast<double>(v[b * stride + c]);
        out[a * stride + c] = static_cast<float>(weighed / sum);
      }
    }
}

}  // namespace megaslide::reference
