// Reading whole videos and the numbers drawn into the synthetic ones (tests/data/cases/cases.json).
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "io/video.h"

namespace megaslide {

struct WholeVideo {
  VideoInfo info;
  std::vector<Picture> pictures;
  std::vector<double> times;
  double end = 0;
  std::vector<std::string> warnings;
};

inline WholeVideo read_all(const std::string& path) {
  const auto reader = open_video(path);
  WholeVideo v;
  v.info = reader->info();
  Picture p;
  double t = 0;
  while (reader->next(p, t)) {
    v.pictures.push_back(p);
    v.times.push_back(t);
  }
  v.end = reader->end_time();
  v.warnings = reader->warnings();
  return v;
}

inline double mean_green(const Picture& p, int64_t x, int64_t y, int64_t w, int64_t h) {
  double sum = 0;
  for (int64_t j = y; j < y + h; ++j)
    for (int64_t i = x; i < x + w; ++i) sum += p.rgb[static_cast<size_t>((j * p.width + i) * 3 + 1)];
  return sum / static_cast<double>(w * h);
}

// The picture's number; -1 where none can be read.
inline int stamp(const Picture& p) {
  const int64_t s = std::max<int64_t>(8, p.width / 20), x0 = (p.width - 10 * s) / 2, y0 = (p.height - s) / 2;
  if (x0 < 0) return -1;
  double v[10];
  for (int64_t k = 0; k < 10; ++k) v[k] = mean_green(p, x0 + k * s + s / 4, y0 + s / 4, s - s / 2, s - s / 2);
  if (v[0] - v[1] < 40) return -1;
  int n = 0;
  for (int b = 0; b < 8; ++b)
    if (v[2 + b] > (v[0] + v[1]) / 2) n |= 1 << (7 - b);
  return n;
}

inline std::vector<int> stamps(const std::vector<Picture>& pictures) {
  std::vector<int> out;
  for (const Picture& p : pictures) out.push_back(stamp(p));
  return out;
}

inline std::vector<int> range(int begin, int end) {
  std::vector<int> out;
  for (int i = begin; i < end; ++i) out.push_back(i);
  return out;
}

inline std::string test_data(const std::string& name) { return std::string(MEGASLIDE_TEST_DATA) + "/" + name; }

}  // namespace megaslide
