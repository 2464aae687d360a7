#include "io/video_libav/palette.h"

#include <algorithm>

namespace megaslide::av {
namespace {

constexpr int kBits = 5, kShift = 8 - kBits;

struct Cell {
  std::array<int, 3> c;  // 5-bit r, g, b
  uint64_t n;
};
struct Box {
  size_t begin, end;
  uint64_t pixels;
  int axis, range;
  uint64_t priority() const { return pixels * static_cast<uint64_t>(range); }
};

Box make_box(const std::vector<Cell>& cells, size_t begin, size_t end) {
  Box b{begin, end, 0, 0, 0};
  std::array<int, 3> low{99, 99, 99}, high{-1, -1, -1};
  for (size_t i = begin; i < end; ++i) {
    b.pixels += cells[i].n;
    for (size_t k = 0; k < 3; ++k) {
      low[k] = std::min(low[k], cells[i].c[k]);
      high[k] = std::max(high[k], cells[i].c[k]);
    }
  }
  for (size_t k = 0; k < 3; ++k)
    if (high[k] - low[k] > b.range) {
      b.range = high[k] - low[k];
      b.axis = static_cast<int>(k);
    }
  return b;
}

int expand(int v) { return v << kShift | v >> (kBits - kShift); }  // 5 to 8 bits, 31 becomes 255

}  // namespace

void PaletteMaker::add(const uint8_t* rgb, int64_t pixels) {
  for (int64_t i = 0; i < pixels; ++i, rgb += 3)
    ++histogram_[static_cast<size_t>((rgb[0] >> kShift) << (2 * kBits) | (rgb[1] >> kShift) << kBits | rgb[2] >> kShift)];
}

std::array<uint32_t, 256> PaletteMaker::palette() const {
  std::vector<Cell> cells;
  for (size_t i = 0; i < histogram_.size(); ++i)
    if (histogram_[i] != 0)
      cells.push_back({{static_cast<int>(i >> (2 * kBits)), static_cast<int>(i >> kBits & 31), static_cast<int>(i & 31)}, histogram_[i]});
  std::array<uint32_t, 256> out;
  out.fill(0xff000000);
  if (cells.empty()) return out;
  std::vector<Box> boxes = {make_box(cells, 0, cells.size())};
  while (boxes.size() < 256) {
    const auto widest = std::max_element(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.priority() < b.priority(); });
    if (widest->range == 0) break;
    const Box b = *widest;
    const auto axis = static_cast<size_t>(b.axis);
    const auto first = cells.begin() + static_cast<std::ptrdiff_t>(b.begin), last = cells.begin() + static_cast<std::ptrdiff_t>(b.end);
    std::stable_sort(first, last, [axis](const Cell& x, const Cell& y) { return x.c[axis] < y.c[axis]; });
    uint64_t half = 0;
    size_t cut = b.begin;
    while (cut < b.end - 1 && half + cells[cut].n <= b.pixels / 2) half += cells[cut++].n;
    cut = std::max(cut, b.begin + 1);
    *widest = make_box(cells, b.begin, cut);
    boxes.push_back(make_box(cells, cut, b.end));
  }
  for (size_t i = 0; i < boxes.size(); ++i) {
    std::array<uint64_t, 3> sum{};
    for (size_t j = boxes[i].begin; j < boxes[i].end; ++j)
      for (size_t k = 0; k < 3; ++k) sum[k] += cells[j].n * static_cast<uint64_t>(expand(cells[j].c[k]));
    const auto mean = [&](size_t k) { return static_cast<uint32_t>((sum[k] + boxes[i].pixels / 2) / boxes[i].pixels); };
    out[i] = 0xff000000u | mean(0) << 16 | mean(1) << 8 | mean(2);
  }
  return out;
}

void PaletteMaker::map(const std::array<uint32_t, 256>& palette, const uint8_t* rgb, int64_t width, int64_t height, uint8_t* out,
                       int64_t stride) {
  static constexpr int kBayer[4][4] = {{0, 8, 2, 10}, {12, 4, 14, 6}, {3, 11, 1, 9}, {15, 7, 13, 5}};
  if (nearest_.empty()) nearest_.assign(size_t{1} << (3 * kBits), -1);
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x, rgb += 3) {
      // Thresholds within one 5-bit step, so that the dither replaces the histogram's rounding.
      const int d = kBayer[y & 3][x & 3] / 2 - 4;
      std::array<int, 3> c;
      for (size_t k = 0; k < 3; ++k) c[k] = std::clamp(rgb[k] + d, 0, 255) >> kShift;
      int16_t& index = nearest_[static_cast<size_t>(c[0] << (2 * kBits) | c[1] << kBits | c[2])];
      if (index < 0) {
        int best = 1 << 30;
        for (size_t i = 0; i < palette.size(); ++i) {
          const int dr = expand(c[0]) - static_cast<int>(palette[i] >> 16 & 255), dg = expand(c[1]) - static_cast<int>(palette[i] >> 8 & 255),
                    db = expand(c[2]) - static_cast<int>(palette[i] & 255);
          const int distance = 3 * dr * dr + 6 * dg * dg + db * db;  // about how the eye weighs them
          if (distance < best) {
            best = distance;
            index = static_cast<int16_t>(i);
          }
        }
      }
      out[y * stride + x] = static_cast<uint8_t>(index);
    }
}

}  // namespace megaslide::av
