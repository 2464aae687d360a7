// How the products of a linear layer are cut: by the sizes alone, so that results do not depend on the threads.
#pragma once
#include <algorithm>
#include <cstdint>

namespace megaslide::gemm {

inline int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// The step that cuts n into equal parts no larger than about `target`: a multiple of `unit`, and an even number of parts,
// so that two threads end together.
inline int64_t balanced_step(int64_t n, int64_t target, int64_t unit) {
  if (n <= target) return std::max<int64_t>(n, 1);
  const int64_t steps = round_up((n + target - 1) / target, 2);
  return std::min(n, round_up((n + steps - 1) / steps, unit));
}

// A piece smaller than this many operations costs more to hand to another thread than it saves.
constexpr double kMinPieceFlops = 8e6;

// Rows of x or dy a piece: about 160 rows keep a panel of the weights in the second-level cache busy.
inline int64_t row_step(int64_t m, int64_t n, int64_t k) {
  if (m <= 32 || 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) < 2 * kMinPieceFlops)
    return std::max<int64_t>(m, 1);
  if (m <= 160) return round_up((m + 1) / 2, 16);
  return balanced_step(m, 160, 16);
}

// The reduction of one packed product. Longer ones are cut and accumulated: at 8960 oneDNN 2.6 runs at half its speed
// (prototype/cpu), at 1536 at full speed.
inline int64_t depth_step(int64_t k) {
  const int64_t steps = (k + 1535) / 1536;
  return steps <= 1 ? std::max<int64_t>(k, 1) : round_up((k + steps - 1) / steps, 64);
}

// Piece of dw: rows of N by columns of K.
struct WeightPiece {
  int64_t rows, columns;
};
inline WeightPiece weight_piece(int64_t m, int64_t n, int64_t k) {
  if (2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) < 2 * kMinPieceFlops)
    return {n, k};
  const int64_t rows = n <= 384 && n > 64 ? round_up((n + 1) / 2, 32) : balanced_step(n, 384, 32);
  return {rows, balanced_step(k, 1024, 32)};
}

// Pieces of a product (m, n) of width k on a tile unit; rows are a multiple of 64, columns of 32, unless there is one.
struct TilePieces {
  TilePieces(int64_t m_, int64_t n_, int64_t k) : m(m_), n(n_), rows(balanced_step(m, 256, 64)), columns(balanced_step(n, 512, 32)) {
    if (rows < m || columns < n) return;
    if (2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) < 2 * kMinPieceFlops) return;
    if (m > 64)
      rows = round_up((m + 1) / 2, 64);
    else
      columns = round_up((n + 1) / 2, 32);
  }
  int64_t across() const { return (n + columns - 1) / columns; }
  int64_t count() const { return (m + rows - 1) / rows * across(); }
  int64_t m, n, rows, columns;
};

// Bytes reserved for one depth step of a packed weight: every layout that oneDNN chooses pads to 64 at most.
inline int64_t packed_step_bytes(int64_t columns, int64_t depth, int64_t element_bytes) {
  return round_up(columns, 64) * round_up(depth, 64) * element_bytes;
}

// Numbers of a packed B (width, columns) of tile_gemm.h, or of the panels of an A (columns, width).
inline int64_t tile_packed_elements(int64_t width, int64_t columns) {
  return round_up(width, 32) * round_up(columns, 32);
}

}  // namespace megaslide::gemm
