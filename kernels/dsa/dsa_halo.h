// The keys that a tile of queries multiplies with, and the five products on bf16 tiles. Code for the tile units includes
// this, so nothing here has inline functions of external linkage (cmake/tile.cmake).
#pragma once
#include <cstdint>

#include "kernels/tile/unit.h"

namespace megaslide {

constexpr int64_t kDsaTileQueries = 32;

// Keys lie by plane (frame), row and column; rows are padded to an even number, columns to a multiple of 16. Padding
// holds zeros and is never sampled.
struct DsaHalo {
  int64_t planes, rows, columns;
  int64_t rows_there, columns_there;  // without the padding
  int64_t first;                      // token of the first key
  int64_t row_tokens, plane_tokens;   // from a row or plane to the next
};
static inline int64_t dsa_plane_keys(const DsaHalo& h) { return h.rows * h.columns; }
static inline int64_t dsa_row_token(const DsaHalo& h, int64_t plane, int64_t row) {
  return h.first + plane * h.plane_tokens + row * h.row_tokens;
}

// Operands of 32 queries, d numbers each, are rows padded with zeros to `width` = d rounded up to 32. Matrices of
// queries by keys are fp32, `row` floats from a query to the next, 64-byte aligned. Tensors are pointers to their first
// number of the head, `stride` numbers from a token to the next. m: 16 or 32 queries; the others of `weights` are 0.
// Planes of keys are packed one at a time, `dsa_plane_keys · width` numbers each, for one of two products:
void dsa_bf16_pack_keys(uint16_t* plane, const uint16_t* keys, int64_t stride, int64_t d, const DsaHalo& halo,
                        int64_t index);
void dsa_bf16_pack_values(uint16_t* plane, const uint16_t* values, int64_t stride, int64_t d, const DsaHalo& halo,
                          int64_t index);
// scores[i][key] = Σ_c a[i][c] · keys[key][c]
void dsa_bf16_scores(TileUnit unit, float* scores, int64_t row, int64_t m, const uint16_t* a,
                     const void* const* key_planes, int64_t d, const DsaHalo& halo);
// result[i][c] = Σ_key weights[i][key] · values[key][c], weights rounded to bf16; result (32, width).
int64_t dsa_bf16_scratch(const DsaHalo& halo);  // bytes
void dsa_bf16_weigh(TileUnit unit, float* result, const float* weights, int64_t row, int64_t m,
                    const void* const* value_planes, int64_t d, const DsaHalo& halo, void* scratch);
// Weights of one plane (`weights` points to them), rounded to bf16 and turned, are kept until all tiles are there that
// read the plane: dsa_plane_keys · 32 numbers a tile.
void dsa_bf16_keep(uint16_t* kept, const float* weights, int64_t row, const DsaHalo& halo);
// sums[key][c] = or += Σ_i weights[i][key] · b[i][c] over the queries of `count` tiles, whose kept weights and operands b
// (from dsa_bf16_columns) follow each other; sums (plane keys, width).
void dsa_bf16_outer(TileUnit unit, float* sums, const uint16_t* kept, const uint16_t* b, int64_t count, int64_t d,
                    const DsaHalo& halo, bool accumulate);
// The rows a (32, width) as the second operand of dsa_bf16_outer, 32 · width numbers.
void dsa_bf16_columns(uint16_t* b, const uint16_t* a, int64_t width);
// a = x rounded to bf16, zeros up to width. Returns Σ a · y.
float dsa_bf16_round(uint16_t* a, const float* x, const float* y, int64_t d, int64_t width);

}  // namespace megaslide
