#include "data/resize.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace megaslide {
namespace {

// Source samples first … first + weights.size() - 1 (clamped to the edge when read) make one output sample.
struct Taps {
  int64_t first;
  std::vector<float> weights;
};

double cubic(double x) {  // Catmull-Rom, a = -1/2
  x = std::abs(x);
  return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

std::vector<Taps> make_taps(double begin, double length, int64_t outputs) {
  std::vector<Taps> taps(static_cast<size_t>(outputs));
  const double step = length / static_cast<double>(outputs);
  for (int64_t i = 0; i < outputs; ++i) {
    Taps& t = taps[static_cast<size_t>(i)];
    const double a = begin + static_cast<double>(i) * step, b = a + step;
    if (step == 1 && a == std::floor(a)) {
      t = {static_cast<int64_t>(a), {1.0f}};
    } else if (step >= 1) {
      t.first = static_cast<int64_t>(std::floor(a));
      for (int64_t j = t.first; static_cast<double>(j) < b - 1e-9; ++j) {
        const double overlap = std::min(b, static_cast<double>(j + 1)) - std::max(a, static_cast<double>(j));
        t.weights.push_back(static_cast<float>(overlap / step));
      }
    } else {
      const double centre = (a + b) / 2 - 0.5;  // in sample indices
      t.first = static_cast<int64_t>(std::floor(centre)) - 1;
      for (int64_t j = 0; j < 4; ++j) t.weights.push_back(static_cast<float>(cubic(centre - static_cast<double>(t.first + j))));
    }
  }
  return taps;
}

}  // namespace

void resample(const Picture& picture, const Region& region, int64_t width, int64_t height, float* out, int64_t plane_stride) {
  const std::vector<Taps> columns = make_taps(region.x, region.width, width), rows = make_taps(region.y, region.height, height);
  const int64_t top = std::clamp<int64_t>(rows.front().first, 0, picture.height - 1);
  const int64_t bottom = std::clamp<int64_t>(rows.back().first + static_cast<int64_t>(rows.back().weights.size()) - 1, 0, picture.height - 1);
  // Along rows first: (bottom - top + 1) × width × 3.
  std::vector<float> wide(static_cast<size_t>((bottom - top + 1) * width * 3));
  float* at = wide.data();
  for (int64_t y = top; y <= bottom; ++y)
    for (const Taps& t : columns) {
      float sum[3] = {};
      for (size_t j = 0; j < t.weights.size(); ++j) {
        const int64_t x = std::clamp<int64_t>(t.first + static_cast<int64_t>(j), 0, picture.width - 1);
        const uint8_t* p = &picture.rgb[static_cast<size_t>((y * picture.width + x) * 3)];
        for (int c = 0; c < 3; ++c) sum[c] += t.weights[j] * static_cast<float>(p[c]);
      }
      for (int c = 0; c < 3; ++c) *at++ = sum[c];
    }
  for (int64_t y = 0; y < height; ++y) {
    const Taps& t = rows[static_cast<size_t>(y)];
    for (int64_t x = 0; x < width; ++x)
      for (int64_t c = 0; c < 3; ++c) {
        float sum = 0;
        for (size_t j = 0; j < t.weights.size(); ++j) {
          const int64_t r = std::clamp(t.first + static_cast<int64_t>(j), top, bottom) - top;
          sum += t.weights[j] * wide[static_cast<size_t>((r * width + x) * 3 + c)];
        }
        out[c * plane_stride + y * width + x] = std::clamp(sum / 127.5f - 1.0f, -1.0f, 1.0f);
      }
  }
}

Picture picture_from_planes(const float* planes, int64_t plane_stride, int64_t width, int64_t height) {
  Picture p{width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3))};
  for (int64_t i = 0; i < width * height; ++i)
    for (int64_t c = 0; c < 3; ++c) {
      const float v = (planes[c * plane_stride + i] + 1.0f) * 127.5f;
      p.rgb[static_cast<size_t>(i * 3 + c)] = v > 0 ? static_cast<uint8_t>(std::min(std::lround(v), 255L)) : 0;  // NaN too
    }
  return p;
}

}  // namespace megaslide
