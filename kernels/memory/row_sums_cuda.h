// The device's counterpart of kernels/row_pieces.h: sums over the rows of a group in pieces of kPieceRows, whose vectors
// lie in scratch in the same places.
#pragma once
#include <cstdint>

#include "kernels/row_pieces.h"

namespace megaslide::cuda {

// As megaslide::add_row_pieces, queued: out[group * out_stride + c] += Σ over the group's pieces of
// scratch[piece * width + first + c], c in [0, columns). fp64 sums by a fixed tree.
void add_piece_sums(Stream& stream, float* out, int64_t out_stride, int64_t rows, int64_t group_rows, int64_t width, int64_t first,
                    int64_t columns, const float* scratch);

}  // namespace megaslide::cuda
