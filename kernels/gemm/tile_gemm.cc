#include "kernels/gemm/tile_gemm.h"

#if MEGASLIDE_TILE
#include "kernels/tile/tile-inl.h"

namespace megaslide::gemm {
namespace {

inline constexpr int64_t kStrip = 32;        // rows of A at a time
inline constexpr int64_t kBlock = 16 * 32;   // floats of 16 columns of a strip's sums
inline constexpr int64_t kSumRows = 64;      // kPieceRows of row_pieces.h

inline int64_t up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Sums of a strip: [columns/16][32 rows][16].
struct Strip {
  const float* sums;
  int64_t row, rows, column, columns;  // of the result
};

inline __mmask16 lanes(int64_t count) { return static_cast<__mmask16>(count >= 16 ? 0xffff : (1 << count) - 1); }
inline __m512 load_bf16(__mmask16 m, const uint16_t* p) { return widen16(_mm256_maskz_loadu_epi16(m, p)); }
inline void store_bf16(__mmask16 m, uint16_t* p, __m512 x) { _mm256_mask_storeu_epi16(p, m, narrow16(x)); }
inline __m512 rounded(__m512 x) { return widen16(narrow16(x)); }

// body(sum, row, column, lanes) for 16 numbers at a time, rows outside.
template <class F>
inline void each_row(const Strip& s, F body) {
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t j = 0; j < s.columns; j += 16)
      body(_mm512_load_ps(s.sums + j / 16 * kBlock + r * 16), s.row + r, s.column + j, lanes(s.columns - j));
}

// 1 / (1 + e^(−2u)) of GELU (kernels/activation), within 4e-6. The exponent is kept where 2^x is a normal number; the
// factor x outside brings NaN back.
inline __m512 gelu_sigmoid(__m512 x, __m512 square) {
  constexpr float kScale = -2 * 0.7978845608028654F * kLog2E;
  const __m512 inner = _mm512_fmadd_ps(_mm512_set1_ps(0.044715F * kScale), square, _mm512_set1_ps(kScale));
  const __m512 exponent = _mm512_mul_ps(x, inner);
  const __m512 bounded = _mm512_min_ps(_mm512_max_ps(exponent, _mm512_set1_ps(-125.0F)), _mm512_set1_ps(125.0F));
  const __m512 d = _mm512_add_ps(exp2_16(bounded), _mm512_set1_ps(1.0F));
  // A reciprocal of 14 bits and one Newton step.
  const __m512 r = _mm512_rcp14_ps(d);
  return _mm512_mul_ps(r, _mm512_fnmadd_ps(d, r, _mm512_set1_ps(2.0F)));
}

void finish_float(const TileOutput& o, const Strip& s) {
  auto* out = static_cast<float*>(o.out);
  const bool add = o.kind == TileResult::kAddFloat;
  each_row(s, [&](__m512 x, int64_t r, int64_t c, __mmask16 m) {
    float* p = out + r * o.stride + c;
    if (o.bias) x = _mm512_add_ps(x, load_bf16(m, o.bias + c));
    if (add) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(m, p));
    _mm512_mask_storeu_ps(p, m, x);
  });
}

void finish_operand(const TileOutput& o, const Strip& s) {
  auto* out = static_cast<uint16_t*>(o.out);
  each_row(s, [&](__m512 x, int64_t r, int64_t c, __mmask16 m) {
    if (o.bias) x = _mm512_add_ps(x, load_bf16(m, o.bias + c));
    store_bf16(m, out + r * o.stride + c, x);
  });
}

void finish_gelu(const TileOutput& o, const Strip& s) {
  auto* out = static_cast<uint16_t*>(o.out);
  each_row(s, [&](__m512 x, int64_t r, int64_t c, __mmask16 m) {
    if (o.bias) x = _mm512_add_ps(x, load_bf16(m, o.bias + c));
    x = rounded(x);
    if (o.kept) store_bf16(m, o.kept + r * o.stride + c, x);
    store_bf16(m, out + r * o.stride + c, _mm512_mul_ps(x, gelu_sigmoid(x, _mm512_mul_ps(x, x))));
  });
}

void finish_gated_add(const TileOutput& o, const Strip& s) {
  auto* out = static_cast<float*>(o.out);
  for (int64_t r = 0; r < s.rows; ++r) {
    const int64_t row = s.row + r, at = row * o.stride + s.column;
    const float* gate = o.gate ? o.gate + (o.first_row + row) / o.group_rows * o.group_stride + s.column : nullptr;
    for (int64_t j = 0; j < s.columns; j += 16) {
      const __mmask16 m = lanes(s.columns - j);
      __m512 x = _mm512_load_ps(s.sums + j / 16 * kBlock + r * 16);
      if (o.bias) x = _mm512_add_ps(x, load_bf16(m, o.bias + s.column + j));
      x = rounded(x);
      if (o.kept) store_bf16(m, o.kept + at + j, x);
      const __m512 g = gate ? _mm512_maskz_loadu_ps(m, gate + j) : _mm512_set1_ps(1.0F);
      _mm512_mask_storeu_ps(out + at + j, m, _mm512_fmadd_ps(g, x, _mm512_maskz_loadu_ps(m, o.residual + at + j)));
    }
  }
}

// Columns outside, so that their sums stay in a register.
void finish_gelu_gradient(const TileOutput& o, const Strip& s) {
  constexpr float kCubic = 0.044715F, kRoot = 0.7978845608028654F;
  auto* out = static_cast<uint16_t*>(o.out);
  for (int64_t j = 0; j < s.columns; j += 16) {
    const __mmask16 m = lanes(s.columns - j);
    float* sums = o.sums + s.row / kSumRows * o.stride + s.column + j;
    __m512 sum = s.row % kSumRows == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(m, sums);
    for (int64_t r = 0; r < s.rows; ++r) {
      const int64_t at = (s.row + r) * o.stride + s.column + j;
      const __m512 x = load_bf16(m, o.kept + at), square = _mm512_mul_ps(x, x), sigmoid = gelu_sigmoid(x, square);
      const __m512 value = _mm512_mul_ps(x, sigmoid);
      const __m512 slope = _mm512_fmadd_ps(_mm512_set1_ps(6 * kCubic * kRoot), square, _mm512_set1_ps(2 * kRoot));
      const __m512 derivative =
          _mm512_fmadd_ps(_mm512_mul_ps(value, _mm512_sub_ps(_mm512_set1_ps(1.0F), sigmoid)), slope, sigmoid);
      const __m512 g = _mm512_mul_ps(_mm512_load_ps(s.sums + j / 16 * kBlock + r * 16), derivative);
      sum = _mm512_add_ps(sum, g);
      store_bf16(m, o.out2 + at, value);
      store_bf16(m, out + at, g);
    }
    _mm512_mask_storeu_ps(sums, m, sum);
  }
}

void finish(const TileOutput& o, const Strip& s) {
  switch (o.kind) {
    case TileResult::kFloat:
    case TileResult::kAddFloat: return finish_float(o, s);
    case TileResult::kOperand: return finish_operand(o, s);
    case TileResult::kGelu: return finish_gelu(o, s);
    case TileResult::kGatedAdd: return finish_gated_add(o, s);
    case TileResult::kGeluGradient: return finish_gelu_gradient(o, s);
  }
}

// Where a strip of A lies, or a copy of it padded with zeros.
struct StripOfA {
  const uint16_t* data;
  int64_t row, step, rows;  // rows: 16 or 32
  bool in_place;
};

StripOfA strip_of(const TileRows& a, int64_t row, int64_t end, int64_t k0, int64_t depth, uint16_t* copy) {
  if (a.panels) return {a.data + row * a.stride + k0 * kStrip, 32, kStrip * 32, kStrip, true};
  const int64_t rows = least(kStrip, end - row), padded = rows > 16 ? kStrip : 16;
  const uint16_t* from = a.data + row * a.stride + k0;
  if (rows == padded && k0 + depth <= a.width) return {from, a.stride, 32, padded, true};
  for (int64_t r = 0; r < padded; ++r)
    for (int64_t q = 0; q < depth; q += 32) {
      const __m512i x = r < rows ? load32(from + r * a.stride + q, a.width - k0 - q) : _mm512_setzero_si512();
      _mm512_store_si512(copy + r * depth + q, x);
    }
  return {copy, depth, 32, padded, false};
}

}  // namespace

size_t tile_scratch_bytes() {
  return static_cast<size_t>(4 * kTilePieceRows * kTilePieceColumns + 2 * kStrip * kTileDepth);
}

void tile_piece(TileUnit unit, const TileProblem& t, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void* scratch) {
  const TileScope tiles(unit);
  auto* sums = static_cast<float*>(scratch);
  auto* copy = reinterpret_cast<uint16_t*>(sums + kTilePieceRows * kTilePieceColumns);
  const int64_t padded_width = up(t.a.width, 32), all_blocks = up(t.columns, 32), columns = up(n1 - n0, 16);
  const bool one_slab = padded_width <= kTileDepth;
  for (int64_t k0 = 0; k0 < padded_width; k0 += kTileDepth) {
    const int64_t depth = least(kTileDepth, padded_width - k0);
    const uint16_t* b = static_cast<const uint16_t*>(t.b) + k0 * all_blocks + n0 * depth;
    for (int64_t m = m0; m < m1; m += kStrip) {
      const StripOfA a = strip_of(t.a, m, m1, k0, depth, copy);
      float* c = one_slab ? sums : sums + (m - m0) * columns;
      TileProduct p{.m = a.rows,
                    .n = columns,
                    .k = depth,
                    .a = a.data,
                    .a_row = a.row,
                    .a_step = a.step,
                    .b = b,
                    .b_block = depth * 16,
                    .b_step = kTileElements,
                    .c = c,
                    .c_row = 16,
                    .c_block = kBlock,
                    .accumulate = k0 > 0};
      if (a.in_place && m + 2 * kStrip <= m1) p.next = a.data + (t.a.panels ? kStrip * t.a.stride : kStrip * a.row);
      tile_product(unit, p);
      if (k0 + depth == padded_width) finish(t.output, {c, m, least(kStrip, m1 - m), n0, n1 - n0});
    }
  }
}

void tile_pack(uint16_t* packed, const uint16_t* b, int64_t stride, bool transposed, int64_t width, int64_t columns,
               int64_t b0, int64_t b1) {
  const int64_t padded_width = up(width, 32), all = up(columns, 32);
  for (int64_t k0 = 0; k0 < padded_width; k0 += kTileDepth) {
    const int64_t depth = least(kTileDepth, padded_width - k0);
    uint16_t* slab = packed + k0 * all;
    // The inner loop goes along the rows of memory.
    if (transposed) {
      for (int64_t n = 16 * b0; n < 16 * b1; n += 16)
        for (int64_t q = 0; q < depth; q += 32)
          pack_tile_of_rows(slab + n * depth + q * 16, b + n * stride + k0 + q, stride, columns - n, width - k0 - q);
    } else {
      for (int64_t q = 0; q < depth; q += 32)
        for (int64_t n = 16 * b0; n < 16 * b1; n += 16)
          pack_tile_of_columns(slab + n * depth + q * 16, b + (k0 + q) * stride + n, stride, width - k0 - q,
                               columns - n);
    }
  }
}

void tile_pack_panels(uint16_t* panels, const uint16_t* a, int64_t stride, int64_t rows, int64_t width, int64_t p0,
                      int64_t p1) {
  const int64_t padded_width = up(width, 32);
  for (int64_t q = 0; q < padded_width; q += 32)
    for (int64_t p = p0; p < p1; ++p)
      transpose_block32(panels + (p * padded_width + q) * 32, 32, a + q * stride + p * 32, stride, width - q,
                        rows - p * 32);
}

}  // namespace megaslide::gemm

#else
#include "base/error.h"

// No tile unit in this build: tile_unit() is kNone and nothing calls these.
namespace megaslide::gemm {
size_t tile_scratch_bytes() { MS_CHECK(false, "no tile unit in this build"); }
void tile_piece(TileUnit, const TileProblem&, int64_t, int64_t, int64_t, int64_t, void*) { MS_CHECK(false, "no tile unit in this build"); }
void tile_pack(uint16_t*, const uint16_t*, int64_t, bool, int64_t, int64_t, int64_t, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
void tile_pack_panels(uint16_t*, const uint16_t*, int64_t, int64_t, int64_t, int64_t, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
}  // namespace megaslide::gemm
#endif
