// Sums over rows whose order does not depend on the number of threads: the rows of a group are cut into pieces of 64,
// each piece is summed in row order into its own vectors, the pieces are added in order. Used inside CPU kernels.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/stream.h"

namespace megaslide {

inline constexpr int64_t kPieceRows = 64;

inline int64_t row_pieces(int64_t rows, int64_t group_rows) {
  return rows / group_rows * ((group_rows + kPieceRows - 1) / kPieceRows);
}

// Floats of scratch memory for sums of `width` columns.
inline int64_t row_sum_scratch(int64_t rows, int64_t group_rows, int64_t width) {
  return row_pieces(rows, group_rows) * width;
}

// Rows of an elementwise piece: about 16K elements.
inline int64_t rows_grain(int64_t width) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)); }

// body(group, first row, end row, piece's `width` floats in scratch, zeroed) for every piece; rows is a multiple of
// group_rows.
void for_row_pieces(Stream& stream, int64_t rows, int64_t group_rows, int64_t width, float* scratch,
                    FunctionRef<void(int64_t group, int64_t begin, int64_t end, float* sums)> body);

// out[group * out_stride + c] += Σ over the group's pieces of scratch[piece * width + first + c], c in [0, columns).
void add_row_pieces(Stream& stream, float* out, int64_t out_stride, int64_t rows, int64_t group_rows, int64_t width,
                    int64_t first, int64_t columns, const float* scratch);

}  // namespace megaslide
