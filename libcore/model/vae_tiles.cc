#include "model/vae_tiles.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace megaslide {
namespace {

int64_t planes(const HostTensor& t) { return t.shape()[0] * t.shape()[1]; }
int64_t rows(const HostTensor& t) { return t.shape()[2]; }
int64_t columns(const HostTensor& t) { return t.shape()[3]; }

// Cells [y, y+h) × [x, x+w) of every plane.
HostTensor cut(const HostTensor& t, int64_t y, int64_t x, int64_t h, int64_t w) {
  HostTensor out(DType::kF32, {t.shape()[0], t.shape()[1], h, w});
  for (int64_t p = 0; p < planes(t); ++p)
    for (int64_t r = 0; r < h; ++r)
      std::memcpy(out.f32() + (p * h + r) * w, t.f32() + (p * rows(t) + y + r) * columns(t) + x,
                  static_cast<size_t>(w) * sizeof(float));
  return out;
}

float mix(float a, float b, int64_t i, int64_t n) {
  const float share = static_cast<float>(i) / static_cast<float>(n);
  return a * (1 - share) + b * share;
}

// The last rows of `above` go over into the first of `tile`; both are equally wide.
void blend_down(const HostTensor& above, HostTensor& tile, int64_t blend) {
  const int64_t n = std::min({rows(above), rows(tile), blend}), w = columns(tile);
  for (int64_t p = 0; p < planes(tile); ++p)
    for (int64_t y = 0; y < n; ++y) {
      const float* a = above.f32() + (p * rows(above) + rows(above) - n + y) * w;
      float* b = tile.f32() + (p * rows(tile) + y) * w;
      for (int64_t x = 0; x < w; ++x) b[x] = mix(a[x], b[x], y, n);
    }
}

void blend_right(const HostTensor& left, HostTensor& tile, int64_t blend) {
  const int64_t n = std::min({columns(left), columns(tile), blend});
  for (int64_t p = 0; p < planes(tile); ++p)
    for (int64_t y = 0; y < rows(tile); ++y) {
      const float* a = left.f32() + (p * rows(left) + y) * columns(left) + columns(left) - n;
      float* b = tile.f32() + (p * rows(tile) + y) * columns(tile);
      for (int64_t x = 0; x < n; ++x) b[x] = mix(a[x], b[x], x, n);
    }
}

void place(const HostTensor& tile, HostTensor& out, int64_t y, int64_t x, int64_t stride) {
  const int64_t h = std::min({stride, rows(tile), rows(out) - y}),
                w = std::min({stride, columns(tile), columns(out) - x});
  for (int64_t p = 0; p < planes(tile); ++p)
    for (int64_t r = 0; r < h; ++r)
      std::memcpy(out.f32() + (p * rows(out) + y + r) * columns(out) + x,
                  tile.f32() + (p * rows(tile) + r) * columns(tile),
                  static_cast<size_t>(std::max<int64_t>(w, 0)) * sizeof(float));
}

}  // namespace

HostTensor blend_tiles(const TileGrid& g, const std::function<HostTensor(int64_t, int64_t, int64_t, int64_t)>& make) {
  HostTensor out;
  std::vector<HostTensor> above;  // the last rows of the tiles of the row above
  for (int64_t y = 0, i = 0; y < g.height; y += g.stride, ++i) {
    HostTensor left;  // the last columns of the tile on the left
    for (int64_t x = 0, j = 0; x < g.width; x += g.stride, ++j) {
      HostTensor tile = make(y, x, std::min(g.tile, g.height - y), std::min(g.tile, g.width - x));
      if (out.empty()) out = HostTensor(DType::kF32, {tile.shape()[0], tile.shape()[1], g.out_height, g.out_width});
      const auto column = static_cast<size_t>(j);
      if (i > 0) blend_down(above[column], tile, g.blend);
      if (j > 0) blend_right(left, tile, g.blend);
      const int64_t h = std::min(rows(tile), g.blend), w = std::min(columns(tile), g.blend);
      HostTensor seam = cut(tile, rows(tile) - h, 0, h, columns(tile));
      if (i == 0)
        above.push_back(std::move(seam));
      else
        above[column] = std::move(seam);
      left = cut(tile, 0, columns(tile) - w, rows(tile), w);
      place(tile, out, i * g.out_stride, j * g.out_stride, g.out_stride);
    }
  }
  return out;
}

}  // namespace megaslide
