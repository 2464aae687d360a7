// Frames and pictures for the tests of CUDA kernels.
#pragma once
#include "kernels/conv3d/frame.h"
#include "tests/cuda/schedules.h"

namespace megaslide::testing_support {

// A frame's memory with random cells and zeros elsewhere.
inline std::vector<float> random_frame(const FrameLayout& l, uint64_t series, double deviation = 1, double mean = 0) {
  std::vector<float> v = zeros(l.elements());
  const std::vector<float> x = normals(l.height * l.width * l.channels, series, deviation, mean);
  size_t i = 0;
  for (int64_t y = 0; y < l.height; ++y)
    for (int64_t column = 0; column < l.width; ++column)
      for (int64_t c = 0; c < l.channels; ++c) v[static_cast<size_t>(l.cell(y, column) + c)] = x[i++];
  return as_stored(l.dtype, v);
}
inline Array frame_array(const FrameLayout& l, uint64_t series, double deviation = 1) { return {l.dtype, random_frame(l, series, deviation)}; }

// What lies between cells and behind channels is still zero.
inline void expect_clean(const FrameLayout& l, std::vector<float> v) {
  for (int64_t y = 0; y < l.height; ++y)
    for (int64_t x = 0; x < l.width; ++x)
      for (int64_t c = 0; c < l.channels; ++c) v[static_cast<size_t>(l.cell(y, x) + c)] = 0;
  EXPECT_EQ(v, zeros(l.elements()));
}

// Values of pixels, all of 0 … 250.
inline std::vector<uint8_t> bytes(int64_t n, unsigned step = 37) {
  std::vector<uint8_t> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<uint8_t>(i * step % 251);
  return v;
}

}  // namespace megaslide::testing_support
