// A piece of the rows of a group, as kernels/row_pieces.h cuts them, in device code.
#pragma once
#include "kernels/elements.cuh"
#include "kernels/row_pieces.h"

namespace megaslide {

struct RowPieces {
  unsigned group_rows, pieces;  // of a group
  unsigned count;               // of all groups
  RowPieces(int64_t rows, int64_t rows_a_group)
      : group_rows(count32(rows_a_group, "rows")), pieces(static_cast<unsigned>((rows_a_group + kPieceRows - 1) / kPieceRows)),
        count(count32(row_pieces(rows, rows_a_group), "pieces of rows")) {}
};

struct RowPiece {
  unsigned group;
  int64_t begin, end;
  __device__ RowPiece(const RowPieces& p, unsigned piece) : group(piece / p.pieces) {
    const unsigned first = piece % p.pieces * static_cast<unsigned>(kPieceRows), last = first + static_cast<unsigned>(kPieceRows);
    begin = int64_t{group} * p.group_rows + first;
    end = int64_t{group} * p.group_rows + (last < p.group_rows ? last : p.group_rows);
  }
};

}  // namespace megaslide
