// What the paths of the convolution share: one piece of results, its sums in fp32.
#pragma once
#include <cstdint>

#include "kernels/conv3d/conv3d.h"

namespace megaslide::conv3d {

inline constexpr int64_t kBlock = 2 * kConvPanel;  // output channels that go through the registers together
inline constexpr int64_t kTile = 16;               // cells of a tile

// One piece: `rows` × `columns` results. T is the type that the inputs have here.
template <class T>
struct Piece {
  int64_t rows, columns;
  int64_t kt, kh;
  const T* frames[kConvMaxFrames];  // input cell of result (0,0), tap (0,0); nullptr is skipped
  int64_t row;                      // elements from one input row to the next
  int64_t result_row, result_cell;  // elements from one result's inputs to the next: below, beside
  int64_t run;                      // elements of one row of taps: contiguous
  const void* packed;               // fp32 [kt·kh][panels][run][16]; bf16 [kt·kh][panels][run/2][16][2]
  int64_t panels;
  float* sums;    // [block][rows][pitch cells][kBlock]
  int64_t pitch;  // columns rounded up to whole tiles

  int64_t block_elements() const { return rows * pitch * kBlock; }
};

inline int64_t sums_elements(const Bands& b, int64_t panels) {
  const int64_t pitch = (b.columns + kTile - 1) / kTile * kTile;
  return (panels + 1) / 2 * b.rows * pitch * kBlock;
}

// Fill p.sums, on AMX tiles or with AVX512-BF16.
void amx_piece(const Piece<bf16>& p);
void dot_piece(const Piece<bf16>& p);

}  // namespace megaslide::conv3d
