// Kernel B of spec dsa.md §3, forward: a block has a tile of 8×8 queries of one frame and head, and walks the halo that
// they can reach in bands of whole lines. Two passes: queries · keys on tensor cores, from which the samples read their
// scores; then, after the softmax, the samples' weights are scattered over the keys and multiply the values.
#include <algorithm>
#include <cmath>

#include "kernels/dsa/dsa_cuda.h"
#include "kernels/dsa/dsa_place.cuh"
#include "kernels/dsa/dsa_tile_cuda.h"
#include "kernels/mma_tiles.cuh"

namespace megaslide {
namespace {

constexpr int kThreads = kMmaThreads, kSide = 8, kQueries = kSide * kSide;
constexpr int kBandKeys = 192, kStep = 64;       // keys of a band, and of one tile of them
constexpr int kBandRow = kBandKeys + 1;          // odd: a thread a row meets no bank twice

struct TileArgs {
  float *out, *lse;
  const void *q, *k, *v;
  const float* offsets;
  DsaGrid grid;
  int tiles_h, tiles_w;
};

template <int D>
struct TileShared {
  MmaTile<kQueries, D> q;
  MmaTile<kStep, D> keys[2];              // or values
  float band[kQueries][kBandRow];         // scores of the band's keys, later their weights
  float partial[2][kQueries];             // maxima and sums of the two halves of a query's samples
  // then [slot][query] floats: scores and weights of the samples
  __device__ float* samples() { return reinterpret_cast<float*>(this + 1); }
};

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

struct Tile {
  int b, head, frame, h0, w0, h1, w1;  // first and last query lines and columns
  int64_t base;                        // of the sample's and head's elements
  __device__ explicit Tile(const TileArgs& x) {
    const DsaGrid& g = x.grid;
    int rest = static_cast<int>(blockIdx.x);
    head = rest % g.heads, rest /= g.heads;
    const int tw = rest % x.tiles_w, th = rest / x.tiles_w % x.tiles_h;
    rest /= x.tiles_w * x.tiles_h;
    frame = rest % g.length[0], b = rest / g.length[0];
    h0 = th * kSide, w0 = tw * kSide;
    h1 = DsaGrid::min_of(h0 + kSide, g.length[1]) - 1, w1 = DsaGrid::min_of(w0 + kSide, g.length[2]) - 1;
    base = int64_t{b} * g.tokens * g.row + int64_t{head} * g.head_dim;
  }
  // Token of query i of 64, or −1 outside the grid.
  __device__ int token(const DsaGrid& g, int i) const {
    const int h = h0 + i / kSide, w = w0 + i % kSide;
    return h <= h1 && w <= w1 ? g.token(frame, h, w) : -1;
  }
};

// The weights of the two corners of a cell at `at` and, in `next`, at at + 1.
__device__ float weight_at(const DsaAxisCell& c, int at) {
  return (at == c.i0 ? 1 - c.f : 0.0f) + (at == c.i1 && c.i1 != c.i0 ? c.f : 0.0f);
}

// body(key, weight, ordinal) for every corner of the query's samples that lies in the band and weighs something; of
// samples whose number is `part` modulo `parts`.
template <class F>
__device__ void for_corners(const DsaGrid& g, const DsaWindow& w, const float* raw, int group, const Band& band, int part,
                            int parts, const F& body) {
  for (int jt = 0; jt < w.k_eff[0]; ++jt) {
    const int bt = w.start[0] + jt;
    if (band.plane < bt - Reach::below(g, 0) || band.plane > bt + Reach::above(g, 0)) continue;
    for (int jh = 0; jh < w.k_eff[1]; ++jh) {
      const int bh = w.start[1] + jh;
      if (band.row1 <= bh - Reach::below(g, 1) || band.row0 > bh + Reach::above(g, 1)) continue;
      for (int jw = (jh + part) % parts; jw < w.k_eff[2]; jw += parts) {
        const int slot = (jt * g.kernel[1] + jh) * g.kernel[2] + jw;
        const DsaAxisCell ct = dsa_place_axis(g, raw, group, 0, jt, slot, bt, w.lo[0], w.hi[0]);
        const float weight_t = weight_at(ct, band.plane);
        if (weight_t == 0) continue;
        const DsaAxisCell ch = dsa_place_axis(g, raw, group, 1, jt, slot, bh, w.lo[1], w.hi[1]);
        const DsaAxisCell cw = dsa_place_axis(g, raw, group, 2, jt, slot, w.start[2] + jw, w.lo[2], w.hi[2]);
        for (int corner = 0; corner < 4; ++corner) {
          const int h = corner / 2 == 0 ? ch.i0 : ch.i1, column = corner % 2 == 0 ? cw.i0 : cw.i1;
          const float weight = weight_t * (corner / 2 == 0 ? 1 - ch.f : ch.f) * (corner % 2 == 0 ? 1 - cw.f : cw.f);
          if (weight != 0 && h >= band.row0 && h < band.row1)
            body((h - band.row0) * band.width + column - band.column0, weight, (jt * w.k_eff[1] + jh) * w.k_eff[2] + jw);
        }
      }
    }
  }
}

// A query's softmax over its samples, by two threads; `mine`: the query has samples at all.
template <int D>
__device__ void softmax(TileShared<D>& s, const TileArgs& x, const DsaWindow& w, int query, int half, bool mine, int64_t lse_at) {
  float* samples = s.samples();
  const int count = mine ? w.samples() : 0;
  float top = -INFINITY, total = 0;
  for (int j = half; j < count; j += 2) {
    samples[j * kQueries + query] *= x.grid.scale;
    top = fmaxf(top, samples[j * kQueries + query]);
  }
  s.partial[half][query] = top;
  __syncthreads();
  top = fmaxf(s.partial[0][query], s.partial[1][query]);
  __syncthreads();
  for (int j = half; j < count; j += 2) total += samples[j * kQueries + query] = expf(samples[j * kQueries + query] - top);
  s.partial[half][query] = total;
  __syncthreads();
  total = s.partial[0][query] + s.partial[1][query];
  for (int j = half; j < count; j += 2) samples[j * kQueries + query] /= total;
  if (half == 0 && mine) x.lse[lse_at] = top + logf(total);
}

// out += band · values, the band's weights rounded to bf16.
template <int D>
__device__ void multiply_band(float (&out)[D / 8][4], const TileShared<D>& s, int first, const MmaTile<kStep, D>& values, int row0) {
  const int r = row0 + fragment_row(0), quad = fragment_column(0);
  for (int k = 0; k < kStep; k += 16) {
    uint32_t a[4];
    for (int i = 0; i < 4; ++i) {
      const float* p = &s.band[r + i % 2 * 8][first + k + i / 2 * 8 + quad];
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

template <int D>
__device__ void store_scores(TileShared<D>& s, int first, int row0) {
  float p[kStep / 8][4] = {};
  multiply_rows(p, s.q, row0, s.keys[first / kStep % 2]);
  for (int n = 0; n < kStep / 8; ++n)
    for (int i = 0; i < 4; ++i) s.band[row0 + fragment_row(i)][first + n * 8 + fragment_column(i)] = p[n][i];
}

template <int D, bool kVector>
__global__ void __launch_bounds__(kThreads, 1) dsa_tile_forward_kernel(TileArgs x) {
  const DsaGrid& g = x.grid;
  auto& s = *prim::dynamic_shared<TileShared<D>>();
  const Tile tile(x);
  const int thread = static_cast<int>(threadIdx.x), row0 = thread / 32 * 16, query = thread % kQueries, half = thread / kQueries;
  const int own = tile.token(g, query), group = g.group_of(tile.head);
  const DsaWindow window(g, own < 0 ? g.token(tile.frame, tile.h0, tile.w0) : own);
  const float* raw = x.offsets + (int64_t{tile.b} * g.tokens + (own < 0 ? 0 : own)) * g.offsets;
  const Reach planes(g, 0, tile.frame, tile.frame, tile.frame), lines(g, 1, tile.frame, tile.h0, tile.h1),
      columns(g, 2, tile.frame, tile.w0, tile.w1);
  const int width = columns.last - columns.first + 1, band_lines = kBandKeys / width;
  float *samples = s.samples(), out[D / 8][4] = {};
  for (int i = thread; i < g.slots * kQueries; i += kThreads) samples[i] = 0;
  load_rows<kVector>(s.q, x.q, g.head_dim, [&](int r) {
    const int token = tile.token(g, r);
    return token < 0 ? int64_t{-1} : tile.base + token * g.row;
  });
  prim::cp_async_commit();
  for (int pass = 0; pass < 2; ++pass) {
    for (int plane = planes.first; plane <= planes.last; ++plane)
      for (int line = lines.first; line <= lines.last; line += band_lines) {
        const Band band{plane, line, DsaGrid::min_of(line + band_lines, lines.last + 1), columns.first, width};
        const auto load = [&](int first) {
          load_rows<kVector>(s.keys[first / kStep % 2], pass == 0 ? x.k : x.v, g.head_dim, [&](int r) {
            return first + r < band.keys() ? tile.base + band.token(g, first + r) * g.row : int64_t{-1};
          });
          prim::cp_async_commit();
        };
        load(0);
        if (pass == 1) {
          for (int i = thread; i < kQueries * kBandRow; i += kThreads) s.band[i / kBandRow][i % kBandRow] = 0;
          __syncthreads();
          if (half == 0 && own >= 0)
            for_corners(g, window, raw, group, band, 0, 1, [&](int key, float weight, int j) {
              s.band[query][key] = fmaf(weight, samples[j * kQueries + query], s.band[query][key]);
            });
        }
        for (int first = 0; first < band.keys(); first += kStep) {
          if (first + kStep < band.keys()) {
            load(first + kStep);
            prim::cp_async_wait<1>();
          } else {
            prim::cp_async_wait<0>();
          }
          __syncthreads();
          pass == 0 ? store_scores(s, first, row0) : multiply_band(out, s, first, s.keys[first / kStep % 2], row0);
          __syncthreads();
        }
        if (pass == 0) {
          if (own >= 0)
            for_corners(g, window, raw, group, band, half, 2, [&](int key, float weight, int j) {
              samples[j * kQueries + query] = fmaf(weight, s.band[query][key], samples[j * kQueries + query]);
            });
          __syncthreads();
        }
      }
    if (pass == 0) {
      softmax(s, x, window, query, half, own >= 0, (int64_t{tile.b} * g.tokens + own) * g.heads + tile.head);
      __syncthreads();
    }
  }
  for (int i = 0; i < 4; ++i) {
    const int token = tile.token(g, row0 + fragment_row(i));
    if (token < 0) continue;
    for (int n = 0; n < D / 8; ++n)
      if (const int c = n * 8 + fragment_column(i); c < g.head_dim) x.out[tile.base + token * g.row + c] = out[n][i];
  }
}

template <int D>
size_t shared_bytes(const DsaGrid& g) {
  return sizeof(TileShared<D>) + sizeof(float) * kQueries * static_cast<size_t>(g.slots);
}

template <int D, bool kVector>
void launch_tiles(Stream& stream, const TileArgs& x, int64_t blocks) {
  prim::launch(dsa_tile_forward_kernel<D, kVector>, dim3(count32(blocks, "tiles")), dim3(kThreads), shared_bytes<D>(x.grid),
               stream, x);
}

}  // namespace

bool dsa_tile_forward_fits(const DsaShape& s, DType dtype) {
  if (dtype != DType::kBF16 || s.head_dim > 128) return false;
  const DsaGrid g(s);
  const int width = kSide + g.kernel[2] - 1 + Reach::below(g, 2) + Reach::above(g, 2);
  const size_t bytes = s.head_dim <= 64 ? shared_bytes<64>(g) : shared_bytes<128>(g);
  return std::min(width, g.length[2]) <= kBandKeys && bytes <= kTileSharedBytes;
}

void dsa_tile_forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v,
                      const float* offsets, const DsaShape& s) {
  const TileArgs x{out, lse, q, k, v, offsets, DsaGrid(s), static_cast<int>((s.height + kSide - 1) / kSide),
                   static_cast<int>((s.width + kSide - 1) / kSide)};
  const int64_t blocks = s.batch * s.frames * x.tiles_h * x.tiles_w * s.heads;
  if (!aligned_rows(s.head_dim, 8, q, k, v)) return launch_tiles<128, false>(stream, x, blocks);
  s.head_dim <= 64 ? launch_tiles<64, true>(stream, x, blocks) : launch_tiles<128, true>(stream, x, blocks);
}

}  // namespace megaslide
