#include "kernels/conv3d/split.h"

#if MEGASLIDE_TILE
#include "kernels/tile/parts-inl.h"

namespace megaslide::conv3d {
namespace {

inline constexpr int64_t kSide = kSplitSide;
// Input elements that are fetched before they are split.
inline constexpr int64_t kAhead = 1024;

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t panels_of(const SplitShape& s) { return (s.out + 15) / 16; }

// Where the terms of a unit are, in elements.
struct Unit {
  int64_t a, w;
};
// What a sum goes through, and what is fetched meanwhile.
struct Run {
  const Unit* units;  // of one step
  int64_t count, steps;
  int64_t a_step, w_step;  // elements from one step to the next
  int64_t row_bytes;       // of a tile of A
  int64_t part;            // elements of A from part to part
  bool accumulate;
  const char* next;  // weights
  int64_t lines;
  const SplitTouched* touched;  // of cells [first, first + cells), `offset` bytes behind each
  int64_t offset, first, cells, pitch;
};
inline void fetch(const Run& r, int64_t i) {
  const int64_t of = r.steps * r.count;
  for (int64_t l = r.lines * i / of; l < r.lines * (i + 1) / of; ++l) fetch_line(r.next + 64 * l);
  for (int64_t k = r.cells * i / of; k < r.cells * (i + 1) / of; ++k) {
    const auto cell = static_cast<uint32_t>(r.first + k), pitch = static_cast<uint32_t>(r.pitch);
    const int64_t at = r.offset + cell / pitch * r.touched->row + cell % pitch * r.touched->cell;
    for (const char* frame : r.touched->frames) {
      if (!frame) continue;
      fetch_line<_MM_HINT_T0>(frame + at);
      fetch_line<_MM_HINT_T0>(frame + at + r.touched->pair - 1);
    }
  }
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
  for (int64_t i = 0, n = r.steps * r.count; i < n; ++i) {
    const Unit& u = r.units[i % r.count];
    const uint16_t *x = a + i / r.count * r.a_step + u.a, *b = w + i / r.count * r.w_step + u.w;
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
  for (int64_t i = 0, n = r.steps * r.count; i < n; ++i) {
    const Unit& u = r.units[i % r.count];
    const uint16_t *x = a + i / r.count * r.a_step + u.a, *b = w + i / r.count * r.w_step + u.w;
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

// Numbers of a row of cells: [cell][channel] to [step][cell][width], steps [begin, end).
struct RowParts {
  const SplitPlan& plan;
  int64_t step;  // elements of the parts from one step to the next
  void put(uint16_t* at, const float* from, int64_t count) const {
    _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(from + kAhead + 16), _MM_HINT_T0);
    const Parts p = load_parts(from, count);
#pragma GCC unroll 3
    for (int i = 0; i < kParts; ++i) _mm512_storeu_si512(at + i * plan.part, p.part[i]);
  }
  void row(uint16_t* to, const float* from, int64_t cells, int64_t cell, int64_t begin, int64_t end) const {
    if (plan.width == 16) {
      // Two cells at a time; the last vector may end in a cell of zeros that no result needs.
      for (int64_t x = 0; x < cells; x += 2) put(to + 16 * x, from + 16 * x, 16 * (cells - x));
      return;
    }
    for (int64_t x = 0; x < cells; ++x, from += cell, to += 32)
      for (int64_t s = begin; s < end; ++s) put(to + (s - begin) * step, from + 32 * s, cell - 32 * s);
  }
};

// Steps [begin, end) of all cells that the piece reads.
void split_inputs(const SplitPiece& p, const SplitPlan& plan, int64_t begin, int64_t end) {
  const int64_t stride = p.shape.stride, rows = (p.rows - 1) * stride + p.shape.kh, columns = (p.columns - 1) * stride + p.shape.kw;
  const RowParts parts{plan, p.shape.kt * kParts * plan.part};
  for (int64_t t = 0; t < p.shape.kt; ++t) {
    if (!p.frames[t]) continue;
    uint16_t* to = static_cast<uint16_t*>(p.scratch) + t * kParts * plan.part;
    for (int64_t y = 0; y < rows; ++y)
      if (y % stride < plan.phases)
        parts.row(to + y % stride * plan.phase + y / stride * stride * plan.pitch * plan.width, p.frames[t] + y * p.row, columns, p.cell, begin, end);
  }
}

// The units of one step, from its first; returns how many.
int64_t list_units(Unit* units, const SplitPiece& p, const SplitPlan& plan, int64_t unit_elements) {
  const SplitShape& s = p.shape;
  int64_t n = 0;
  for (int64_t t = 0; t < s.kt; ++t) {
    if (!p.frames[t]) continue;
    for (int64_t i = 0; i < s.kh; ++i)
      for (int64_t j = 0; j < plan.across; ++j)
        units[n++] = {t * kParts * plan.part + i % s.stride * plan.phase + i / s.stride * s.stride * plan.pitch * plan.width + 32 * j,
                      ((t * s.kh + i) * plan.across + j) * unit_elements};
  }
  return n;
}

}  // namespace


void split_pack_weights(void* packed, const float* w, const SplitShape& s, int64_t p0, int64_t p1) {
  const SplitPlan plan = split_plan(s, 1, 1);
  const int64_t units = split_units(s), rows = s.kt * s.kh;
  alignas(64) float values[32];
  alignas(64) uint16_t parts[kParts][kTileElements];
  for (int64_t p = p0; p < p1; ++p) {
    const int64_t panels = least(2, panels_of(s) - 2 * p);
    uint16_t* to = static_cast<uint16_t*>(packed) + p * units * 2 * kParts * kTileElements;
    for (int64_t u = 0; u < units; ++u, to += panels * kParts * kTileElements) {
      const int64_t first_tap = u / plan.across % rows * s.kw + u % plan.across * (32 / plan.width), first = u / plan.across / rows * plan.width;
      for (int64_t half = 0; half < panels; ++half) {
        for (int64_t n = 0; n < 16; ++n) {
          const int64_t o = p * kSide + half * 16 + n;
          for (int64_t k = 0; k < 32; ++k) {
            const int64_t c = first + k % plan.width;
            values[k] = o < s.out && c < s.in ? w[(o * s.in + c) * rows * s.kw + first_tap + k / plan.width] : 0.0F;
          }
          const Parts numbers = load_parts(values, 32);
          for (int i = 0; i < kParts; ++i) _mm512_store_si512(parts[i] + n * 32, numbers.part[i]);
        }
        for (int i = 0; i < kParts; ++i) pack_tile_of_rows(to + (panels * i + half) * kTileElements, parts[i], 32, 16, 32);
      }
    }
  }
}

void split_sums(const SplitPiece& p, const SplitPlan& plan) {
  const SplitShape& s = p.shape;
  const TileScope scope(TileUnit::kAmx);
  const int64_t pairs = (s.out + kSide - 1) / kSide, step_units = s.kt * s.kh * plan.across;
  const int64_t pair_elements = split_units(s) * 2 * kParts * kTileElements;
  const auto* parts = static_cast<const uint16_t*>(p.scratch);
  auto* units = reinterpret_cast<Unit*>(static_cast<char*>(p.scratch) + 2 * plan.group * s.kt * kParts * plan.part);
  const int64_t row_bytes = 2 * s.stride * plan.width;
  for (int64_t begin = 0; begin < plan.steps; begin += plan.group) {
    const int64_t steps = least(plan.group, plan.steps - begin);
    const bool complete = begin + steps == plan.steps;
    split_inputs(p, plan, begin, begin + steps);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t panels = least(2, panels_of(s) - 2 * pair), unit_elements = panels * kParts * kTileElements, w_step = step_units * unit_elements;
      const int64_t count = list_units(units, p, plan, unit_elements), height = panels == 2 ? 2 : 4;
      const uint16_t* w = static_cast<const uint16_t*>(p.packed) + pair * pair_elements + begin * w_step;
      const uint16_t* next = pair + 1 < pairs ? w + pair_elements : w + steps * w_step - pair * pair_elements;
      const int64_t lines = pair + 1 < pairs || !complete ? steps * w_step / 32 : 0;
      for (int64_t t = 0; t < plan.tiles; t += height) {
        const int64_t n = least(height, plan.tiles - t), first = lines * t / plan.tiles, last = lines * (t + n) / plan.tiles;
        const Run run{.units = units, .count = count, .steps = steps, .a_step = s.kt * kParts * plan.part, .w_step = w_step, .row_bytes = row_bytes,
                      .part = plan.part, .accumulate = begin > 0, .next = reinterpret_cast<const char*>(next) + 64 * first, .lines = last - first,
                      .touched = &p.touched, .offset = pair * p.touched.pair, .first = 16 * t, .cells = complete ? 16 * n : 0, .pitch = plan.pitch};
        float* c = p.kept ? p.sums + (pair * plan.tiles + t) * kTileSums : p.sums;
        (panels == 2 ? kTwoPanels : kOnePanel)[n - 1](run, c, parts + t * 8 * row_bytes, w);
        if (complete) p.done(p.context, c, pair, 16 * t, 16 * n);
      }
    }
  }
}

}  // namespace megaslide::conv3d

#else
#include "base/error.h"

// No tile unit in this build: nothing calls these.
namespace megaslide::conv3d {
void split_pack_weights(void*, const float*, const SplitShape&, int64_t, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
void split_sums(const SplitPiece&, const SplitPlan&) { MS_CHECK(false, "no tile unit in this build"); }
}  // namespace megaslide::conv3d
#endif
