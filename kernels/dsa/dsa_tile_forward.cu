// Kernel B of spec dsa.md §3, forward: a block has a tile of 8×8 queries of one frame and head, and walks the halo that
// they can reach in bands of whole lines. Two passes: queries · keys on tensor cores, from which the samples read their
// scores; then, after the softmax, the samples' weights are scattered over the keys and multiply the values.
#include <algorithm>
#include <cmath>

#include "kernels/dsa/dsa_cuda.h"
#include "kernels/dsa/dsa_tile_cuda.h"
#include "kernels/dsa/dsa_tiles.cuh"

namespace megaslide {
namespace {

constexpr int kThreads = kMmaThreads;
constexpr int kBandKeys = 192, kBandRow = kBandKeys + 1;  // odd: a thread a row meets no bank twice

struct TileArgs {
  float *out, *lse;
  const void *q, *k, *v;
  const float* offsets;
  DsaGrid grid;
  Tiling tiling;
  int frame0, frames;  // of the queries
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
  const Tile tile(g, x.tiling, g.heads, x.frame0, x.frames);
  const int thread = static_cast<int>(threadIdx.x), row0 = thread / 32 * 16, query = thread % kQueries, half = thread / kQueries;
  const int own = tile.token(g, query), group = g.group_of(tile.inner);
  const int64_t base = int64_t{tile.b} * g.tokens * g.row + int64_t{tile.inner} * g.head_dim;
  const DsaWindow window(g, own < 0 ? g.token(tile.frame, tile.h0, tile.w0) : own);
  const float* raw = x.offsets + (int64_t{tile.b} * g.tokens + (own < 0 ? 0 : own)) * g.row_offsets;
  const Reach planes(g, 0, tile.frame, tile.frame, tile.frame), lines(g, 1, tile.frame, tile.h0, tile.h1),
      columns(g, 2, tile.frame, tile.w0, tile.w1);
  const int width = columns.last - columns.first + 1, band_lines = kBandKeys / width;
  float *samples = s.samples(), out[D / 8][4] = {};
  for (int i = thread; i < g.slots * kQueries; i += kThreads) samples[i] = 0;
  load_rows<kVector>(s.q, x.q, g.head_dim, [&](int r) {
    const int token = tile.token(g, r);
    return token < 0 ? int64_t{-1} : base + token * g.row;
  });
  prim::cp_async_commit();
  for (int pass = 0; pass < 2; ++pass) {
    for (int plane = planes.first; plane <= planes.last; ++plane)
      for (int line = lines.first; line <= lines.last; line += band_lines) {
        const Band band{plane, line, DsaGrid::min_of(line + band_lines, lines.last + 1), columns.first, width};
        const auto load = [&](int first) {
          load_rows<kVector>(s.keys[first / kStep % 2], pass == 0 ? x.k : x.v, g.head_dim, [&](int r) {
            return first + r < band.keys() ? base + band.token(g, first + r) * g.row : int64_t{-1};
          });
          prim::cp_async_commit();
        };
        load(0);
        if (pass == 1) {
          for (int i = thread; i < kQueries * kBandRow; i += kThreads) s.band[i / kBandRow][i % kBandRow] = 0;
          __syncthreads();
          if (half == 0 && own >= 0)
            for_corners(g, window, raw, group, band, [](int, int, int) { return true; }, [&](int key, float weight, const TileSample& j) {
              s.band[query][key] = fmaf(weight, samples[j.ordinal * kQueries + query], s.band[query][key]);
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
          pass == 0 ? store_scores(s, first, row0) : multiply_band(out, s.band, first, s.keys[first / kStep % 2], row0);
          __syncthreads();
        }
        if (pass == 0) {
          if (own >= 0)
            for_corners(g, window, raw, group, band, [&](int, int jh, int jw) { return (jh + jw) % 2 == half; }, [&](int key, float weight, const TileSample& j) {
              samples[j.ordinal * kQueries + query] = fmaf(weight, s.band[query][key], samples[j.ordinal * kQueries + query]);
            });
          __syncthreads();
        }
      }
    if (pass == 0) softmax(s, x, window, query, half, own >= 0, (int64_t{tile.b} * g.tokens + own) * g.lse_row + tile.inner);
  }
  for (int i = 0; i < 4; ++i) {
    const int token = tile.token(g, row0 + fragment_row(i));
    if (token < 0) continue;
    for (int n = 0; n < D / 8; ++n)
      if (const int c = n * 8 + fragment_column(i); c < g.head_dim) x.out[base + token * g.row + c] = out[n][i];
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
  const TileArgs x{out, lse, q, k, v, offsets, DsaGrid(s), Tiling(s), static_cast<int>(s.query_begin), static_cast<int>(s.query_end() - s.query_begin)};
  const int64_t blocks = s.batch * x.frames * x.tiling.tiles_h * x.tiling.tiles_w * s.heads;
  if (!aligned_rows(s.head_dim, 8, q, k, v)) return launch_tiles<128, false>(stream, x, blocks);
  s.head_dim <= 64 ? launch_tiles<64, true>(stream, x, blocks) : launch_tiles<128, true>(stream, x, blocks);
}

}  // namespace megaslide
