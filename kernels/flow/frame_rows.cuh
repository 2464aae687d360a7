// Passes over the rows of a frame in device code: a thread a unit of a row, such as a quad of its channels.
#pragma once
#include <cstdint>

#include "kernels/conv3d/frame.h"
#include "kernels/elements.cuh"
#include "kernels/quads.cuh"

namespace megaslide {

constexpr int kRowThreads = 256;

struct FrameRows {
  unsigned units, blocks;  // of a row
  dim3 grid;
  // Throws Error where there are too many.
  FrameRows(int64_t rows, int64_t units_a_row)
      : units(count32(units_a_row + kRowThreads, "parts of a row") - kRowThreads), blocks((units + kRowThreads - 1) / kRowThreads),
        grid(count32(rows * blocks, "parts of a frame")) {}
  bool empty() const { return grid.x == 0; }
  __device__ int64_t row() const { return blockIdx.x / blocks; }
  __device__ unsigned unit() const { return blockIdx.x % blocks * kRowThreads + threadIdx.x; }
};
// Quads of all cells of a row, which follow one another in memory; the channel of the first in its cell is 4·unit % stored.
inline FrameRows quad_rows(const FrameLayout& l) { return {l.height, l.width * l.stored() / 4}; }

}  // namespace megaslide
