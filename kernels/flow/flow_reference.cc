#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/flow/flow.h"

namespace megaslide::reference {
namespace {
double widen(float v) { return static_cast<double>(v); }
double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }
}  // namespace

void instance_norm_scale(float* scale, float* shift, const float* frame, const FrameLayout& l, double eps) {
  const auto cells = static_cast<double>(l.height * l.width);
  for (int64_t c = 0; c < l.stored(); ++c) {
    double mean = 0, variance = 0;
    for (int64_t y = 0; y < l.height; ++y)
      for (int64_t x = 0; x < l.width; ++x) mean += widen(frame[l.cell(y, x) + c]) / cells;
    for (int64_t y = 0; y < l.height; ++y)
      for (int64_t x = 0; x < l.width; ++x) variance += std::pow(widen(frame[l.cell(y, x) + c]) - mean, 2) / cells;
    scale[c] = static_cast<float>(1 / std::sqrt(variance + eps));
    shift[c] = static_cast<float>(-mean / std::sqrt(variance + eps));
  }
}

void correlation_lookup(float* out, const FrameLayout& o, const CorrelationLookup& c) {
  const int64_t k = 2 * c.radius + 1;
  for (int64_t y = 0; y < o.height; ++y)
    for (int64_t x = 0; x < o.width; ++x)
      for (int64_t n = 0; n < kFlowLevels * k * k; ++n) {
        const int64_t level = n / (k * k), i = n / k % k, j = n % k;
        const FrameLayout& l = c.level_layouts[level];
        const float* flow = c.flow + (y * o.width + x) * c.flow_pitch + c.flow_first;
        const double shrink = std::pow(0.5, static_cast<double>(level));
        const double px = (static_cast<double>(x) + widen(c.flow_scale) * widen(flow[0])) * shrink + static_cast<double>(i - c.radius);
        const double py = (static_cast<double>(y) + widen(c.flow_scale) * widen(flow[1])) * shrink + static_cast<double>(j - c.radius);
        double sum = 0;
        for (int corner = 0; corner < 4; ++corner) {
          const int right = corner % 2, below = corner / 2;
          const double cx = std::floor(px) + right, cy = std::floor(py) + below;
          if (cx < 0 || cy < 0 || cx >= static_cast<double>(l.width) || cy >= static_cast<double>(l.height)) continue;
          const float* a = c.from + c.from_layout.cell(y, x);
          const float* b = c.levels[level] + l.cell(static_cast<int64_t>(cy), static_cast<int64_t>(cx));
          double dot = 0;
          for (int64_t d = 0; d < c.from_layout.channels; ++d) dot += widen(a[d]) * widen(b[d]);
          sum += dot * (1 - std::fabs(px - cx)) * (1 - std::fabs(py - cy));
        }
        out[o.cell(y, x) + c.first + n] = static_cast<float>(sum * widen(c.scale));
      }
}

void gru_step(float* h, const FrameLayout& l, const float* gates, const FrameLayout& g, const float* q, const FrameLayout& q_layout) {
  for (int64_t y = 0; y < l.height; ++y)
    for (int64_t x = 0; x < l.width; ++x)
      for (int64_t c = 0; c < l.stored(); ++c) {
        float& v = h[l.cell(y, x) + c];
        const double z = sigmoid(widen(gates[g.cell(y, x) + c]));
        v = static_cast<float>((1 - z) * widen(v) + z * std::tanh(widen(q[q_layout.cell(y, x) + c])));
      }
}

void convex_upsample(float* out, const float* logits, const FrameLayout& l, const float* flow) {
  for (int64_t c = 0; c < 2; ++c)
    for (int64_t y = 0; y < 8 * l.height; ++y)
      for (int64_t x = 0; x < 8 * l.width; ++x) {
        const float* cell = logits + l.cell(y / 8, x / 8) + y % 8 * 8 + x % 8;
        double total = 0, sum = 0;
        for (int64_t k = 0; k < 9; ++k) {
          const int64_t ny = y / 8 + k / 3 - 1, nx = x / 8 + k % 3 - 1;
          const double weight = std::exp(widen(cell[64 * k]));
          total += weight;
          if (ny >= 0 && nx >= 0 && ny < l.height && nx < l.width) sum += weight * 8 * widen(flow[(ny * l.width + nx) * 2 + c]);
        }
        *out++ = static_cast<float>(sum / total);
      }
}

}  // namespace megaslide::reference
