#include <algorithm>
#include <cmath>

#include "kernels/dsa/dsa_tile.h"

namespace megaslide {
namespace {

int64_t up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

bool axis_idle(const DsaShape& s, int axis) {
  return s.reach[axis] <= 0 || (axis == 0 && s.mode == DsaOffsetMode::kSlice);
}

// Whole tokens a sample may leave its base point by; never more than the axis is long.
int64_t whole_reach(const DsaShape& s, int axis, int64_t length) {
  if (axis_idle(s, axis)) return 0;
  return static_cast<int64_t>(std::ceil(std::min(s.reach[axis], static_cast<float>(length))));
}

// First and last coordinate that queries first … last may touch.
struct Range {
  Range(const DsaShape& s, const DsaBounds& b, int axis, int64_t first, int64_t last) {
    const int64_t low = b.lo[axis], high = b.hi[axis], k = b.k_eff[axis], r = whole_reach(s, axis, high - low + 1);
    lo = std::max(low, dsa_window_start(first, k, low, high) - r);
    hi = std::min(high, dsa_window_start(last, k, low, high) + k - 1 + r);
  }
  int64_t lo, hi;
};

// Smallest distance at which range(i).hi < range(i + distance).lo for every i below n; ranges ascend.
template <class F>
int64_t disjoint_distance(int64_t n, F range) {
  for (int64_t d = 1; d < n; ++d) {
    bool disjoint = true;
    for (int64_t i = 0; i + d < n && disjoint; ++i) disjoint = range(i).hi < range(i + d).lo;
    if (disjoint) return d;
  }
  return n;
}

}  // namespace

DsaTiling::DsaTiling(const DsaShape& s) {
  const auto halo = [&](int axis, int64_t length, int64_t tile) {
    return std::min(length, std::min(s.kernel[axis], length) + tile - 1 + 2 * whole_reach(s, axis, length));
  };
  // The shape with the least work over a frame: products of whole vectors of queries with every key, and, for every key
  // once a tile, copies and sums that cost about as much as products with kKeyWork queries.
  constexpr int64_t kKeyWork = 48;
  double best = 0;
  for (int64_t h = 1; h <= std::min(kDsaTileQueries, s.height); ++h)
    for (int64_t w = 1; w <= std::min(kDsaTileQueries / h, s.width); ++w) {
      const int64_t nh = (s.height + h - 1) / h, nw = (s.width + w - 1) / w;
      const int64_t rows = up(halo(1, s.height, h), 2), columns = up(halo(2, s.width, w), 16);
      const int64_t of_key = up(h * w, 16) + kKeyWork;
      const double work = static_cast<double>(nh * nw * of_key) * static_cast<double>(rows * columns);
      if ((h == 1 && w == 1) || work < best) {
        best = work, tile_h = h, tile_w = w, bands = nh, across = nw;
        largest.rows = rows, largest.columns = columns;
      }
    }
  largest.planes = halo(0, s.frames, 1);
  largest.rows_there = halo(1, s.height, tile_h), largest.columns_there = halo(2, s.width, tile_w);
  padding_ = dsa_plane_keys(largest) * up(tile_h * tile_w, 16) /
             (largest.rows_there * largest.columns_there * tile_h * tile_w);
  largest.first = 0, largest.row_tokens = s.width, largest.plane_tokens = s.height * s.width;
  // Sample positions of a tile, [slot][32]: 16 bytes, and backward 24 more. They are read once a head, in order, so they
  // may crowd the second-level cache.
  constexpr int64_t kPlacesBytes = int64_t{3} << 19;
  const auto frames_of = [&](int64_t bytes) {
    const int64_t fit = std::clamp<int64_t>(kPlacesBytes / (s.slots() * kDsaTileQueries * bytes), 1, s.frames);
    const int64_t spans = (s.frames + fit - 1) / fit;
    return (s.frames + spans - 1) / spans;
  };
  forward_frames = frames_of(16), backward_frames = frames_of(40);
  row = ((largest.planes * dsa_plane_keys(largest) / 16 + 1) | 1) * 16;
}

DsaTile::DsaTile(const DsaShape& s, const DsaTiling& t, int64_t frame_, int64_t band, int64_t index)
    : frame(frame_), bounds(dsa_bounds(s, frame_)), row(t.row) {
  const int64_t h0 = band * t.tile_h, w0 = index * t.tile_w;
  const int64_t nh = std::min(t.tile_h, s.height - h0), nw = std::min(t.tile_w, s.width - w0);
  active = nh * nw, lanes = up(active, 16);
  for (int64_t i = 0; i < kDsaTileQueries; ++i) {
    const int64_t q = std::min(i, active - 1);
    h[i] = h0 + q / nw, w[i] = w0 + q % nw;
    token[i] = (frame * s.height + h[i]) * s.width + w[i];
  }
  const int64_t first[3] = {frame, h0, w0}, last[3] = {frame, h0 + nh - 1, w0 + nw - 1};
  slots = 1;
  for (int a = 0; a < 3; ++a) {
    const Range r(s, bounds, a, first[a], last[a]);
    lo[a] = r.lo, hi[a] = r.hi;
    idle[a] = axis_idle(s, a) || bounds.hi[a] == bounds.lo[a];
    slots *= bounds.k_eff[a];
  }
  halo.planes = hi[0] - lo[0] + 1;
  halo.rows_there = hi[1] - lo[1] + 1, halo.rows = up(halo.rows_there, 2);
  halo.columns_there = hi[2] - lo[2] + 1, halo.columns = up(halo.columns_there, 16);
  halo.row_tokens = s.width, halo.plane_tokens = s.height * s.width;
  halo.first = (lo[0] * s.height + lo[1]) * s.width + lo[2];
  step_t = idle[0] ? 0 : dsa_plane_keys(halo);
  step_h = idle[1] ? 0 : halo.columns;
}

DsaColours::DsaColours(const DsaShape& s, const DsaTiling& t) {
  struct Span {
    int64_t lo, hi;
  };
  const int64_t n = t.backward_frames, begin = s.query_begin, end = s.query_end();
  spans = disjoint_distance((end - begin + n - 1) / n, [&](int64_t i) {
    Span span{s.frames, -1};
    for (int64_t f = begin + i * n; f < std::min(end, begin + (i + 1) * n); ++f) {
      const Range r(s, dsa_bounds(s, f), 0, f, f);
      span.lo = std::min(span.lo, r.lo), span.hi = std::max(span.hi, r.hi);
    }
    return span;
  });
  const DsaBounds b = dsa_bounds(s, 0);
  bands = disjoint_distance(t.bands, [&](int64_t i) {
    return Range(s, b, 1, i * t.tile_h, std::min(s.height, (i + 1) * t.tile_h) - 1);
  });
}

}  // namespace megaslide
