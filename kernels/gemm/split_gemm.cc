#include "kernels/gemm/split_gemm.h"

#if MEGASLIDE_TILE
#include "kernels/tile/parts-inl.h"

namespace megaslide::gemm {
namespace {

inline constexpr int64_t kSide = 32;                    // of a block of the result: 2×2 tiles
inline constexpr int64_t kStep = kParts * 2 * kTileElements;  // of an operand: 32 rows or columns by 32 terms, its parts one after the other
inline constexpr int64_t kSlab = 2;                     // steps at a time: a strip of x and a column pair of w then take 24 KiB of the first-level cache
inline constexpr int64_t kStepLines = kStep * 2 / 64;
inline constexpr int64_t kBlockFloats = kSide * kSide;

inline int64_t up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// What the next slab will read, a part of it: `lines` of 64 bytes, fetched a few a step.
struct Fetch {
  const char* from;
  int64_t lines;
  void part(int64_t i, int64_t of) const {
    for (int64_t l = lines * i / of; l < lines * (i + 1) / of; ++l) fetch_line(from + 64 * l);
  }
};
Fetch share(const char* from, int64_t lines, int64_t i, int64_t of) {
  const int64_t begin = lines * i / of;
  return {from + 64 * begin, lines * (i + 1) / of - begin};
}

// Tiles: sums in 0 to 3, x in 4 and 5, w in 6 and 7. Without kLower the strip has at most 16 rows: 2, 3 and 5 rest.
template <bool kLower>
inline void load_x(const uint16_t* x, int part) {
  _tile_loadd(4, x + part * 2 * kTileElements, 64);
  if constexpr (kLower) _tile_loadd(5, x + part * 2 * kTileElements + kTileElements, 64);
}
inline void load_w(const uint16_t* w, int part) {
  _tile_loadd(6, w + part * 2 * kTileElements, 64);
  _tile_loadd(7, w + part * 2 * kTileElements + kTileElements, 64);
}

// c (32,32) (+)= the strip's terms by a column pair's; `steps` of 32 terms. From product to product one operand changes. As in
// tile-inl.h, the fences and the missing inlining keep loads and stores around the intrinsics in their places.
template <bool kLower>
__attribute__((noinline)) void block(float* c, const uint16_t* x, const uint16_t* w, int64_t steps, bool accumulate, const Fetch& next_x,
                                     const Fetch& next_w) {
  __asm__ volatile("" ::: "memory");
  constexpr int64_t kRow = kSide * 4;
  if (accumulate) {
    _tile_loadd(0, c, kRow);
    _tile_loadd(1, c + 16, kRow);
    if constexpr (kLower) _tile_loadd(2, c + 16 * kSide, kRow);
    if constexpr (kLower) _tile_loadd(3, c + 16 * kSide + 16, kRow);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kLower) _tile_zero(2);
    if constexpr (kLower) _tile_zero(3);
  }
  for (int64_t i = 0; i < steps; ++i, x += kStep, w += kStep) {
    next_x.part(i, steps);
    next_w.part(i, steps);
    load_x<kLower>(x, 0);
    load_w(w, 2);
    multiply<kLower>();
    load_w(w, 0);
    multiply<kLower>();
    load_w(w, 1);
    multiply<kLower>();
    load_x<kLower>(x, 1);
    multiply<kLower>();
    load_w(w, 0);
    multiply<kLower>();
    load_x<kLower>(x, 2);
    multiply<kLower>();
  }
  _tile_stored(0, c, kRow);
  _tile_stored(1, c + 16, kRow);
  if constexpr (kLower) _tile_stored(2, c + 16 * kSide, kRow);
  if constexpr (kLower) _tile_stored(3, c + 16 * kSide + 16, kRow);
  __asm__ volatile("" ::: "memory");
}

// Sums of a block to memory.
void finish(const SplitProblem& t, float* c, int64_t row, int64_t column) {
  const int64_t rows = least(kSide, t.m - row);
  for (int64_t j = 0; j < kSide && column + j < t.n; j += 16) {
    const int64_t columns = least(16, t.n - column - j);
    const auto m = static_cast<__mmask16>(columns >= 16 ? 0xffff : (1 << columns) - 1);
    const __m512 bias = t.bias ? _mm512_maskz_loadu_ps(m, t.bias + column + j) : _mm512_setzero_ps();
    for (int64_t r = 0; r < rows; ++r) {
      float* y = t.y + (row + r) * t.n + column + j;
      __m512 v = _mm512_add_ps(_mm512_load_ps(c + r * kSide + j), bias);
      if (t.accumulate) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(m, y));
      _mm512_mask_storeu_ps(y, m, v);
    }
  }
}

// The parts of f of a block: 32 terms of what follows. Rows and columns beyond the result get f of a bias or of 0, which meet nothing.
void finish_parts(const SplitProblem& t, float* c, int64_t row, int64_t column) {
  const int64_t rows = t.m - row > 16 ? kSide : 16;
  for (int64_t j = 0; j < kSide; j += 16) {
    const __m512 bias = t.bias ? load_floats(t.bias + column + j, t.n - column - j) : _mm512_setzero_ps();
    for (int64_t r = 0; r < rows; ++r) _mm512_store_ps(c + r * kSide + j, _mm512_add_ps(_mm512_load_ps(c + r * kSide + j), bias));
  }
  t.f(c, rows * kSide);
  uint16_t* to = static_cast<uint16_t*>(t.y_parts) + (row / kSide * (up(t.n, kSide) / kSide) + column / kSide) * kStep;
  for (int64_t r = 0; r < rows; ++r) {
    const Parts p = load_parts(c + r * kSide, kSide);
#pragma GCC unroll 3
    for (int i = 0; i < kParts; ++i) _mm512_store_si512(to + i * 2 * kTileElements + r * 32, p.part[i]);
  }
}

}  // namespace

int64_t split_elements(int64_t rows, int64_t k) { return up(rows, kSide) * up(k, 32) * kParts; }

// [strip][32 terms][part][32 rows][32].
void split_strips(uint16_t* parts, const float* x, int64_t m, int64_t k, int64_t s0, int64_t s1) {
  const int64_t steps = up(k, 32) / 32;
  for (int64_t s = s0; s < s1; ++s)
    for (int64_t r = 0; r < kSide; ++r) {
      const int64_t row = s * kSide + r;
      uint16_t* to = parts + s * steps * kStep + r * 32;
      for (int64_t q = 0; q < steps; ++q, to += kStep) {
        const Parts p = row < m ? load_parts(x + row * k + 32 * q, k - 32 * q) : Parts{};
#pragma GCC unroll 3
        for (int i = 0; i < kParts; ++i) _mm512_store_si512(to + i * 2 * kTileElements, p.part[i]);
      }
    }
}

// [slab][column pair][32 terms][part][16 columns]: a column pair of a slab is read in one go.
void split_pack(uint16_t* packed, const float* w, int64_t n, int64_t k, int64_t p0, int64_t p1) {
  const int64_t steps = up(k, 32) / 32, pairs = up(n, kSide) / kSide;
  alignas(64) uint16_t rows[kParts][kTileElements];
  for (int64_t k0 = 0; k0 < steps; k0 += kSlab) {
    const int64_t depth = least(kSlab, steps - k0);
    for (int64_t p = p0; p < p1; ++p) {
      uint16_t* to = packed + (k0 * pairs + p * depth) * kStep;
      for (int64_t q = k0; q < k0 + depth; ++q, to += kStep)
        for (int64_t half = 0; half < 2; ++half) {
          for (int64_t r = 0; r < 16; ++r) {
            const int64_t column = p * kSide + half * 16 + r;
            const Parts parts = column < n ? load_parts(w + column * k + 32 * q, k - 32 * q) : Parts{};
            for (int i = 0; i < kParts; ++i) _mm512_store_si512(rows[i] + r * 32, parts.part[i]);
          }
          for (int i = 0; i < kParts; ++i) pack_tile_of_rows(to + (2 * i + half) * kTileElements, rows[i], 32, 16, 32);
        }
    }
  }
}

size_t split_scratch_bytes() { return static_cast<size_t>(4 * kBlockFloats * kSplitStrips * kSplitPairs); }

void split_piece(const SplitProblem& t, int64_t s0, int64_t s1, int64_t p0, int64_t p1, void* scratch) {
  const TileScope tiles(TileUnit::kAmx);
  auto* sums = static_cast<float*>(scratch);
  const int64_t steps = up(t.k, 32) / 32, pairs = up(t.n, kSide) / kSide, strips = s1 - s0, across = p1 - p0;
  const auto* x = static_cast<const uint16_t*>(t.x) + s0 * steps * kStep;
  const auto* w = static_cast<const uint16_t*>(t.packed);
  for (int64_t k0 = 0; k0 < steps; k0 += kSlab) {
    const int64_t depth = least(kSlab, steps - k0), next = least(kSlab, steps - k0 - depth);
    const uint16_t* slab = w + (k0 * pairs + p0 * depth) * kStep;
    const auto* next_w = reinterpret_cast<const char*>(w + ((k0 + depth) * pairs + p0 * next) * kStep);
    for (int64_t s = 0; s < strips; ++s) {
      const uint16_t* strip = x + (s * steps + k0) * kStep;
      const auto* next_x = reinterpret_cast<const char*>(strip + depth * kStep);
      const bool lower = t.m - (s0 + s) * kSide > 16;
      for (int64_t p = 0; p < across; ++p) {
        float* c = sums + (p * strips + s) * kBlockFloats;
        (lower ? block<true> : block<false>)(c, strip, slab + p * depth * kStep, depth, k0 > 0, share(next_x, next * kStepLines, p, across),
                                             share(next_w, next * kStepLines * across, s * across + p, strips * across));
        if (next == 0) (t.f ? finish_parts : finish)(t, c, (s0 + s) * kSide, (p0 + p) * kSide);
      }
    }
  }
}

}  // namespace megaslide::gemm

#else
#include "base/error.h"

// No tile unit in this build: nothing calls these.
namespace megaslide::gemm {
int64_t split_elements(int64_t n, int64_t k) { return (n + 31) / 32 * 32 * ((k + 31) / 32 * 32) * 3; }
void split_strips(uint16_t*, const float*, int64_t, int64_t, int64_t, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
void split_pack(uint16_t*, const float*, int64_t, int64_t, int64_t, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
size_t split_scratch_bytes() { MS_CHECK(false, "no tile unit in this build"); }
void split_piece(const SplitProblem&, int64_t, int64_t, int64_t, int64_t, void*) { MS_CHECK(false, "no tile unit in this build"); }
}  // namespace megaslide::gemm
#endif
