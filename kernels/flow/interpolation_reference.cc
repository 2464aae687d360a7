#include <algorithm>
#include <cmath>

#include "kernels/flow/interpolation.h"

namespace megaslide::reference {
namespace {
double widen(float v) { return static_cast<double>(v); }

// Bilinear, position clamped to [0, height − 1] × [0, width − 1]; at(y, x) is a value there.
template <class F>
double bilinear(double y, double x, int64_t height, int64_t width, F at) {
  y = std::clamp(y, 0.0, static_cast<double>(height - 1));
  x = std::clamp(x, 0.0, static_cast<double>(width - 1));
  double sum = 0;
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 2; ++j) {
      const double cy = std::floor(y) + static_cast<double>(i), cx = std::floor(x) + static_cast<double>(j);
      const double weight = (1 - std::fabs(y - cy)) * (1 - std::fabs(x - cx));
      if (weight > 0) sum += weight * at(static_cast<int64_t>(cy), static_cast<int64_t>(cx));
    }
  return sum;
}

double pixel(const CandidateBlend& b, const PictureCells& p, double y, double x, int64_t c) {
  return bilinear(y, x, b.height, b.width, [&](int64_t i, int64_t j) {
    const int64_t row = std::clamp<int64_t>(i - p.top, 0, p.height - 1), column = std::clamp<int64_t>(j - p.left, 0, p.width - 1);
    return p.rgb[3 * (row * p.width + column) + c] / 255.0;
  });
}
}  // namespace

void frame_resize(float* out, const FrameLayout& o, const float* in, const FrameLayout& l, const FrameScaling& s) {
  const double ratio = static_cast<double>(s.down) / static_cast<double>(s.up);
  const auto place = [&](int64_t i) { return (static_cast<double>(i) + 0.5) * ratio - 0.5; };
  for (int64_t y = 0; y < o.height; ++y)
    for (int64_t x = 0; x < o.width; ++x)
      for (int64_t c = 0; c < o.channels; ++c) {
        float& to = out[o.cell(y, x) + c];
        const double v = bilinear(place(s.first_row + y), place(x), l.height, l.width, [&](int64_t i, int64_t j) { return widen(in[l.cell(i, j) + c]); });
        to = static_cast<float>((s.add ? widen(to) : 0) + widen(s.factor) * v);
      }
}

void frame_warp(float* out, const FrameLayout& o, const float* in, const FrameLayout& l, const float* flow, const FrameLayout& f, const WarpPlace& p) {
  for (int64_t y = 0; y < o.height; ++y)
    for (int64_t x = 0; x < o.width; ++x) {
      const float* v = flow + f.cell(p.first_row + y, x) + p.from;
      const double py = static_cast<double>(p.first_row + y) + widen(v[1]), px = static_cast<double>(x) + widen(v[0]);
      for (int64_t c = 0; c < l.channels; ++c)
        out[o.cell(y, x) + p.to + c] =
            static_cast<float>(bilinear(py, px, l.height, l.width, [&](int64_t i, int64_t j) { return widen(in[l.cell(i, j) + c]); }));
    }
}

void blend_candidates(float* out, const FrameLayout& o, const CandidateBlend& b) {
  for (int64_t y = 0; y < o.height; ++y)
    for (int64_t x = 0; x < o.width; ++x)
      for (int64_t k = 0; k < b.count; ++k) {
        const float *d = b.decoded + b.decoded_layout.cell(y, x), *base = b.base + b.base_layout.cell(y, x);
        const double mask = 1 / (1 + std::exp(-widen(d[4 * b.count + k])));
        const auto place = [&](int64_t picture, int64_t axis) { return widen(base[2 * picture + axis]) + widen(d[2 * (picture * b.count + k) + axis]); };
        const auto row = static_cast<double>(b.first_row + y), column = static_cast<double>(x);
        for (int64_t c = 0; c < 3; ++c)
          out[o.cell(y, x) + 3 * k + c] = static_cast<float>(mask * pixel(b, b.first, row + place(0, 1), column + place(0, 0), c) +
                                                             (1 - mask) * pixel(b, b.second, row + place(1, 1), column + place(1, 0), c) +
                                                             widen(d[5 * b.count + 3 * k + c]));
      }
}

}  // namespace megaslide::reference
