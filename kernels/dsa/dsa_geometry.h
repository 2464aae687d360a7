// Where samples lie: windows, displacements and interpolation cells of spec dsa.md §1, one query at a time. Shared by
// every DSA kernel, so that all agree on the borders.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/dsa/dsa.h"

namespace megaslide {

// What a query of one frame may reach, and its window. Arrays are (t, h, w).
struct DsaBounds {
  int64_t lo[3], hi[3];  // first and last coordinate, inclusive
  int64_t k_eff[3];      // slots that exist: min(k, hi − lo + 1)
};

inline DsaBounds dsa_bounds(const DsaShape& s, int64_t frame) {
  DsaBounds b;
  const int64_t length[3] = {s.frames, s.height, s.width};
  for (int a = 0; a < 3; ++a) b.lo[a] = 0, b.hi[a] = length[a] - 1;
  if (s.t_lo != nullptr) b.lo[0] = s.t_lo[frame], b.hi[0] = s.t_hi[frame];
  for (int a = 0; a < 3; ++a) b.k_eff[a] = std::min(s.kernel[a], b.hi[a] - b.lo[a] + 1);
  return b;
}

// First base point of the window of a query at p along one axis.
inline int64_t dsa_window_start(int64_t p, int64_t k_eff, int64_t lo, int64_t hi) {
  return std::clamp(p - k_eff / 2, lo, hi + 1 - k_eff);
}

// Index of a raw offset among a token's dsa_offset_count, or −1 where the mode has none (slice, t).
// jt: slot along t; j: nominal slot (j_t·k_h + j_h)·k_w + j_w.
inline int64_t dsa_offset_index(const DsaShape& s, int64_t group, int64_t jt, int64_t j, int axis) {
  switch (s.mode) {
    case DsaOffsetMode::kFull: return (group * s.slots() + j) * 3 + axis;
    case DsaOffsetMode::kSlice: return axis == 0 ? -1 : (group * s.kernel[0] + jt) * 2 + axis - 1;
    case DsaOffsetMode::kRigid: return group * 3 + axis;
  }
  return -1;
}

inline int64_t dsa_group(const DsaShape& s, int64_t head) { return head * s.groups / s.heads; }
inline int64_t dsa_first_head(const DsaShape& s, int64_t group) { return (group * s.heads + s.groups - 1) / s.groups; }

// Where x = b + e lies along one axis.
template <class T>
struct DsaCell {
  int64_t i0, i1;  // corners, inside [lo, hi]
  T f;             // weight of i1; 1 − f is that of i0. NaN where e is
  bool inside;     // lo ≤ x ≤ hi and hi > lo: the offset gradient passes
};

// Cell clamp. The displacement is kept apart from the integer base point, so that the fraction keeps its full
// precision far from the origin, and it is clamped as a float before any cast.
template <class T>
DsaCell<T> dsa_cell(int64_t b, T e, int64_t lo, int64_t hi) {
  const T low = static_cast<T>(lo - b), high = static_cast<T>(hi - b);
  const T x = !(e > low) ? low : (e > high ? high : e);  // NaN becomes `low`
  const T i0 = std::clamp(std::floor(x), low, std::max(high - 1, low));
  DsaCell<T> c;
  c.i0 = b + static_cast<int64_t>(i0);
  c.i1 = std::min(c.i0 + 1, hi);
  c.f = std::isnan(e) ? e : x - i0;
  c.inside = hi > lo && e >= low && e <= high;
  return c;
}

// Displacement R·tanh(o/R) and its slope 1 − tanh²(o/R).
template <class T>
struct DsaDisplacement {
  T e, slope;
};
template <class T>
DsaDisplacement<T> dsa_displacement(T o, T reach) {
  const T t = std::tanh(o / reach);
  return {reach * t, 1 - t * t};
}

}  // namespace megaslide
