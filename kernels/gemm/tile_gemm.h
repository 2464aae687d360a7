// The products of a linear layer on this processor's tile unit: bf16 operands, fp32 sums, and what becomes of a sum
// before it reaches memory. One call is a piece of work of one thread.
//
// A sum runs over its terms in ascending order whatever the cut into pieces, so a row of the result has the same bits
// whatever other rows there are, and any cut and any number of threads give the same result.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/tile/unit.h"

namespace megaslide::gemm {

// Pieces of this size keep their operands and sums in the second-level cache. Rows are a multiple of 64, the rows of a
// sum of columns (row_pieces.h).
inline constexpr int64_t kTilePieceRows = 256, kTilePieceColumns = 512, kTileDepth = 256;

// A: row-major, or panels that tile_pack_panels made.
struct TileRows {
  const uint16_t* data;
  int64_t stride;  // between rows; of panels: the padded width
  int64_t rows, width;
  bool panels = false;
};

enum class TileResult {
  kFloat,         // out (fp32) = sum + bias
  kAddFloat,      // out (fp32) += sum
  kOperand,       // out (bf16) = sum + bias
  kGelu,          // a = bf16(sum + bias), out (bf16) = gelu(a), kept (may be null) = a
  kGatedAdd,      // a = bf16(sum + bias), out (fp32) = residual + gate ⊙ a, kept (may be null) = a
  kGeluGradient,  // g = sum ⊙ gelu'(kept), out (bf16) = g, out2 (bf16) = gelu(kept), sums[row/64] += Σ_rows g
};

// All matrices have `stride` columns a row; those that a kind does not name are null.
struct TileOutput {
  TileResult kind = TileResult::kFloat;
  void* out = nullptr;
  int64_t stride = 0;
  const uint16_t* bias = nullptr;  // (columns)
  uint16_t* kept = nullptr;
  uint16_t* out2 = nullptr;
  const float* residual = nullptr;
  const float* gate = nullptr;  // row r reads gate + (first_row + r) / group_rows * group_stride; null: 1
  int64_t first_row = 0, group_rows = 1, group_stride = 0;
  float* sums = nullptr;  // (⌈rows/64⌉, stride), overwritten
};

// C = A·B. B (width, columns) was packed by tile_pack.
struct TileProblem {
  TileRows a;
  const void* b;
  int64_t columns;
  TileOutput output;
};

size_t tile_scratch_bytes();
// Rows [m0, m1), m0 a multiple of 64 and m1 − m0 at most kTilePieceRows; columns [n0, n1), n0 a multiple of 32, at most
// kTilePieceColumns. scratch: tile_scratch_bytes, 64-byte aligned.
void tile_piece(TileUnit unit, const TileProblem& problem, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                void* scratch);

// A packed B, and the panels of an A, have pieces.h's tile_packed_elements.
// Blocks [b0, b1) of 16 columns of B (width, columns), which lies row-major (`stride` between rows of B) or transposed
// (rows of memory are columns of B).
void tile_pack(uint16_t* packed, const uint16_t* b, int64_t stride, bool transposed, int64_t width, int64_t columns,
               int64_t b0, int64_t b1);
// Panels [p0, p1) of 32 rows of A (rows, width), which lies transposed: memory holds (width, rows), `stride` apart.
void tile_pack_panels(uint16_t* panels, const uint16_t* a, int64_t stride, int64_t rows, int64_t width, int64_t p0,
                      int64_t p1);

}  // namespace megaslide::gemm
