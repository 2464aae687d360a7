// Kernel B of spec dsa.md §3, backward for the keys: dk and dv. A block has a tile of 8×8 keys of one frame and a head, and
// walks the tiles of queries whose samples reach it, in a fixed order. The queries' samples scatter P and dS over the
// block's keys, into columns of their own; then dv += Πᵀ·dO and dk += Γᵀ·q on tensor cores.
#include <algorithm>
#include <cmath>

#include "kernels/dsa/dsa_tile_cuda.h"
#include "kernels/dsa/dsa_tiles.cuh"

namespace megaslide {
namespace {

constexpr int kThreads = 2 * kMmaThreads;
constexpr int kRow = kQueries + 1;  // odd: the queries' threads meet no bank twice

struct KeyArgs {
  DsaTileKeys x;
  DsaGrid grid;
  Tiling tiling;
  DsaPairs pairs;
  int key_frame0, key_frames;
};

template <int D>
struct KeyShared {
  MmaTile<kQueries, D> q, dout;
  float p[kQueries][kRow], ds[kQueries][kRow];  // [key][query]: what the key weighs in the query's P and dS
};

// Whether a sample of the tile's queries may have a corner among coordinates [first, last] along an axis.
__device__ bool reaches(const DsaGrid& g, int axis, int frame, int p0, int p1, int first, int last) {
  const Reach r(g, axis, frame, p0, p1);
  return r.first <= last && r.last >= first;
}

// body(query tile) for those of a band of frames that reach the keys, frame by frame and line by line.
template <class F>
__device__ void for_query_tiles(const KeyArgs& x, const Tile& keys, const F& body) {
  const DsaGrid& g = x.grid;
  const auto far = [&](int axis) { return g.kernel[axis] + static_cast<int>(ceilf(g.reach[axis])); };
  const int last_frame = DsaGrid::min_of(x.x.frame1 - 1, keys.frame + far(0));
  for (int frame = DsaGrid::max_of(x.x.frame0, keys.frame - far(0)); frame <= last_frame; ++frame) {
    if (!reaches(g, 0, frame, frame, frame, keys.frame, keys.frame)) continue;
    for (int h0 = DsaGrid::max_of(0, (keys.h0 - far(1)) / kSide * kSide); h0 <= keys.h1 + far(1) && h0 < g.length[1]; h0 += kSide)
      for (int w0 = DsaGrid::max_of(0, (keys.w0 - far(2)) / kSide * kSide); w0 <= keys.w1 + far(2) && w0 < g.length[2]; w0 += kSide) {
        const Tile tile(g, keys.b, frame, h0, w0);
        if (reaches(g, 1, frame, h0, tile.h1, keys.h0, keys.h1) && reaches(g, 2, frame, w0, tile.w1, keys.w0, keys.w1)) body(tile);
      }
  }
}

// Half of a query's column of p or ds: the keys in lines [line0, line0 + kSide / 2) of the tile.
__device__ void scatter_samples(const KeyArgs& x, float (&to)[kQueries][kRow], bool ds, const Tile& keys, int own, int query, int line0,
                                int head) {
  const DsaGrid& g = x.grid;
  for (int key = line0 * kSide; key < (line0 + kSide / 2) * kSide; ++key) to[key][query] = 0;
  if (own < 0) return;
  const DsaWindow window(g, own);
  const float* raw = x.x.offsets + (int64_t{keys.b} * g.tokens + own) * g.row_offsets;
  const float2* pairs = x.pairs.of(keys.b, head, own);
  const Band band{keys.frame, keys.h0 + line0, DsaGrid::min_of(keys.h0 + line0 + kSide / 2, keys.h1 + 1), keys.w0, kSide};
  const auto may_reach = [&](int, int, int jw) {
    const int base = window.start[2] + jw;
    return base + Reach::above(g, 2) >= keys.w0 && base - Reach::below(g, 2) <= keys.w1;
  };
  for_samples(g, window, raw, g.group_of(head), band, may_reach, [&](const TileSample& j) {
    const float weight_t = weight_at(j.t, keys.frame);
    if (weight_t == 0) return;
    const float value = weight_t * (ds ? pairs[j.slot].y : pairs[j.slot].x);
    MS_NO_UNROLL
    for (int corner = 0; corner < 4; ++corner) {
      const int h = corner / 2 == 0 ? j.h.i0 : j.h.i1, w = corner % 2 == 0 ? j.w.i0 : j.w.i1;
      const float weight = (corner / 2 == 0 ? 1 - j.h.f : j.h.f) * (corner % 2 == 0 ? 1 - j.w.f : j.w.f);
      if (weight == 0 || h < band.row0 || h >= band.row1 || w < keys.w0 || w > keys.w1) continue;
      float& sum = to[(h - keys.h0) * kSide + w - keys.w0][query];
      sum = fmaf(weight, value, sum);
    }
  });
}

// Half of the block's threads has p and dv, the other ds and dk.
template <int D, bool kVector>
__global__ void __launch_bounds__(kThreads, 1) dsa_tile_key_kernel(KeyArgs x) {
  const DsaGrid& g = x.grid;
  auto& s = *prim::dynamic_shared<KeyShared<D>>();
  const Tile keys(g, x.tiling, g.heads, x.key_frame0, x.key_frames);
  const int thread = static_cast<int>(threadIdx.x) % kMmaThreads, row0 = thread / 32 * 16, head = keys.inner;
  const bool second = threadIdx.x >= kMmaThreads;
  float* const to = second ? x.x.dk : x.x.dv;
  auto& weights = second ? s.ds : s.p;
  const auto& values = second ? s.q : s.dout;
  const int64_t base = int64_t{keys.b} * g.tokens * g.row + int64_t{head} * g.head_dim;
  float sum[D / 8][4];
  const auto for_results = [&](const auto& body) {
    for (int i = 0; i < 4; ++i) {
      const int token = keys.token(g, row0 + fragment_row(i));
      for (int n = 0; n < D / 8; ++n) {
        const int c = n * 8 + fragment_column(i);
        body(sum[n][i], token >= 0 && c < g.head_dim ? base + token * g.row + c : int64_t{-1});
      }
    }
  };
  // They go on where earlier bands ended: bands do not change the bits.
  for_results([&](float& value, int64_t at) { value = at < 0 ? 0 : to[at]; });
  for_query_tiles(x, keys, [&](const Tile& tile) {
    const auto query_row = [&](int r) {
      const int t = tile.token(g, r);
      return t < 0 ? int64_t{-1} : base + t * g.row;
    };
    if (second) {
      load_rows<kVector>(s.q, x.x.q, g.head_dim, query_row, thread);
      prim::cp_async_commit();
    } else {
      load_rounded(s.dout, x.x.dout, g.head_dim, query_row);
    }
    scatter_samples(x, weights, second, keys, tile.token(g, thread % kQueries), thread % kQueries, thread / kQueries * kSide / 2, head);
    prim::cp_async_wait<0>();
    __syncthreads();
    multiply_band(sum, weights, 0, values, row0);
    __syncthreads();
  });
  for_results([&](float& value, int64_t at) {
    if (at >= 0) to[at] = value;
  });
}

template <int D, bool kVector>
void launch_tiles(Stream& stream, const KeyArgs& x, int64_t blocks) {
  static_assert(sizeof(KeyShared<D>) <= kTileSharedBytes);
  prim::launch(dsa_tile_key_kernel<D, kVector>, dim3(count32(blocks, "tiles")), dim3(kThreads), sizeof(KeyShared<D>), stream, x);
}

}  // namespace

void dsa_tile_backward_keys(Stream& stream, const DsaTileKeys& x, const DsaShape& s) {
  const DsaGrid g(s);
  const int far = g.kernel[0] + static_cast<int>(std::ceil(g.reach[0]));
  const int first = std::max(0, x.frame0 - far), last = std::min(g.length[0], x.frame1 + far);
  const KeyArgs a{x, g, Tiling(s), DsaPairs(x.pairs, s, x.frame0, x.frame1), first, last - first};
  const int64_t blocks = s.batch * (last - first) * a.tiling.tiles_h * a.tiling.tiles_w * s.heads;
  if (!aligned_rows(s.head_dim, 8, x.q)) return launch_tiles<128, false>(stream, a, blocks);
  s.head_dim <= 64 ? launch_tiles<64, true>(stream, a, blocks) : launch_tiles<128, true>(stream, a, blocks);
}

}  // namespace megaslide
