// Where samples lie, on the device: dsa_geometry.h in fp32 and 32-bit coordinates.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/device.h"
#include "kernels/dsa/dsa.h"
#include "kernels/elements.cuh"

namespace megaslide {

// DsaShape as kernels take it.
struct DsaGrid {
  int length[3], kernel[3];
  float reach[3];
  int heads, head_dim, groups, slots, offsets;  // offsets: raw ones a token
  int row_offsets;                              // from a token to the next
  DsaOffsetMode mode;
  float scale;
  const int32_t *t_lo, *t_hi;
  int tokens;    // below 2³¹ a sample, as are the units of a launch
  int64_t row;   // elements from a token to the next
  int lse_row;   // the same of lse

  explicit DsaGrid(const DsaShape& s)
      : length{static_cast<int>(s.frames), static_cast<int>(s.height), static_cast<int>(s.width)},
        kernel{static_cast<int>(s.kernel[0]), static_cast<int>(s.kernel[1]), static_cast<int>(s.kernel[2])},
        reach{s.reach[0], s.reach[1], s.reach[2]}, heads(static_cast<int>(s.heads)),
        head_dim(static_cast<int>(s.head_dim)), groups(static_cast<int>(s.groups)),
        slots(static_cast<int>(s.slots())), offsets(static_cast<int>(dsa_offset_count(s))),
        row_offsets(static_cast<int>(dsa_offset_row(s))), mode(s.mode),
        scale(s.scale), t_lo(s.t_lo), t_hi(s.t_hi), tokens(static_cast<int>(count32(s.tokens(), "tokens"))), row(s.row()), lse_row(static_cast<int>(s.lse_row())) {}

  __device__ int group_of(int head) const { return head * groups / heads; }
  __device__ int first_head(int group) const { return (group * heads + groups - 1) / groups; }
  __device__ int token(int t, int h, int w) const { return (t * length[1] + h) * length[2] + w; }
  // First and last coordinate that a query of this frame may reach along an axis, and the slots that exist there.
  __device__ void bounds(int axis, int frame, int& lo, int& hi, int& k_eff) const {
    lo = axis == 0 && t_lo != nullptr ? t_lo[frame] : 0;
    hi = axis == 0 && t_lo != nullptr ? t_hi[frame] : length[axis] - 1;
    k_eff = min_of(kernel[axis], hi - lo + 1);
  }
  __device__ static int min_of(int a, int b) { return a < b ? a : b; }
  __device__ static int max_of(int a, int b) { return a > b ? a : b; }
  __device__ static int window_start(int p, int k_eff, int lo, int hi) {
    return max_of(lo, min_of(p - k_eff / 2, hi + 1 - k_eff));
  }
  // Index among a token's raw offsets, −1 where the mode has none.
  __device__ int offset_index(int group, int jt, int slot, int axis) const {
    if (mode == DsaOffsetMode::kFull) return (group * slots + slot) * 3 + axis;
    if (mode == DsaOffsetMode::kRigid) return group * 3 + axis;
    return axis == 0 ? -1 : (group * kernel[0] + jt) * 2 + axis - 1;
  }
};

struct DsaAxisCell {
  int i0, i1;   // corners
  float f;      // weight of i1
  float slope;  // 1 − tanh²
  bool inside;  // the offset gradient passes
};

// One axis of a sample with base point b; `raw` is its token's raw offsets.
__device__ __forceinline__ DsaAxisCell dsa_place_axis(const DsaGrid& g, const float* raw, int group, int axis, int jt,
                                                      int slot, int b, int lo, int hi) {
  DsaAxisCell c{b, b, 0.0f, 0.0f, false};
  const int index = g.offset_index(group, jt, slot, axis);
  float e = 0;
  const bool moves = g.reach[axis] > 0 && index >= 0;
  if (moves) {
    const float t = tanhf(raw[index] / g.reach[axis]);
    e = g.reach[axis] * t;
    c.slope = 1 - t * t;
  }
  // Clamped as a float before any cast; a NaN becomes `low` and comes back in f.
  const float low = static_cast<float>(lo - b), high = static_cast<float>(hi - b);
  const float x = !(e > low) ? low : (e > high ? high : e);
  const float i0 = fmaxf(low, fminf(floorf(x), fmaxf(high - 1, low)));
  c.i0 = b + static_cast<int>(i0);
  c.i1 = DsaGrid::min_of(c.i0 + 1, hi);
  c.f = e != e ? e : x - i0;
  c.inside = moves && hi > lo && e >= low && e <= high;
  return c;
}

// P and dS of every sample of a band of query frames, (B, heads, tokens of the band, K).
struct DsaPairs {
  float2* pairs;
  int64_t first, tokens;  // of the band, in a sample
  int heads, slots;
  DsaPairs(float2* at, const DsaShape& s, int frame0, int frame1)
      : pairs(at), first(frame0 * s.height * s.width), tokens((frame1 - frame0) * s.height * s.width),
        heads(static_cast<int>(s.heads)), slots(static_cast<int>(s.slots())) {}
  __device__ float2* of(int b, int head, int token) const {
    return pairs + (int64_t{b * heads + head} * tokens + token - first) * slots;
  }
};

// The window of a query: what its samples are counted in.
struct DsaWindow {
  int p[3], lo[3], hi[3], k_eff[3], start[3];
  __device__ DsaWindow(const DsaGrid& g, int token) {
    p[0] = token / (g.length[1] * g.length[2]);
    p[1] = token / g.length[2] % g.length[1];
    p[2] = token % g.length[2];
    for (int a = 0; a < 3; ++a) {
      g.bounds(a, p[0], lo[a], hi[a], k_eff[a]);
      start[a] = DsaGrid::window_start(p[a], k_eff[a], lo[a], hi[a]);
    }
  }
  __device__ int samples() const { return k_eff[0] * k_eff[1] * k_eff[2]; }
};

// Sample number `ordinal` of the slots that exist.
struct DsaSample {
  int jt, slot;
  DsaAxisCell axis[3];
  __device__ DsaSample(const DsaGrid& g, const DsaWindow& w, const float* raw, int group, int ordinal) {
    const int j[3] = {ordinal / (w.k_eff[1] * w.k_eff[2]), ordinal / w.k_eff[2] % w.k_eff[1], ordinal % w.k_eff[2]};
    jt = j[0];
    slot = (j[0] * g.kernel[1] + j[1]) * g.kernel[2] + j[2];
    for (int a = 0; a < 3; ++a)
      axis[a] = dsa_place_axis(g, raw, group, a, jt, slot, w.start[a] + j[a], w.lo[a], w.hi[a]);
  }
  __device__ int at(int corner, int a) const { return (corner >> (2 - a)) & 1 ? axis[a].i1 : axis[a].i0; }
  __device__ float weight_along(int corner, int a) const {
    return (corner >> (2 - a)) & 1 ? axis[a].f : 1 - axis[a].f;
  }
  __device__ int corner_token(const DsaGrid& g, int corner) const {
    return g.token(at(corner, 0), at(corner, 1), at(corner, 2));
  }
  __device__ float corner_weight(int corner) const {
    return weight_along(corner, 0) * weight_along(corner, 1) * weight_along(corner, 2);
  }
};

}  // namespace megaslide
