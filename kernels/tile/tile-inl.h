// Products of bf16 tiles with fp32 sums on AMX or AVX512-BF16, and the registers' worth of code around them. Included by
// translation units that are compiled for these units alone (cmake/tile.cmake): everything here has internal linkage, so
// that the linker can give none of it to code for other processors. bf16 numbers are plain uint16_t here.
//
//   C[m][n] (+)= Σ_k A[m][k] · B[k][n]
//
// A is read in place: A(m,k) at a + m·a_row + (k/32)·a_step + k%32. Row-major is a_step = 32.
// B lies in tiles of 32 k × 16 n, pairs of k together: tile (k/32, n/16) at b + (n/16)·b_block + (k/32)·b_step, inside
// it [16 pairs of k][16 n][2], 1 KiB.
// C lies in blocks of 16 columns: C(m,n) at c + (n/16)·c_block + m·c_row + n%16.
// A sum runs over k in ascending order whatever the shape, so a row's bits do not depend on the rows beside it, and
// going on from a stored C is the same sum.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/tile/unit.h"

namespace megaslide {
namespace {

inline constexpr int64_t kTileBytes = 1024, kTileElements = 512;

struct TileProduct {
  int64_t m, n, k;  // multiples of 16, 16, 32
  const uint16_t* a;
  int64_t a_row, a_step;
  const uint16_t* b;
  int64_t b_block, b_step;
  float* c;
  int64_t c_row, c_block;
  bool accumulate;
  // Rows that the next product reads as A, fetched meanwhile; nullptr for none. Rows lie as those of a.
  const uint16_t* next = nullptr;
};

// All eight tiles as 16 rows of 64 bytes.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
inline constexpr TileConfiguration kTileConfiguration;

// Configures the tiles while it lives. Once a kernel's piece, not once a thread: oneDNN leaves the tiles released, and a
// tile instruction without a configuration is an illegal one. GCC 12's intrinsic names 8 bytes of the configuration as
// its operand, hence a constant.
class TileScope {
 public:
  explicit TileScope(TileUnit unit) : on_(unit == TileUnit::kAmx) {
    if (on_) _tile_loadconfig(&kTileConfiguration);
  }
  ~TileScope() {
    if (on_) _tile_release();
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  bool on_;
};

// A line for the second-level cache (T1) or the first. To GCC 12 a prefetch does nothing, and it drops loops of nothing else: the empty
// statement keeps them.
template <_mm_hint kCache = _MM_HINT_T1>
inline void fetch_line(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), kCache);
  __asm__ volatile("");
}

// The part of `next` that a product of `columns` column pairs fetches beside its pair `j`.
inline void fetch_next(const TileProduct& p, int64_t rows, int64_t j, int64_t pairs) {
  if (p.next == nullptr) return;
  for (int64_t r = rows * j / pairs; r < rows * (j + 1) / pairs; ++r)
    for (int64_t q = 0; q < p.k / 32; ++q)
      fetch_line(p.next + r * p.a_row + q * p.a_step);
}

// 32 rows by 32 columns, four tiles of C. GCC 12's tile intrinsics name no memory operands: the fences of product_amx
// and the missing inlining keep loads and stores around them in their places.
inline void amx_block(const TileProduct& p, const uint16_t* a, const uint16_t* b, float* c) {
  const auto c_row = static_cast<size_t>(p.c_row) * 4, a_row = static_cast<size_t>(p.a_row) * 2;
  const uint16_t *a1 = a + 16 * p.a_row, *b1 = b + p.b_block;
  float *c1 = c + p.c_block, *below = c + 16 * p.c_row, *below1 = below + p.c_block;
  if (p.accumulate) {
    _tile_loadd(0, c, c_row);
    _tile_loadd(1, c1, c_row);
    _tile_loadd(2, below, c_row);
    _tile_loadd(3, below1, c_row);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < p.k; i += 32, a += p.a_step, a1 += p.a_step, b += p.b_step, b1 += p.b_step) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, a_row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b1, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a1, a_row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_row);
  _tile_stored(1, c1, c_row);
  _tile_stored(2, below, c_row);
  _tile_stored(3, below1, c_row);
}

// 16 rows by 32 columns.
inline void amx_row_block(const TileProduct& p, const uint16_t* a, const uint16_t* b, float* c) {
  const auto c_row = static_cast<size_t>(p.c_row) * 4, a_row = static_cast<size_t>(p.a_row) * 2;
  const uint16_t* b1 = b + p.b_block;
  float* c1 = c + p.c_block;
  if (p.accumulate) {
    _tile_loadd(0, c, c_row);
    _tile_loadd(1, c1, c_row);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int64_t i = 0; i < p.k; i += 32, a += p.a_step, b += p.b_step, b1 += p.b_step) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, a_row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b1, 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, c, c_row);
  _tile_stored(1, c1, c_row);
}

// 16 rows by 16 columns.
inline void amx_tile(const TileProduct& p, const uint16_t* a, const uint16_t* b, float* c) {
  const auto c_row = static_cast<size_t>(p.c_row) * 4, a_row = static_cast<size_t>(p.a_row) * 2;
  if (p.accumulate)
    _tile_loadd(0, c, c_row);
  else
    _tile_zero(0);
  for (int64_t i = 0; i < p.k; i += 32, a += p.a_step, b += p.b_step) {
    _tile_loadd(4, a, a_row);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, c, c_row);
}

[[maybe_unused]] __attribute__((noinline)) void product_amx(const TileProduct& p) {
  __asm__ volatile("" ::: "memory");
  for (int64_t m = 0; m < p.m; m += 32) {
    const uint16_t* a = p.a + m * p.a_row;
    const bool two = m + 32 <= p.m;
    int64_t n = 0;
    for (; n + 32 <= p.n; n += 32) {
      const uint16_t* b = p.b + n / 16 * p.b_block;
      float* c = p.c + n / 16 * p.c_block + m * p.c_row;
      fetch_next(p, p.m, n / 32, p.n / 32);
      two ? amx_block(p, a, b, c) : amx_row_block(p, a, b, c);
    }
    if (n == p.n) continue;
    const uint16_t* b = p.b + n / 16 * p.b_block;
    float* c = p.c + n / 16 * p.c_block + m * p.c_row;
    amx_tile(p, a, b, c);
    if (two) amx_tile(p, a + 16 * p.a_row, b, c + 16 * p.c_row);
  }
  __asm__ volatile("" ::: "memory");
}

// kRows rows by kBlocks·16 columns in registers. Without the unroll pragmas GCC 12 keeps the sums in memory.
template <int kRows, int kBlocks>
inline void avx512_block(const TileProduct& p, int64_t m, int64_t n) {
  __m512 sum[kRows][kBlocks];
  float* c = p.c + n / 16 * p.c_block + m * p.c_row;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j)
      sum[r][j] = p.accumulate ? _mm512_loadu_ps(c + r * p.c_row + j * p.c_block) : _mm512_setzero_ps();
  const uint16_t *a = p.a + m * p.a_row, *b = p.b + n / 16 * p.b_block;
  for (int64_t i = 0; i < p.k; i += 32, a += p.a_step, b += p.b_step)
    for (int64_t q = 0; q < 16; ++q) {
      __m512i bq[kBlocks];
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) bq[j] = _mm512_loadu_si512(b + q * 32 + j * p.b_block);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        int pair;
        memcpy(&pair, a + r * p.a_row + 2 * q, 4);
        const __m512i aq = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
        for (int j = 0; j < kBlocks; ++j)
          sum[r][j] = _mm512_dpbf16_ps(sum[r][j], reinterpret_cast<__m512bh>(aq), reinterpret_cast<__m512bh>(bq[j]));
      }
    }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) _mm512_storeu_ps(c + r * p.c_row + j * p.c_block, sum[r][j]);
}

[[maybe_unused]] __attribute__((noinline)) void product_avx512(const TileProduct& p) {
  for (int64_t m = 0; m < p.m; m += 8) {
    int64_t n = 0;
    for (; n + 32 <= p.n; n += 32) avx512_block<8, 2>(p, m, n);
    if (n < p.n) avx512_block<8, 1>(p, m, n);
  }
}

inline void tile_product(TileUnit unit, const TileProduct& p) {
  unit == TileUnit::kAmx ? product_amx(p) : product_avx512(p);
}

// 16 × 16 dwords, transposed in registers.
inline void transpose16(__m512i r[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

inline int64_t clamp_count(int64_t x, int64_t top) { return x < 0 ? 0 : x < top ? x : top; }

// The first `count` of 32 bf16 numbers, zeros behind.
inline __m512i load32(const uint16_t* p, int64_t count) {
  return count >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(count <= 0 ? 0 : ~__mmask32{0} >> (32 - count), p);
}
inline __m256i load16(const uint16_t* p, int64_t count) {
  return count >= 16 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))
                     : _mm256_maskz_loadu_epi16(count <= 0 ? 0 : static_cast<__mmask16>(0xffff >> (16 - count)), p);
}

// A tile of B whose 16 columns are rows of x, 32 numbers each: `rows` of them and `columns` numbers are there, the rest
// is zero.
inline void pack_tile_of_rows(uint16_t* tile, const uint16_t* x, int64_t stride, int64_t rows, int64_t columns) {
  __m512i r[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = i < rows ? load32(x + i * stride, columns) : _mm512_setzero_si512();
  transpose16(r);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + i * 32, r[i]);
}

// A tile of B whose 32 rows are rows of x, 16 numbers each: as above.
inline void pack_tile_of_columns(uint16_t* tile, const uint16_t* x, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < 32; i += 2) {
    const __m512i even = i < rows ? _mm512_cvtepu16_epi32(load16(x + i * stride, columns)) : _mm512_setzero_si512();
    const __m512i odd =
        i + 1 < rows ? _mm512_cvtepu16_epi32(load16(x + (i + 1) * stride, columns)) : _mm512_setzero_si512();
    _mm512_store_si512(tile + i * 16, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
  }
}

// 32 rows of x, 32 numbers each, transposed into 32 rows of 32, `out_stride` apart; missing ones are zeros.
inline void transpose_block32(uint16_t* out, int64_t out_stride, const uint16_t* x, int64_t stride, int64_t rows,
                              int64_t columns) {
  const __m512i even = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26, 24,
                                        22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_add_epi16(even, _mm512_set1_epi16(1));
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    a[i] = i < rows ? load32(x + i * stride, columns) : _mm512_setzero_si512();
    b[i] = i + 16 < rows ? load32(x + (i + 16) * stride, columns) : _mm512_setzero_si512();
  }
  transpose16(a);
  transpose16(b);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    _mm512_storeu_si512(out + 2 * i * out_stride, _mm512_permutex2var_epi16(a[i], even, b[i]));
    _mm512_storeu_si512(out + (2 * i + 1) * out_stride, _mm512_permutex2var_epi16(a[i], odd, b[i]));
  }
}

// Two rows of 16 floats as one pair of k of a tile of B.
inline __m512i pack_pair(__m512 k0, __m512 k1) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(k1, k0)));
}

inline __m512 widen16(__m256i bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}
inline __m256i narrow16(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }

// 2^x, relative error 4e-6 and exact at whole x: far below the bf16 rounding that follows everywhere. VREDUCEPS gives x − ⌊x⌋ and VSCALEFPS
// takes the floor itself. Large negative x gives 0, NaN stays.
inline __m512 exp2_16(__m512 x) {
  const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  __m512 y = _mm512_set1_ps(0.013555747F);
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.05203237F));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.24137977F));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.69303215F));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(y, x);
}

inline constexpr float kLog2E = 1.44269504F, kLn2 = 0.69314718F;

}  // namespace
}  // namespace megaslide
