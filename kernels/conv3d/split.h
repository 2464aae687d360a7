// fp32 sums of a piece on AMX tiles for bf16: every number as three parts, of whose products six are taken (gemm/split_linear.h has the
// error). Plain declarations alone: split.cc is compiled for that unit.
#pragma once
#include <cstdint>

namespace megaslide::conv3d {

// Convolutions and weights as packed: [column pair][step][t][i][unit of taps along x][part][panel][tile of B].
struct SplitShape {
  int64_t in, out, kt, kh, kw;
};
int64_t split_weight_bytes(const SplitShape& shape);
// Column pairs [p0, p1) of 32 output channels. w: (out,in,kt,kh,kw).
int64_t split_pairs(const SplitShape& shape);
void split_pack_weights(void* packed, const float* w, const SplitShape& shape, int64_t p0, int64_t p1);

// `rows` × `columns` results.
struct SplitPiece {
  SplitShape shape;
  int64_t rows, columns, stride;
  const float* frames[3];  // input cell of result (0,0), tap (0,0); nullptr is skipped
  int64_t row, cell;       // elements from one input row to the next, from cell to cell
  const void* packed;
  float* sums;  // [column pair][result_cells][32]; result (y,x) at cell y · pitch + x
  void* parts;  // split_scratch_bytes, 64-byte aligned
};
int64_t split_pitch(const SplitShape& shape, int64_t columns, int64_t stride);
int64_t split_result_cells(const SplitShape& shape, int64_t rows, int64_t columns, int64_t stride);
int64_t split_scratch_bytes(const SplitShape& shape, int64_t rows, int64_t columns, int64_t stride);
void split_sums(const SplitPiece& piece);

}  // namespace megaslide::conv3d
