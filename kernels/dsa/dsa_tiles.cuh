// What kernel B's forward and backward share: tiles of queries, bands of their halo, and the samples in a band.
#pragma once
#include <cmath>

#include "kernels/dsa/dsa_place.cuh"
#include "kernels/mma_tiles.cuh"

namespace megaslide {

constexpr int kSide = 8, kQueries = kSide * kSide;
constexpr int kStep = 64;  // keys of one tile of them

// dO rounded to bf16; rows that do not exist are 0.
template <int D, class At>
__device__ void load_rounded(MmaTile<kQueries, D>& to, const float* from, int channels, const At& at) {
  for (int i = static_cast<int>(threadIdx.x); i < kQueries * D / 2; i += kMmaThreads) {
    const int r = i / (D / 2), c = i % (D / 2) * 2;
    const int64_t start = at(r);
    const float lo = start >= 0 && c < channels ? from[start + c] : 0.0f;
    prim::store_bf16(&to.at[r][c], lo, start >= 0 && c + 1 < channels ? from[start + c + 1] : 0.0f);
  }
}

// Along one axis: the base points of all windows of the tile, and what lies within reach of them.
struct Reach {
  int first, last;
  __device__ Reach(const DsaGrid& g, int axis, int frame, int p0, int p1) {
    int lo, hi, k_eff;
    g.bounds(axis, frame, lo, hi, k_eff);
    first = DsaGrid::max_of(lo, DsaGrid::window_start(p0, k_eff, lo, hi) - below(g, axis));
    last = DsaGrid::min_of(hi, DsaGrid::window_start(p1, k_eff, lo, hi) + k_eff - 1 + above(g, axis));
  }
  // Corners lie at most so far from the base point; one more above than R where R is whole, of weight 0.
  __host__ __device__ static bool moves(const DsaGrid& g, int axis) {
    return g.reach[axis] > 0 && !(axis == 0 && g.mode == DsaOffsetMode::kSlice);
  }
  __host__ __device__ static int below(const DsaGrid& g, int axis) {
    return moves(g, axis) ? static_cast<int>(ceilf(g.reach[axis])) : 0;
  }
  __host__ __device__ static int above(const DsaGrid& g, int axis) {
    return moves(g, axis) ? static_cast<int>(floorf(g.reach[axis])) + 1 : 0;
  }
};

// A band: lines [row0, row1) of the halo in frame `plane`; its keys line after line.
struct Band {
  int plane, row0, row1, column0, width;
  __device__ int keys() const { return (row1 - row0) * width; }
  __device__ int token(const DsaGrid& g, int key) const { return g.token(plane, row0 + key / width, column0 + key % width); }
};

// Tiles of kSide × kSide queries of one frame.
struct Tiling {
  int tiles_h, tiles_w;
  explicit Tiling(const DsaShape& s)
      : tiles_h(static_cast<int>((s.height + kSide - 1) / kSide)), tiles_w(static_cast<int>((s.width + kSide - 1) / kSide)) {}
};
struct Tile {
  int b, inner, frame, h0, w0, h1, w1;  // first and last query lines and columns; inner: of `inners` blocks of a tile
  __device__ Tile(const DsaGrid& g, const Tiling& x, int inners, int frame0, int frames) {
    int rest = static_cast<int>(blockIdx.x);
    inner = rest % inners, rest /= inners;
    const int tw = rest % x.tiles_w, th = rest / x.tiles_w % x.tiles_h;
    rest /= x.tiles_w * x.tiles_h;
    frame = frame0 + rest % frames, b = rest / frames;
    h0 = th * kSide, w0 = tw * kSide;
    end(g);
  }
  __device__ Tile(const DsaGrid& g, int sample, int its_frame, int line, int column)
      : b(sample), inner(0), frame(its_frame), h0(line), w0(column) {
    end(g);
  }
  // Token of query i of 64, or −1 outside the grid.
  __device__ int token(const DsaGrid& g, int i) const {
    const int h = h0 + i / kSide, w = w0 + i % kSide;
    return h <= h1 && w <= w1 ? g.token(frame, h, w) : -1;
  }

 private:
  __device__ void end(const DsaGrid& g) {
    h1 = DsaGrid::min_of(h0 + kSide, g.length[1]) - 1, w1 = DsaGrid::min_of(w0 + kSide, g.length[2]) - 1;
  }
};

// The weight of a cell's corners at `at`.
__device__ inline float weight_at(const DsaAxisCell& c, int at) {
  return (at == c.i0 ? 1 - c.f : 0.0f) + (at == c.i1 && c.i1 != c.i0 ? c.f : 0.0f);
}

// A sample that may have corners in a band.
struct TileSample {
  int jt, slot, ordinal;  // ordinal: among the slots that exist
  DsaAxisCell t, h, w;
};

// body(sample) for the query's samples with a corner in the band's frame, weight or not. owns(jt, jh, jw) picks among them.
template <class Owns, class F>
__device__ void for_samples(const DsaGrid& g, const DsaWindow& w, const float* raw, int group, const Band& band, const Owns& owns,
                            const F& body) {
  for (int jt = 0; jt < w.k_eff[0]; ++jt) {
    const int bt = w.start[0] + jt;
    if (band.plane < bt - Reach::below(g, 0) || band.plane > bt + Reach::above(g, 0)) continue;
    for (int jh = 0; jh < w.k_eff[1]; ++jh) {
      const int bh = w.start[1] + jh;
      if (band.row1 <= bh - Reach::below(g, 1) || band.row0 > bh + Reach::above(g, 1)) continue;
      for (int jw = 0; jw < w.k_eff[2]; ++jw) {
        if (!owns(jt, jh, jw)) continue;
        const int slot = (jt * g.kernel[1] + jh) * g.kernel[2] + jw, ordinal = (jt * w.k_eff[1] + jh) * w.k_eff[2] + jw;
        const DsaAxisCell t = dsa_place_axis(g, raw, group, 0, jt, slot, bt, w.lo[0], w.hi[0]);
        if (t.i0 != band.plane && t.i1 != band.plane) continue;
        body(TileSample{jt, slot, ordinal, t, dsa_place_axis(g, raw, group, 1, jt, slot, bh, w.lo[1], w.hi[1]),
                        dsa_place_axis(g, raw, group, 2, jt, slot, w.start[2] + jw, w.lo[2], w.hi[2])});
      }
    }
  }
}

// body(key, weight, sample) for every corner that lies in the band and weighs something.
template <class Owns, class F>
__device__ void for_corners(const DsaGrid& g, const DsaWindow& w, const float* raw, int group, const Band& band, const Owns& owns,
                            const F& body) {
  for_samples(g, w, raw, group, band, owns, [&](const TileSample& s) {
    const float weight_t = weight_at(s.t, band.plane);
    if (weight_t == 0) return;
    for (int corner = 0; corner < 4; ++corner) {
      const int h = corner / 2 == 0 ? s.h.i0 : s.h.i1, column = corner % 2 == 0 ? s.w.i0 : s.w.i1;
      const float weight = weight_t * (corner / 2 == 0 ? 1 - s.h.f : s.h.f) * (corner % 2 == 0 ? 1 - s.w.f : s.w.f);
      if (weight != 0 && h >= band.row0 && h < band.row1)
        body((h - band.row0) * band.width + column - band.column0, weight, s);
    }
  });
}

// out += columns [first, first + kStep) of the band · values, the band rounded to bf16.
template <int D, int kBandRow>
__device__ void multiply_band(float (&out)[D / 8][4], const float (&band)[kQueries][kBandRow], int first,
                              const MmaTile<kStep, D>& values, int row0) {
  const int r = row0 + fragment_row(0), quad = fragment_column(0);
  MS_NO_UNROLL
  for (int k = 0; k < kStep; k += 16) {
    uint32_t a[4];
    for (int i = 0; i < 4; ++i) {
      const float* p = &band[r + i % 2 * 8][first + k + i / 2 * 8 + quad];
      a[i] = prim::pack_bf16(p[0], p[1]);
    }
    for (int c = 0; c < D / 8; c += 2) {
      uint32_t b0[2], b1[2];
      right_by_channels(b0, b1, values, k, c * 8);
      prim::mma_m16n8k16_bf16(out[c], a, b0);
      prim::mma_m16n8k16_bf16(out[c + 1], a, b1);
    }
  }
}

}  // namespace megaslide
