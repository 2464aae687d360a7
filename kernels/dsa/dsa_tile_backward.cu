// Kernel B of spec dsa.md §3, backward for the queries: dq, the offset gradients, and P and dS of every sample. A block has
// a tile of 8×8 queries of one frame and the heads of a group, and walks the halo in bands, twice a head: first the
// samples gather their scores and dP from the products on tensor cores; then, P and dS known, they gather the gradients
// of their offsets from the same products, and scatter dS over the keys for dq.
#include <algorithm>
#include <cmath>

#include "kernels/dsa/dsa_tile_cuda.h"
#include "kernels/dsa/dsa_tiles.cuh"

namespace megaslide {
namespace {

constexpr int kThreads = kMmaThreads;
constexpr int kBandKeys = 128, kBandRow = kBandKeys + 1;  // odd: a thread a row meets no bank twice

struct TileArgs {
  DsaTileBackward x;
  DsaGrid grid;
  Tiling tiling;
  DsaPairs pairs;
};

template <int D>
struct TileShared {
  MmaTile<kQueries, D> q, dout;
  MmaTile<kStep, D> keys, values;
  float a[kQueries][kBandRow];  // q · k; later dS over the keys
  float b[kQueries][kBandRow];  // dO · v
};

template <int D>
__device__ void store_products(float (&band)[kQueries][kBandRow], const MmaTile<kQueries, D>& left, const MmaTile<kStep, D>& right,
                               int first, int row0) {
  float p[kStep / 8][4] = {};
  multiply_rows(p, left, row0, right);
  for (int n = 0; n < kStep / 8; ++n)
    for (int i = 0; i < 4; ++i) band[row0 + fragment_row(i)][first + n * 8 + fragment_column(i)] = p[n][i];
}

// One query, as one of its two threads sees it.
struct Query {
  int own, half, row;  // own: token, or −1; row: of the tile
  DsaWindow window;
  const float* raw;
  float* doffsets;
  // Which of the two threads has a sample: both of a query's add to offset gradients that samples share.
  __device__ bool owns(const DsaGrid& g, int jt, int jh, int jw) const {
    if (g.mode == DsaOffsetMode::kRigid) return half == 0;
    return (g.mode == DsaOffsetMode::kSlice ? jt : jh + jw) % 2 == half;
  }
};

// What corner (t, h, w bits) of a sample gives its offset gradients, u being dS · a + P · b there.
__device__ void add_offset_gradient(const DsaGrid& g, const Query& q, const TileSample& s, int group, int upper_t, int upper_h,
                                    int upper_w, float u) {
  const float wt = upper_t ? s.t.f : 1 - s.t.f, wh = upper_h ? s.h.f : 1 - s.h.f, ww = upper_w ? s.w.f : 1 - s.w.f;
  const float slope[3] = {wh * ww, wt * ww, wt * wh};
  const int upper[3] = {upper_t, upper_h, upper_w};
  const DsaAxisCell* const axes[3] = {&s.t, &s.h, &s.w};
  MS_UNROLL
  for (int a = 0; a < 3; ++a) {
    if (!axes[a]->inside || slope[a] == 0) continue;
    q.doffsets[g.offset_index(group, s.jt, s.slot, a)] += (upper[a] ? u : -u) * slope[a] * axes[a]->slope;
  }
}

template <int D>
__device__ void gather_offset_gradients(const DsaGrid& g, const TileShared<D>& shared, const Query& q, const Band& band, int group,
                                        const float2* pairs) {
  const auto owns = [&](int jt, int jh, int jw) { return q.owns(g, jt, jh, jw); };
  for_samples(g, q.window, q.raw, group, band, owns, [&](const TileSample& s) {
    const float2 pair = pairs[s.slot];
    for (int corner = 0; corner < 8; ++corner) {
      const int upper_t = corner / 4, upper_h = corner / 2 % 2, upper_w = corner % 2;
      const int h = upper_h ? s.h.i1 : s.h.i0, key = (h - band.row0) * band.width + (upper_w ? s.w.i1 : s.w.i0) - band.column0;
      if ((upper_t ? s.t.i1 : s.t.i0) != band.plane || h < band.row0 || h >= band.row1 || key < 0) continue;
      add_offset_gradient(g, q, s, group, upper_t, upper_h, upper_w, pair.y * shared.a[q.row][key] + pair.x * shared.b[q.row][key]);
    }
  });
}

// rowsum(dO ⊙ O) of the query.
__device__ float row_dot(const TileArgs& x, int64_t at) {
  float sum = 0;
  for (int c = 0; c < x.grid.head_dim; ++c) sum = fmaf(x.x.dout[at + c], x.x.out[at + c], sum);
  return sum;
}

// Scores and dP become P and dS (with the scale).
__device__ void make_pairs(const TileArgs& x, const Query& q, float2* pairs, float lse, float d) {
  const DsaGrid& g = x.grid;
  const bool alone = q.window.samples() == 1;  // P = 1, exactly
  for (int jt = 0; jt < q.window.k_eff[0]; ++jt)
    for (int jh = 0; jh < q.window.k_eff[1]; ++jh)
      for (int jw = 0; jw < q.window.k_eff[2]; ++jw) {
        if (!q.owns(g, jt, jh, jw)) continue;
        float2& pair = pairs[(jt * g.kernel[1] + jh) * g.kernel[2] + jw];
        const float p = expf(pair.x * g.scale - lse);
        pair = {p, alone ? 0.0f : p * (pair.y - d) * g.scale};
      }
}

template <int D, bool kVector>
__global__ void __launch_bounds__(kThreads, 1) dsa_tile_query_kernel(TileArgs x) {
  const DsaGrid& g = x.grid;
  auto& s = *prim::dynamic_shared<TileShared<D>>();
  const Tile tile(g, x.tiling, g.groups, x.x.frame0, x.x.frame1 - x.x.frame0);
  const int thread = static_cast<int>(threadIdx.x), row0 = thread / 32 * 16, group = tile.inner, own = tile.token(g, thread % kQueries);
  const int token = own < 0 ? g.token(tile.frame, tile.h0, tile.w0) : own;
  const int64_t sample0 = int64_t{tile.b} * g.tokens;
  const Query query{own, thread / kQueries, thread % kQueries, DsaWindow(g, token), x.x.offsets + (sample0 + token) * g.row_offsets,
                    x.x.doffsets + (sample0 + token) * g.row_offsets};
  const auto owns = [&](int jt, int jh, int jw) { return query.owns(g, jt, jh, jw); };
  const Reach planes(g, 0, tile.frame, tile.frame, tile.frame), lines(g, 1, tile.frame, tile.h0, tile.h1),
      columns(g, 2, tile.frame, tile.w0, tile.w1);
  const int width = columns.last - columns.first + 1, band_lines = kBandKeys / width;
  for (int head = g.first_head(group); head < g.first_head(group + 1); ++head) {
    const int64_t base = sample0 * g.row + int64_t{head} * g.head_dim;
    const auto query_row = [&](int r) {
      const int t = tile.token(g, r);
      return t < 0 ? int64_t{-1} : base + t * g.row;
    };
    float2* pairs = x.pairs.of(tile.b, head, token);
    load_rows<kVector>(s.q, x.x.q, g.head_dim, query_row);
    load_rounded(s.dout, x.x.dout, g.head_dim, query_row);
    for (int i = query.half; own >= 0 && i < g.slots; i += 2) pairs[i] = {0, 0};
    float dq[D / 8][4] = {};
    for (int pass = 0; pass < 2; ++pass) {
      for (int plane = planes.first; plane <= planes.last; ++plane)
        for (int line = lines.first; line <= lines.last; line += band_lines) {
          const Band band{plane, line, DsaGrid::min_of(line + band_lines, lines.last + 1), columns.first, width};
          const auto load = [&](MmaTile<kStep, D>& to, const void* from, int first) {
            load_rows<kVector>(to, from, g.head_dim, [&](int r) {
              return first + r < band.keys() ? base + band.token(g, first + r) * g.row : int64_t{-1};
            });
          };
          for (int first = 0; first < band.keys(); first += kStep) {
            load(s.keys, x.x.k, first);
            load(s.values, x.x.v, first);
            prim::cp_async_commit();
            prim::cp_async_wait<0>();
            __syncthreads();
            store_products(s.a, s.q, s.keys, first, row0);
            store_products(s.b, s.dout, s.values, first, row0);
            __syncthreads();
          }
          if (pass == 0) {
            if (own >= 0)
              for_corners(g, query.window, query.raw, group, band, owns, [&](int key, float weight, const TileSample& j) {
                float2& pair = pairs[j.slot];
                pair = {fmaf(weight, s.a[query.row][key], pair.x), fmaf(weight, s.b[query.row][key], pair.y)};
              });
            continue;
          }
          if (own >= 0) gather_offset_gradients(g, s, query, band, group, pairs);
          __syncthreads();
          for (int i = thread; i < kQueries * kBandRow; i += kThreads) s.a[i / kBandRow][i % kBandRow] = 0;
          __syncthreads();
          if (query.half == 0 && own >= 0)
            for_corners(g, query.window, query.raw, group, band, [](int, int, int) { return true; },
                        [&](int key, float weight, const TileSample& j) {
                          s.a[query.row][key] = fmaf(weight, pairs[j.slot].y, s.a[query.row][key]);
                        });
          for (int first = 0; first < band.keys(); first += kStep) {
            load(s.keys, x.x.k, first);
            prim::cp_async_commit();
            prim::cp_async_wait<0>();
            __syncthreads();
            multiply_band(dq, s.a, first, s.keys, row0);
            __syncthreads();
          }
        }
      if (pass == 0 && own >= 0)
        make_pairs(x, query, pairs, x.x.lse[(sample0 + own) * g.lse_row + head], row_dot(x, base + own * g.row));
    }
    for (int i = 0; i < 4; ++i) {
      const int64_t row = query_row(row0 + fragment_row(i));
      for (int n = 0; n < D / 8 && row >= 0; ++n)
        if (const int c = n * 8 + fragment_column(i); c < g.head_dim) x.x.dq[row + c] = dq[n][i];
    }
  }
}

template <int D, bool kVector>
void launch_tiles(Stream& stream, const TileArgs& x, int64_t blocks) {
  prim::launch(dsa_tile_query_kernel<D, kVector>, dim3(count32(blocks, "tiles")), dim3(kThreads), sizeof(TileShared<D>), stream, x);
}

}  // namespace

bool dsa_tile_backward_fits(const DsaShape& s, DType dtype) {
  if (dtype != DType::kBF16 || s.head_dim > 128) return false;
  const DsaGrid g(s);
  const int width = kSide + g.kernel[2] - 1 + Reach::below(g, 2) + Reach::above(g, 2);
  static_assert(sizeof(TileShared<128>) <= kTileSharedBytes);
  return std::min(width, g.length[2]) <= kBandKeys;
}

void dsa_tile_backward_queries(Stream& stream, const DsaTileBackward& x, const DsaShape& s) {
  const TileArgs a{x, DsaGrid(s), Tiling(s), DsaPairs(x.pairs, s, x.frame0, x.frame1)};
  const int64_t blocks = s.batch * (x.frame1 - x.frame0) * a.tiling.tiles_h * a.tiling.tiles_w * s.groups;
  if (!aligned_rows(s.head_dim, 8, x.q, x.k, x.v)) return launch_tiles<128, false>(stream, a, blocks);
  s.head_dim <= 64 ? launch_tiles<64, true>(stream, a, blocks) : launch_tiles<128, true>(stream, a, blocks);
}

}  // namespace megaslide
