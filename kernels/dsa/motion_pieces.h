// Entry points of the SIMD part of the motion term on the CPU, one call a piece of work: some rows of one frame against
// one other frame.
//
// Frames lie in padded planes, so that a displacement is one distance whatever the token: rows are `stride` apart, the
// gap of 4 zeros behind each row serves both its neighbours, and `margin` values in front and behind cover the rows that
// a patch and a search reach outside the grid. What lies outside the grid is 0.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/dsa/motion.h"

namespace megaslide {

struct MotionGrid {
  explicit MotionGrid(const DsaShape& s)
      : height(s.height), width(s.width), stride(s.width + kMotionSearch), margin(6 * stride + 64),
        size((2 * margin + height * stride + 15) / 16 * 16) {}
  int64_t at(int64_t h, int64_t w) const { return margin + h * stride + w; }
  // Rows that one piece takes: about a thousand tokens, whose arrays stay in the second cache.
  int64_t piece_rows() const { return std::min(height, std::max(int64_t{4}, 1024 / stride)); }
  int64_t pieces() const { return (height + piece_rows() - 1) / piece_rows(); }

  int64_t height, width, stride, margin, size;
};

// The rows [first, end) of a frame and another frame. A piece's own arrays share one index with the planes: token (h, w)
// is at lead() + (h − first)·stride + w, and a plane is read from origin() on.
struct MotionPair {
  int64_t lead() const { return 2 * grid->stride + 16; }
  int64_t pitch() const { return ((end - first + 4) * grid->stride + 96 + 15) / 16 * 16; }
  int64_t origin() const { return grid->at(first, 0) - lead(); }

  const MotionGrid* grid;
  int64_t first, end;
  const float *self, *other;                  // 16 planes each
  const float *self_inverse, *other_inverse;  // planes of 1/‖z‖, 0 where z is 0
  float beta;
};

// Arrays of `pitch` floats that a search needs, the results among them, and that a gradient needs.
inline constexpr int64_t kMotionSearchArrays = 14;
inline constexpr int64_t kMotionGradientArrays = 19;

struct MotionFound {
  const float *sum, *sum_h, *sum_w, *top;  // Σe, Σe·δ_h, Σe·δ_w with e = exp(S − top)
};
MotionFound motion_search_piece(const MotionPair& pair, float* arrays);

// Planes of the slot that joins the two frames, laid out as its query's frame: the gradient at the score of δ is
// P·(slope_h·δ_h + slope_w·δ_w + level), and P = exp(S − lse).
struct MotionSlot {
  const float *slope_h, *slope_w, *level, *lse;
  bool other_asks;  // the query is the token of the other frame, at the end of δ seen from here
};
// Accumulates, each at the piece's index: dc, 16 arrays, without the share of the norms; pull = Σ dS·cos over the pairs
// that the token is in; asked, the same over the pairs it is the query of.
void motion_gradient_piece(const MotionPair& pair, const MotionSlot& slot, float* dc, float* pull, float* asked,
                           float* arrays);

}  // namespace megaslide
