// fp32 sums of a piece on AMX tiles for bf16: every number as three parts, of whose products six are taken (gemm/split_linear.h has the
// error). Plain declarations alone: split.cc is compiled for that unit.
//
// The inputs of a piece are split into its thread's memory, [step][frame][part][row phase][row][cell][channel], so that neighbouring cells
// of a tap are a tile in place: a step is 32 channels, a row phase takes every stride-th row. Results are numbered through the rows of that
// memory; those between two rows are computed and dropped. A unit is 32 terms of a sum: a tap of 32 channels, or two neighbouring taps of up
// to 16. A sum goes through all taps of a step before the next step.
#pragma once
#include <cstdint>

namespace megaslide::conv3d {

struct SplitShape {
  int64_t in, out, kt, kh, kw, stride;
};

// How a piece of rows × columns results is computed. Weights are packed by width, steps, across alone.
struct SplitPlan {
  int64_t width;                // channels of a cell in the parts: 32 or 16
  int64_t steps;                // of that many channels
  int64_t across;               // units along a row of taps
  int64_t pitch;                // from one row of results to the next
  int64_t tiles;                // of 16 results
  int64_t phases, phase, part;  // row phases, elements of one, and of a part
  int64_t group;                // steps whose parts are there at a time

  int64_t bytes;  // of scratch
};
SplitPlan split_plan(const SplitShape& shape, int64_t rows, int64_t columns);
int64_t split_units(const SplitShape& shape);
int64_t split_weight_bytes(const SplitShape& shape);
// Pieces that cost least: rows and columns of one.
void split_piece_sides(const SplitShape& shape, int64_t rows, int64_t columns, int64_t* piece_rows, int64_t* piece_columns);

inline constexpr int64_t kSplitSide = 32;  // output channels of a column pair
inline constexpr int64_t kSplitBlockTiles = 4;

// packed: [pair][step][frame][row of taps][unit][part][panel][tile of B], pairs [p0, p1) of them. w: (out,in,kt,kh,kw).
void split_pack_weights(void* packed, const float* w, const SplitShape& shape, int64_t p0, int64_t p1);

// What `done` reads and writes, to be fetched before: at result (0,0) of the first pair, or nullptr.
struct SplitTouched {
  const char* frames[3];
  int64_t row, cell, pair;  // bytes from one to the next
};

struct SplitPiece {
  SplitShape shape;
  int64_t rows, columns;
  const float* frames[3];  // input cell of result (0,0), tap (0,0); nullptr is skipped
  int64_t row, cell;       // elements from one input row to the next, from cell to cell
  const void* packed;
  void* scratch;  // the plan's bytes, 64-byte aligned
  // Sums [pair][tile][cell][32] where they are kept, of one block otherwise; result (y,x) is cell y · pitch + x. They are kept where the
  // parts do not hold all steps at once. `done` is called for each block of cells, at most kSplitBlockTiles tiles, when it is complete.
  float* sums;
  bool kept;
  void (*done)(void* context, float* sums, int64_t pair, int64_t first, int64_t cells);
  void* context;
  SplitTouched touched;
};
void split_sums(const SplitPiece& piece, const SplitPlan& plan);

}  // namespace megaslide::conv3d
