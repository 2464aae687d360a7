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

namespace {

// Row `y` of the picture along the columns' taps: width × 3.
void spread_row(const Picture& picture, int64_t y, const std::vector<Taps>& columns, float* out) {
  const uint8_t* row = &picture.rgb[static_cast<size_t>(y * picture.width * 3)];
  for (const Taps& t : columns) {
    float sum[3] = {};
    for (size_t j = 0; j < t.weights.size(); ++j) {
      const uint8_t* p = row + 3 * std::clamp<int64_t>(t.first + static_cast<int64_t>(j), 0, picture.width - 1);
      for (int c = 0; c < 3; ++c) sum[c] += t.weights[j] * static_cast<float>(p[c]);
    }
    for (int c = 0; c < 3; ++c) *out++ = sum[c];
  }
}

}  // namespace

void resample(const Picture& picture, const Region& region, int64_t width, int64_t height, float* out, int64_t plane_stride) {
  const std::vector<Taps> columns = make_taps(region.x, region.width, width), rows = make_taps(region.y, region.height, height);
  size_t most = 1;
  for (const Taps& t : rows) most = std::max(most, t.weights.size());
  // Taps move down the picture, so that the rows of one tap, in a ring, are all that is kept.
  std::vector<float> ring(most * static_cast<size_t>(width * 3)), sum(static_cast<size_t>(width * 3));
  const auto kept = [&](int64_t r) { return ring.data() + r % static_cast<int64_t>(most) * width * 3; };
  int64_t made = std::clamp<int64_t>(rows.front().first, 0, picture.height - 1);
  for (int64_t y = 0; y < height; ++y) {
    const Taps& t = rows[static_cast<size_t>(y)];
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (size_t j = 0; j < t.weights.size(); ++j) {
      const int64_t r = std::clamp<int64_t>(t.first + static_cast<int64_t>(j), 0, picture.height - 1);
      for (; made <= r; ++made) spread_row(picture, made, columns, kept(made));
      const float* from = kept(r);
      const float weight = t.weights[j];
      for (int64_t i = 0; i < width * 3; ++i) sum[static_cast<size_t>(i)] += weight * from[i];
    }
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t x = 0; x < width; ++x)
        out[c * plane_stride + y * width + x] = std::clamp(sum[static_cast<size_t>(x * 3 + c)] / 127.5f - 1.0f, -1.0f, 1.0f);
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
