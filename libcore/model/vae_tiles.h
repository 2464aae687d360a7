// Large frames in overlapping tiles, blended where they overlap, as diffusers does it (spec wan.md C.6). Each tile is a
// clip of its own: the result is near that of the whole frame, not equal to it.
#pragma once
#include <cstdint>
#include <functional>

#include "tensor/tensor.h"

namespace megaslide {

// Sizes in pixels, of pixels before the 2.2 patches where diffusers counts so.
struct VaeTiling {
  bool enabled = false;
  int64_t tile = 256;    // height and width of a tile
  int64_t stride = 192;  // from one tile to the next
};

// In the units of what goes in and what comes out.
struct TileGrid {
  int64_t height, width;  // in
  int64_t tile, stride;   // in
  int64_t out_height, out_width;
  int64_t out_stride, blend;  // out
};

// `make(y, x, h, w)` returns tile [C, T, rows, columns] of the input region. Returns [C, T, out_height, out_width].
// Holds one tile and the seams of one row of tiles besides.
HostTensor blend_tiles(const TileGrid& grid,
                       const std::function<HostTensor(int64_t y, int64_t x, int64_t h, int64_t w)>& make);

}  // namespace megaslide
