#include "kernels/dsa/dsa_halo.h"

#if MEGASLIDE_TILE
#include "kernels/tile/tile-inl.h"

namespace megaslide {
namespace {

inline int64_t up32(int64_t x) { return (x + 31) / 32 * 32; }
inline __mmask16 lanes16(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1); }

// Weights of one plane as rows of A in the order of pack_pairs.
void pack_weights(uint16_t* a, int64_t a_row, const float* weights, int64_t row, int64_t m, const DsaHalo& h) {
  for (int64_t i = 0; i < m; ++i) {
    uint16_t* to = a + i * a_row;
    for (int64_t r = 0; r < h.rows; r += 2)
      for (int64_t c = 0; c < h.columns; c += 16, to += 32) {
        const float* from = weights + i * row + r * h.columns + c;
        _mm512_store_si512(to, pack_pair(_mm512_load_ps(from), _mm512_load_ps(from + h.columns)));
      }
  }
}

// 16 keys of 32 queries' weights, transposed: 16 rows of A.
inline void pack_keys_of_weights(uint16_t* a, const float* weights, int64_t row) {
  __m512i r[16];
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i)
    r[i] = pack_pair(_mm512_load_ps(weights + 2 * i * row), _mm512_load_ps(weights + (2 * i + 1) * row));
  transpose16(r);
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(a + i * 32, r[i]);
}

// Rows of A an odd number of cache lines apart, so that they do not share a cache set.
inline int64_t weights_row(const DsaHalo& h) { return (dsa_plane_keys(h) / 32 | 1) * 32; }

}  // namespace

// As tiles of B whose columns are keys: [rows · columns/16][width/32].
void dsa_bf16_pack_keys(uint16_t* plane, const uint16_t* keys, int64_t stride, int64_t d, const DsaHalo& h, int64_t index) {
  const int64_t width = up32(d);
  for (int64_t r = 0; r < h.rows_there; ++r)
    for (int64_t c = 0; c < h.columns; c += 16)
      for (int64_t e = 0; e < width; e += 32, plane += kTileElements)
        pack_tile_of_rows(plane, keys + (dsa_row_token(h, index, r) + c) * stride + e, stride, h.columns_there - c, d - e);
}

// As tiles of B whose pairs of rows are the keys of one column in rows 2i and 2i + 1: [rows/2 · columns/16][width/16].
void dsa_bf16_pack_values(uint16_t* plane, const uint16_t* values, int64_t stride, int64_t d, const DsaHalo& h, int64_t index) {
  const int64_t below = h.row_tokens * stride, width = up32(d);
  for (int64_t r = 0; r < h.rows; r += 2)
    for (int64_t c = 0; c < h.columns; c += 16, plane += width * 32)
      for (int64_t i = 0; i < 16; ++i) {
        const bool there = c + i < h.columns_there, pair = there && r + 1 < h.rows_there;
        const uint16_t* from = values + (dsa_row_token(h, index, r) + c + i) * stride;
        for (int64_t e = 0; e < width; e += 16) {
          const __m512i even = there ? _mm512_cvtepu16_epi32(load16(from + e, d - e)) : _mm512_setzero_si512();
          const __m512i odd = pair ? _mm512_cvtepu16_epi32(load16(from + below + e, d - e)) : _mm512_setzero_si512();
          _mm512_store_si512(plane + e * 32 + i * 32, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
        }
      }
}

int64_t dsa_bf16_scratch(const DsaHalo& h) { return 2 * kDsaTileQueries * weights_row(h); }

void dsa_bf16_scores(TileUnit unit, float* scores, int64_t row, int64_t m, const uint16_t* a,
                     const void* const* key_planes, int64_t d, const DsaHalo& h) {
  const TileScope tiles(unit);
  const int64_t width = up32(d);
  for (int64_t p = 0; p < h.planes; ++p)
    tile_product(unit, {.m = m, .n = h.rows_there * h.columns, .k = width,
                        .a = a, .a_row = width, .a_step = 32,
                        .b = static_cast<const uint16_t*>(key_planes[p]), .b_block = width * 16, .b_step = kTileElements,
                        .c = scores + p * dsa_plane_keys(h), .c_row = row, .c_block = 16, .accumulate = false});
}

void dsa_bf16_weigh(TileUnit unit, float* result, const float* weights, int64_t row, int64_t m,
                    const void* const* value_planes, int64_t d, const DsaHalo& h, void* scratch) {
  const TileScope tiles(unit);
  const int64_t width = up32(d), a_row = weights_row(h), keys = dsa_plane_keys(h);
  auto* a = static_cast<uint16_t*>(scratch);
  for (int64_t p = 0; p < h.planes; ++p) {
    pack_weights(a, a_row, weights + p * keys, row, m, h);
    tile_product(unit, {.m = m, .n = width, .k = keys,
                        .a = a, .a_row = a_row, .a_step = 32,
                        .b = static_cast<const uint16_t*>(value_planes[p]), .b_block = kTileElements, .b_step = width * 32,
                        .c = result, .c_row = width, .c_block = 16, .accumulate = p > 0});
  }
}

void dsa_bf16_keep(uint16_t* kept, const float* weights, int64_t row, const DsaHalo& h) {
  for (int64_t c = 0; c < h.rows_there * h.columns; c += 16) pack_keys_of_weights(kept + c * 32, weights + c, row);
}

void dsa_bf16_outer(TileUnit unit, float* sums, const uint16_t* kept, const uint16_t* b, int64_t count, int64_t d,
                    const DsaHalo& h, bool accumulate) {
  const TileScope tiles(unit);
  const int64_t width = up32(d), rows = h.rows_there * h.columns;
  tile_product(unit, {.m = rows, .n = width, .k = 32 * count,
                      .a = kept, .a_row = 32, .a_step = dsa_plane_keys(h) * 32,
                      .b = b, .b_block = kTileElements, .b_step = width * 32,
                      .c = sums, .c_row = width, .c_block = 16, .accumulate = accumulate});
}

void dsa_bf16_columns(uint16_t* b, const uint16_t* a, int64_t width) {
  for (int64_t e = 0; e < width; e += 16) pack_tile_of_columns(b + e * 32, a + e, width, 32, 16);
}

float dsa_bf16_round(uint16_t* a, const float* x, const float* y, int64_t d, int64_t width) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t e = 0; e < width; e += 16) {
    const __mmask16 k = lanes16(d - e);
    const __m256i r = narrow16(_mm512_maskz_loadu_ps(k, x + e));
    _mm256_store_si256(reinterpret_cast<__m256i*>(a + e), r);
    sum = _mm512_fmadd_ps(widen16(r), _mm512_maskz_loadu_ps(k, y + e), sum);
  }
  return _mm512_reduce_add_ps(sum);
}

}  // namespace megaslide

#else
#include "base/error.h"

// No tile unit in this build: tile_unit() is kNone and nothing calls these.
namespace megaslide {
void dsa_bf16_pack_keys(uint16_t*, const uint16_t*, int64_t, int64_t, const DsaHalo&, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
void dsa_bf16_pack_values(uint16_t*, const uint16_t*, int64_t, int64_t, const DsaHalo&, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
int64_t dsa_bf16_scratch(const DsaHalo&) { MS_CHECK(false, "no tile unit in this build"); }
void dsa_bf16_scores(TileUnit, float*, int64_t, int64_t, const uint16_t*, const void* const*, int64_t, const DsaHalo&) {
  MS_CHECK(false, "no tile unit in this build");
}
void dsa_bf16_weigh(TileUnit, float*, const float*, int64_t, int64_t, const void* const*, int64_t, const DsaHalo&, void*) {
  MS_CHECK(false, "no tile unit in this build");
}
void dsa_bf16_keep(uint16_t*, const float*, int64_t, const DsaHalo&) { MS_CHECK(false, "no tile unit in this build"); }
void dsa_bf16_outer(TileUnit, float*, const uint16_t*, const uint16_t*, int64_t, int64_t, const DsaHalo&, bool) {
  MS_CHECK(false, "no tile unit in this build");
}
void dsa_bf16_columns(uint16_t*, const uint16_t*, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
float dsa_bf16_round(uint16_t*, const float*, const float*, int64_t, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
}  // namespace megaslide
#endif
