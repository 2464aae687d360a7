// Products by parts on AMX. The inputs of a piece are split into its thread's memory, cells of 32 channels one after the other, so that 16
// neighbouring cells of a tap are a tile in place; results are numbered through the rows of that memory, those between two rows are computed
// and dropped. A sum goes through all taps of 32 channels before the next 32.
#include "kernels/conv3d/split.h"

#if MEGASLIDE_TILE
#include "kernels/tile/parts-inl.h"

namespace megaslide::conv3d {
namespace {

inline constexpr int64_t kSide = 32;  // channels of a column pair
// Parts that stay in the second-level cache beside a pair's weights and sums.
inline constexpr int64_t kPartsBytes = 768 << 10;

inline int64_t up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// How the terms of a sum are cut. A unit is 32 of them: a tap of 32 channels, or two neighbouring taps of up to 16.
struct Terms {
  explicit Terms(const SplitShape& s) : width(s.in <= 16 && s.kw % 2 == 0 ? 16 : 32), steps((s.in + width - 1) / width), across(s.kw * width / 32) {}
  int64_t width;   // of a cell in the parts
  int64_t steps;   // of that many channels
  int64_t across;  // units along a row of taps
};

int64_t panels_of(const SplitShape& s) { return (s.out + 15) / 16; }
int64_t units_of(const SplitShape& s) { return Terms(s).steps * s.kt * s.kh * Terms(s).across; }

// The parts of a piece: [frame][step][part][row phase][rows][pitch · stride cells][width]. A stride takes every so many rows apart; along a
// row it is one of tiles' rows.
struct Plan {
  Plan(const SplitShape& s, int64_t rows, int64_t columns, int64_t stride)
      : terms(s),
        pitch(columns - 1 + (s.kw + stride - 1) / stride),
        tiles(((rows - 1) * pitch + columns + 15) / 16),
        phases(least(stride, s.kh)),
        phase(up(stride * (16 * tiles - 1) + (s.kh - 1) / stride * stride * pitch + s.kw + 1, 2) * terms.width),
        step(kParts * phases * phase),
        group(most(1, least(terms.steps, kPartsBytes / (2 * s.kt * step)))) {}
  Terms terms;
  int64_t pitch, tiles;
  int64_t phases, phase, step;  // elements of a phase, of a step of one frame
  int64_t group;                // steps at a time
};

struct Unit {
  int64_t a, w;  // elements
};
int64_t table_bytes(const SplitShape& s, const Plan& p) { return up(p.group * s.kt * s.kh * p.terms.across * static_cast<int64_t>(sizeof(Unit)), 64); }

// Units of a sum, and what is read beside them.
struct Run {
  const Unit* units;
  int64_t count;
  int64_t row_bytes;  // of a tile of A
  int64_t part;       // elements of A from part to part
  bool accumulate;
  const char* next;  // weights wanted soon
  int64_t lines;     // of them
};
inline void fetch(const Run& r, int64_t i) {
  for (int64_t l = r.lines * i / r.count; l < r.lines * (i + 1) / r.count; ++l) _mm_prefetch(r.next + 64 * l, _MM_HINT_T1);
}

inline constexpr int64_t kSumRow = kSide * 4, kTileSums = 16 * kSide;

// Two panels: sums in 0 to 3, A in 4 and 5, B in 6 and 7. Order as in split_gemm.cc, from product to product one operand changes; the fences
// and the missing inlining keep loads and stores around the intrinsics in their places.
template <bool kLower>
inline void load_a(const uint16_t* a, int64_t below, int64_t row_bytes) {
  _tile_loadd(4, a, row_bytes);
  if constexpr (kLower) _tile_loadd(5, a + below, row_bytes);
}
inline void load_b(const uint16_t* b) {
  _tile_loadd(6, b, 64);
  _tile_loadd(7, b + kTileElements, 64);
}
template <bool kLower>
inline void multiply() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kLower) {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}
template <bool kLower>
__attribute__((noinline)) void two_panels(const Run& r, float* c, const uint16_t* a, const uint16_t* w) {
  __asm__ volatile("" ::: "memory");
  if (r.accumulate) {
    _tile_loadd(0, c, kSumRow);
    _tile_loadd(1, c + 16, kSumRow);
    if constexpr (kLower) _tile_loadd(2, c + kTileSums, kSumRow);
    if constexpr (kLower) _tile_loadd(3, c + kTileSums + 16, kSumRow);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kLower) _tile_zero(2);
    if constexpr (kLower) _tile_zero(3);
  }
  const int64_t below = 8 * r.row_bytes;
  for (int64_t i = 0; i < r.count; ++i) {
    const uint16_t *x = a + r.units[i].a, *b = w + r.units[i].w;
    fetch(r, i);
    load_a<kLower>(x, below, r.row_bytes);
    load_b(b + 4 * kTileElements);
    multiply<kLower>();
    load_b(b);
    multiply<kLower>();
    load_b(b + 2 * kTileElements);
    multiply<kLower>();
    load_a<kLower>(x + r.part, below, r.row_bytes);
    multiply<kLower>();
    load_b(b);
    multiply<kLower>();
    load_a<kLower>(x + 2 * r.part, below, r.row_bytes);
    multiply<kLower>();
  }
  _tile_stored(0, c, kSumRow);
  _tile_stored(1, c + 16, kSumRow);
  if constexpr (kLower) _tile_stored(2, c + kTileSums, kSumRow);
  if constexpr (kLower) _tile_stored(3, c + kTileSums + 16, kSumRow);
  __asm__ volatile("" ::: "memory");
}

// One panel: up to four tiles of cells, sums in 0 to 3, B in 4, A in the others.
template <int kTiles>
inline void column(const uint16_t* a, int64_t below, int64_t row_bytes) {
  _tile_loadd(5, a, row_bytes);
  _tile_dpbf16ps(0, 5, 4);
  if constexpr (kTiles > 1) {
    _tile_loadd(6, a + below, row_bytes);
    _tile_dpbf16ps(1, 6, 4);
  }
  if constexpr (kTiles > 2) {
    _tile_loadd(7, a + 2 * below, row_bytes);
    _tile_dpbf16ps(2, 7, 4);
  }
  if constexpr (kTiles > 3) {
    _tile_loadd(5, a + 3 * below, row_bytes);
    _tile_dpbf16ps(3, 5, 4);
  }
}
template <int kTiles>
__attribute__((noinline)) void one_panel(const Run& r, float* c, const uint16_t* a, const uint16_t* w) {
  __asm__ volatile("" ::: "memory");
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (r.accumulate) {
    _tile_loadd(0, c, kSumRow);
    if constexpr (kTiles > 1) _tile_loadd(1, c + kTileSums, kSumRow);
    if constexpr (kTiles > 2) _tile_loadd(2, c + 2 * kTileSums, kSumRow);
    if constexpr (kTiles > 3) _tile_loadd(3, c + 3 * kTileSums, kSumRow);
  }
  const int64_t below = 8 * r.row_bytes;
  for (int64_t i = 0; i < r.count; ++i) {
    const uint16_t *x = a + r.units[i].a, *b = w + r.units[i].w;
    fetch(r, i);
    _tile_loadd(4, b + 2 * kTileElements, 64);
    column<kTiles>(x, below, r.row_bytes);
    _tile_loadd(4, b, 64);
    column<kTiles>(x, below, r.row_bytes);
    _tile_loadd(4, b + kTileElements, 64);
    column<kTiles>(x, below, r.row_bytes);
    column<kTiles>(x + r.part, below, r.row_bytes);
    _tile_loadd(4, b, 64);
    column<kTiles>(x + r.part, below, r.row_bytes);
    column<kTiles>(x + 2 * r.part, below, r.row_bytes);
  }
  _tile_stored(0, c, kSumRow);
  if constexpr (kTiles > 1) _tile_stored(1, c + kTileSums, kSumRow);
  if constexpr (kTiles > 2) _tile_stored(2, c + 2 * kTileSums, kSumRow);
  if constexpr (kTiles > 3) _tile_stored(3, c + 3 * kTileSums, kSumRow);
  __asm__ volatile("" ::: "memory");
}

using Block = void (*)(const Run&, float*, const uint16_t*, const uint16_t*);
constexpr Block kTwoPanels[] = {&two_panels<false>, &two_panels<true>};
constexpr Block kOnePanel[] = {&one_panel<1>, &one_panel<2>, &one_panel<3>, &one_panel<4>};

// Steps [begin, end) of all cells that the piece reads.
void split_inputs(const SplitPiece& p, const Plan& plan, int64_t begin, int64_t end) {
  const int64_t rows = (p.rows - 1) * p.stride + p.shape.kh, columns = (p.columns - 1) * p.stride + p.shape.kw;
  auto* parts = static_cast<uint16_t*>(p.parts);
  const int64_t part = plan.phases * plan.phase;
  for (int64_t t = 0; t < p.shape.kt; ++t) {
    if (!p.frames[t]) continue;
    for (int64_t y = 0; y < rows; ++y) {
      if (y % p.stride >= plan.phases) continue;
      const float* from = p.frames[t] + y * p.row;
      uint16_t* to = parts + t * (end - begin) * plan.step + y % p.stride * plan.phase + y / p.stride * p.stride * plan.pitch * plan.terms.width;
      const auto put = [&](uint16_t* at, const Parts& values) {
#pragma GCC unroll 3
        for (int i = 0; i < kParts; ++i) _mm512_storeu_si512(at + i * part, values.part[i]);
      };
      if (plan.terms.width == 16) {
        // Two cells at a time; the last vector ends in cells that nothing valid reads.
        for (int64_t x = 0; x < columns; x += 2) put(to + 16 * x, load_parts(from + 16 * x, 16 * (columns - x)));
        continue;
      }
      for (int64_t x = 0; x < columns; ++x, from += p.cell, to += 32)
        for (int64_t s = begin; s < end; ++s) put(to + (s - begin) * plan.step, load_parts(from + 32 * s, p.cell - 32 * s));
    }
  }
}

// Units of steps [begin, end), in order.
int64_t list_units(Unit* units, const SplitPiece& p, const Plan& plan, int64_t begin, int64_t end, int64_t unit_elements) {
  const SplitShape& s = p.shape;
  int64_t n = 0;
  for (int64_t step = begin; step < end; ++step)
    for (int64_t t = 0; t < s.kt; ++t) {
      if (!p.frames[t]) continue;
      for (int64_t i = 0; i < s.kh; ++i)
        for (int64_t j = 0; j < plan.terms.across; ++j) {
          const int64_t a = (t * (end - begin) + step - begin) * plan.step + i % p.stride * plan.phase +
                            (i / p.stride * p.stride * plan.pitch) * plan.terms.width + 32 * j;
          const int64_t w = ((step * s.kt + t) * s.kh + i) * plan.terms.across + j;
          units[n++] = {a, w * unit_elements};
        }
    }
  return n;
}

}  // namespace

int64_t split_pairs(const SplitShape& s) { return (s.out + kSide - 1) / kSide; }
int64_t split_weight_bytes(const SplitShape& s) { return units_of(s) * panels_of(s) * kParts * kTileBytes; }

void split_pack_weights(void* packed, const float* w, const SplitShape& s, int64_t p0, int64_t p1) {
  const Terms terms(s);
  const int64_t units = units_of(s), taps = s.kt * s.kh * s.kw;
  alignas(64) float values[32];
  alignas(64) uint16_t rows[kParts][kTileElements];
  for (int64_t p = p0; p < p1; ++p) {
    const int64_t panels = least(2, panels_of(s) - 2 * p);
    uint16_t* to = static_cast<uint16_t*>(packed) + p * units * 2 * kParts * kTileElements;
    for (int64_t u = 0; u < units; ++u, to += panels * kParts * kTileElements) {
      const int64_t j = u % terms.across, row = u / terms.across % (s.kt * s.kh), step = u / terms.across / (s.kt * s.kh);
      for (int64_t half = 0; half < panels; ++half) {
        for (int64_t r = 0; r < 16; ++r) {
          const int64_t o = p * kSide + half * 16 + r;
          for (int64_t k = 0; k < 32; ++k) {
            const int64_t c = step * terms.width + k % terms.width, tap = row * s.kw + j * (32 / terms.width) + k / terms.width;
            values[k] = o < s.out && c < s.in ? w[(o * s.in + c) * taps + tap] : 0.0F;
          }
          const Parts parts = load_parts(values, 32);
          for (int i = 0; i < kParts; ++i) _mm512_store_si512(rows[i] + r * 32, parts.part[i]);
        }
        for (int i = 0; i < kParts; ++i) pack_tile_of_rows(to + (panels * i + half) * kTileElements, rows[i], 32, 16, 32);
      }
    }
  }
}

int64_t split_pitch(const SplitShape& s, int64_t columns, int64_t stride) { return Plan(s, 1, columns, stride).pitch; }
int64_t split_result_cells(const SplitShape& s, int64_t rows, int64_t columns, int64_t stride) { return 16 * Plan(s, rows, columns, stride).tiles; }
int64_t split_scratch_bytes(const SplitShape& s, int64_t rows, int64_t columns, int64_t stride) {
  const Plan plan(s, rows, columns, stride);
  return up(2 * plan.group * s.kt * plan.step, 64) + table_bytes(s, plan);
}

void split_sums(const SplitPiece& p) {
  const SplitShape& s = p.shape;
  const Plan plan(s, p.rows, p.columns, p.stride);
  const TileScope scope(TileUnit::kAmx);
  const int64_t pairs = split_pairs(s), panels = panels_of(s), pair_elements = units_of(s) * 2 * kParts * kTileElements;
  const auto* weights = static_cast<const uint16_t*>(p.packed);
  const auto* parts = static_cast<const uint16_t*>(p.parts);
  auto* units = reinterpret_cast<Unit*>(static_cast<char*>(p.parts) + up(2 * plan.group * s.kt * plan.step, 64));
  const int64_t row_bytes = 2 * p.stride * plan.terms.width;
  for (int64_t begin = 0; begin < plan.terms.steps; begin += plan.group) {
    const int64_t end = least(begin + plan.group, plan.terms.steps);
    split_inputs(p, plan, begin, end);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t width = least(2, panels - 2 * pair), unit_elements = width * kParts * kTileElements;
      const int64_t count = list_units(units, p, plan, begin, end, unit_elements);
      const int64_t blocks = width == 2 ? 2 : 4;
      const uint16_t* w = weights + pair * pair_elements;
      // The next pair's, or the next steps'.
      const uint16_t* next = pair + 1 < pairs ? w + pair_elements + units[0].w : weights + units[0].w;
      const int64_t lines = pair + 1 < pairs || end < plan.terms.steps ? count * unit_elements / 32 : 0;
      float* c = p.sums + pair * plan.tiles * kTileSums;
      for (int64_t t = 0; t < plan.tiles; t += blocks) {
        const int64_t first = lines * t / plan.tiles, last = lines * least(t + blocks, plan.tiles) / plan.tiles;
        const Run run{units, count, row_bytes, plan.phases * plan.phase, begin > 0, reinterpret_cast<const char*>(next) + 64 * first, last - first};
        const int64_t n = least(blocks, plan.tiles - t);
        (width == 2 ? kTwoPanels : kOnePanel)[n - 1](run, c + t * kTileSums, parts + t * 8 * row_bytes, w);
      }
    }
  }
}

}  // namespace megaslide::conv3d

#else
#include "base/error.h"

// No tile unit in this build: nothing calls these.
namespace megaslide::conv3d {
int64_t split_weight_bytes(const SplitShape&) { MS_CHECK(false, "no tile unit in this build"); }
int64_t split_pairs(const SplitShape&) { MS_CHECK(false, "no tile unit in this build"); }
void split_pack_weights(void*, const float*, const SplitShape&, int64_t, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
int64_t split_pitch(const SplitShape&, int64_t, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
int64_t split_result_cells(const SplitShape&, int64_t, int64_t, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
int64_t split_scratch_bytes(const SplitShape&, int64_t, int64_t, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
void split_sums(const SplitPiece&) { MS_CHECK(false, "no tile unit in this build"); }
}  // namespace megaslide::conv3d
#endif
