// The bf16 sums of a piece on AMX tiles: 32 cells by 32 output channels at a time, the weights of one row of taps at a
// time so that they stay in the caches while the cells of the piece pass by.
#include "kernels/conv3d/pieces.h"

#if MEGASLIDE_TILE
#include <immintrin.h>

#include <algorithm>

#define MS_AMX __attribute__((target("amx-tile,amx-bf16"), noinline))

namespace megaslide::conv3d {
namespace {

// Longest run of input elements whose weights are used for all cells of the piece at once: 64 bytes each, so that those of
// 32 channels stay in the first-level cache.
constexpr int64_t kRun = 576;

// Eight tiles of 16 rows of 64 bytes. In static memory: to GCC 12 the intrinsic that loads it reads none, so that the
// stores into a local one would be dropped.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTiles;

// Sums that stay in the second-level cache while all taps of a group of channels pass by.
constexpr int64_t kSumElements = 131072;

struct Operands {
  const bf16 *a0, *a1;  // inputs of 16 cells each
  int64_t cell_bytes;   // from one cell to the next
  const bf16 *b0, *b1;  // panels
  int64_t steps;        // of 32 elements
  float *c0, *c1;       // sums of the 16 cells, rows of kBlock floats
  bool first;           // overwrite the sums
};

constexpr int kSumBytes = kBlock * 4;

// 2×2 tiles of sums (0 to 3), inputs in 4 and 5, weights in 6 and 7.
MS_AMX void two_by_two(const Operands& o) {
  if (o.first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, o.c0, kSumBytes);
    _tile_loadd(1, o.c0 + 16, kSumBytes);
    _tile_loadd(2, o.c1, kSumBytes);
    _tile_loadd(3, o.c1 + 16, kSumBytes);
  }
  for (int64_t k = 0; k < o.steps; ++k) {
    _tile_loadd(6, o.b0 + k * 512, 64);
    _tile_loadd(4, o.a0 + k * 32, o.cell_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, o.b1 + k * 512, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, o.a1 + k * 32, o.cell_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, o.c0, kSumBytes);
  _tile_stored(1, o.c0 + 16, kSumBytes);
  _tile_stored(2, o.c1, kSumBytes);
  _tile_stored(3, o.c1 + 16, kSumBytes);
}

// One or two rows of tiles by one or two panels.
MS_AMX void general(const Operands& o) {
  const bool right = o.b1 != nullptr, lower = o.a1 != nullptr;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (!o.first) {
    _tile_loadd(0, o.c0, kSumBytes);
    if (right) _tile_loadd(1, o.c0 + 16, kSumBytes);
    if (lower) _tile_loadd(2, o.c1, kSumBytes);
    if (lower && right) _tile_loadd(3, o.c1 + 16, kSumBytes);
  }
  for (int64_t k = 0; k < o.steps; ++k) {
    _tile_loadd(6, o.b0 + k * 512, 64);
    _tile_loadd(4, o.a0 + k * 32, o.cell_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if (right) {
      _tile_loadd(7, o.b1 + k * 512, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (lower) {
      _tile_loadd(5, o.a1 + k * 32, o.cell_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if (right) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, o.c0, kSumBytes);
  if (right) _tile_stored(1, o.c0 + 16, kSumBytes);
  if (lower) _tile_stored(2, o.c1, kSumBytes);
  if (lower && right) _tile_stored(3, o.c1 + 16, kSumBytes);
}

MS_AMX void configure() { _tile_loadconfig(&kTiles); }
MS_AMX void release() { _tile_release(); }

// The cells of a piece against one block of channels and `steps` of one row of taps.
void sweep(const Piece<bf16>& p, const bf16* input, Operands o, float* sums) {
  const int64_t across = p.pitch / kTile, tiles = p.rows * across;
  const auto cells = [&](int64_t tile) {
    return input + tile / across * p.result_row + tile % across * kTile * p.result_cell;
  };
  for (int64_t t = 0; t < tiles; t += 2) {
    const bool pair = t + 1 < tiles;
    o.a0 = cells(t);
    o.a1 = pair ? cells(t + 1) : nullptr;
    o.c0 = sums + t * kTile * kBlock;
    o.c1 = o.c0 + kTile * kBlock;
    if (pair && o.b1)
      two_by_two(o);
    else
      general(o);
  }
}

}  // namespace

void amx_piece(const Piece<bf16>& p) {
  configure();  // at every piece: other libraries release the tiles
  const auto* weights = static_cast<const bf16*>(p.packed);
  const int64_t panel = p.run * kConvPanel;
  const int64_t group = std::max<int64_t>(1, kSumElements / p.block_elements()) * 2;
  for (int64_t g = 0; g < p.panels; g += group) {
    bool first = true;
    for (int64_t r = 0; r < p.kt * p.kh; ++r) {
      const bf16* frame = p.frames[r / p.kh];
      if (!frame) continue;
      const bf16* input = frame + r % p.kh * p.row;
      for (int64_t k = 0; k < p.run; k += kRun, first = false) {
        const int64_t steps = std::min(kRun, p.run - k) / 32;
        for (int64_t n = g; n < std::min(g + group, p.panels); n += 2) {
          const bf16* b = weights + (r * p.panels + n) * panel + k * kConvPanel;
          const bf16* right = n + 1 < p.panels ? b + panel : nullptr;
          sweep(p, input + k, {nullptr, nullptr, p.result_cell * 2, b, right, steps, nullptr, nullptr, first},
                p.sums + n / 2 * p.block_elements());
        }
      }
    }
  }
  release();
}

}  // namespace megaslide::conv3d

#else
#include "base/error.h"
namespace megaslide::conv3d {
void amx_piece(const Piece<bf16>&) { MS_CHECK(false, "no AMX in this build"); }
}  // namespace megaslide::conv3d
#endif
