#include <algorithm>

#include "kernels/conv3d/split.h"

namespace megaslide::conv3d {
namespace {

constexpr int64_t kParts = 3;
constexpr int64_t kUnitBytes = 16;  // of the table of a step's units, behind the parts
// Parts that stay in the second-level cache beside a pair's weights and sums.
constexpr int64_t kPartsBytes = 768 << 10;
constexpr int64_t kMaxCells = 560, kMinCells = 128;  // of a piece; fewer would read the weights too often
constexpr int64_t kMinPieces = 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Cycles of a piece, by measurement on one processor: what matters is how they compare between pieces.
int64_t piece_cost(const SplitShape& s, const SplitPlan& p, int64_t rows, int64_t columns) {
  constexpr int64_t kUnitCycles = 450, kBlockCycles = 400;
  const int64_t panels = ceil_div(s.out, 16), blocks = panels / 2 * ceil_div(p.tiles, 2) + panels % 2 * ceil_div(p.tiles, 4);
  const int64_t cells = s.kt * ((rows - 1) * s.stride + s.kh) * ((columns - 1) * s.stride + s.kw);
  return blocks * (split_units(s) * kUnitCycles + ceil_div(p.steps, p.group) * kBlockCycles) + cells * p.steps * p.width + split_weight_bytes(s) / 16;
}

}  // namespace

SplitPlan split_plan(const SplitShape& s, int64_t rows, int64_t columns) {
  SplitPlan p{};
  p.width = s.in <= 16 && s.kw % 2 == 0 ? 16 : 32;
  p.steps = ceil_div(s.in, p.width);
  p.across = s.kw * p.width / 32;
  p.pitch = columns - 1 + ceil_div(s.kw, s.stride);
  p.tiles = ceil_div((rows - 1) * p.pitch + columns, 16);
  p.phases = std::min(s.stride, s.kh);
  // Up to the last cell that a tile reads, and one more: cells of 16 channels are written in pairs.
  const int64_t cells = s.stride * (16 * p.tiles - 1) + (s.kh - 1) / s.stride * s.stride * p.pitch + s.kw + 1;
  p.phase = ceil_div(cells, 2) * 2 * p.width;
  p.part = p.phases * p.phase;
  const int64_t step_bytes = 2 * s.kt * kParts * p.part;
  p.group = std::clamp<int64_t>(kPartsBytes / step_bytes, 1, p.steps);
  p.bytes = p.group * step_bytes + ceil_div(s.kt * s.kh * p.across * kUnitBytes, 64) * 64;
  return p;
}

int64_t split_units(const SplitShape& s) {
  const SplitPlan p = split_plan(s, 1, 1);
  return p.steps * s.kt * s.kh * p.across;
}

int64_t split_weight_bytes(const SplitShape& s) { return split_units(s) * ceil_div(s.out, 16) * kParts * 1024; }

void split_piece_sides(const SplitShape& s, int64_t rows, int64_t columns, int64_t* piece_rows, int64_t* piece_columns) {
  const int64_t target = std::clamp(rows * columns / kMinPieces, kMinCells, kMaxCells);
  int64_t least = INT64_MAX;
  for (int64_t across = ceil_div(columns, target); across <= std::max(ceil_div(columns, target), ceil_div(columns, 16)); ++across) {
    const int64_t w = ceil_div(columns, across), first = ceil_div(rows, std::min(rows, target / w));
    for (int64_t down = first; down <= std::min(rows, first + 3); ++down) {
      const int64_t h = ceil_div(rows, down);
      // Threads end together where the pieces are a multiple of them.
      const int64_t pieces = ceil_div(ceil_div(rows, h) * ceil_div(columns, w), kMinPieces) * kMinPieces;
      const int64_t cost = pieces * piece_cost(s, split_plan(s, h, w), h, w);
      if (cost >= least) continue;
      least = cost;
      *piece_rows = h;
      *piece_columns = w;
    }
  }
}

}  // namespace megaslide::conv3d
