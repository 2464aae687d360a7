// Attention in bf16 on tensor cores, online softmax: a block of four warps takes 64 rows of one side, a warp 16 of them,
// and walks the other side in tiles.
#include <cmath>

#include "kernels/attention/sequences.cuh"
#include "kernels/mma_tiles.cuh"

namespace megaslide {
namespace {

constexpr int kThreads = kMmaThreads, kRows = 64;
constexpr int kForwardTile = 64, kBackwardTile = 32;  // backward holds two products and two sums in registers

template <int D>
struct ForwardShared {
  MmaTile<kRows, D> q;
  MmaTile<kForwardTile, D> k[2], v[2];
};
template <int D>
struct QueryShared {
  MmaTile<kRows, D> q, dout;
  MmaTile<kBackwardTile, D> k, v;
};
template <int D>
struct KeyShared {
  MmaTile<kRows, D> k, v;
  MmaTile<kBackwardTile, D> q, dout;
  float lse[kBackwardTile], d[kBackwardTile];
};

// Rows [first, first + R) of a sequence; zeros past its end.
template <bool kVector, int R, int D>
__device__ void load_tile(MmaTile<R, D>& to, const void* from, const SequenceRows& rows, int first) {
  load_rows<kVector>(to, from, rows.head_dim, [&](int r) { return first + r < rows.n ? rows.at(first + r) : int64_t{-1}; });
}

// The same of fp32 rows, rounded.
template <int R, int D>
__device__ void load_rounded(MmaTile<R, D>& to, const float* from, const SequenceRows& rows, int first) {
  for (int i = static_cast<int>(threadIdx.x); i < R * D / 2; i += kThreads) {
    const int r = i / (D / 2), c = i % (D / 2) * 2;
    const bool exists = first + r < rows.n;
    const float* p = from + (exists ? rows.at(first + r) : 0) + c;
    const float lo = exists && c < rows.head_dim ? p[0] : 0.0f, hi = exists && c + 1 < rows.head_dim ? p[1] : 0.0f;
    prim::store_bf16(&to.at[r][c], lo, hi);
  }
}

struct Place {
  int sequence, first, row0;  // row0: of the warp, among the block's 64
  __device__ Place(int rows) {
    const int tiles = (rows + kRows - 1) / kRows;
    sequence = static_cast<int>(blockIdx.x) / tiles;
    first = static_cast<int>(blockIdx.x) % tiles * kRows;
    row0 = static_cast<int>(threadIdx.x / 32) * 16;
  }
};

// Writes a warp's 16 rows, times `factor` of the upper and lower half of each fragment.
template <int CT>
__device__ void store_rows(float* to, const float (&sum)[CT][4], const SequenceRows& rows, int first, float upper, float lower) {
  for (int half = 0; half < 2; ++half) {
    const int row = first + fragment_row(2 * half);
    if (row >= rows.n) continue;
    float* p = to + rows.at(row);
    const float factor = half == 0 ? upper : lower;
    for (int n = 0; n < CT; ++n)
      for (int i = 0; i < 2; ++i) {
        const int c = n * 8 + fragment_column(i);
        if (c < rows.head_dim) p[c] = sum[n][2 * half + i] * factor;
      }
  }
}

template <int D, bool kVector>
__global__ void __launch_bounds__(kThreads, 2) attention_mma_forward_kernel(SequenceForward x) {
  const Place place(x.sequences.queries);
  const SequenceRows queries = x.sequences.rows(place.sequence, 0), keys = x.sequences.rows(place.sequence, 1);
  if (place.first >= queries.n) return;
  auto& s = *prim::dynamic_shared<ForwardShared<D>>();
  const auto load_keys = [&](int buffer, int first) {
    load_tile<kVector>(s.k[buffer], x.k, keys, first);
    load_tile<kVector>(s.v[buffer], x.v, keys, first);
    prim::cp_async_commit();
  };
  load_tile<kVector>(s.q, x.q, queries, place.first);
  load_keys(0, 0);
  float out[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {};
  for (int first = 0, buffer = 0; first < keys.n; first += kForwardTile, buffer ^= 1) {
    if (first + kForwardTile < keys.n) {
      load_keys(buffer ^ 1, first + kForwardTile);
      prim::cp_async_wait<1>();
    } else {
      prim::cp_async_wait<0>();
    }
    __syncthreads();
    float p[kForwardTile / 8][4] = {};
    multiply_rows(p, s.q, place.row0, s.k[buffer]);
    float higher[2] = {top[0], top[1]}, sum[2] = {};
    for (int n = 0; n < kForwardTile / 8; ++n)
      for (int i = 0; i < 4; ++i) {
        p[n][i] = first + n * 8 + fragment_column(i) < keys.n ? p[n][i] * x.sequences.scale : -INFINITY;
        higher[i / 2] = fmaxf(higher[i / 2], p[n][i]);
      }
    for (int h = 0; h < 2; ++h) {
      higher[h] = row_max(higher[h]);
      const float rescale = first == 0 ? 0.0f : expf(top[h] - higher[h]);
      for (int n = 0; n < kForwardTile / 8; ++n)
        for (int i = 2 * h; i < 2 * h + 2; ++i) sum[h] += p[n][i] = expf(p[n][i] - higher[h]);
      total[h] = total[h] * rescale + row_sum(sum[h]);
      for (int n = 0; n < D / 8; ++n) out[n][2 * h] *= rescale, out[n][2 * h + 1] *= rescale;
      top[h] = higher[h];
    }
    multiply_weights(out, p, s.v[buffer]);
    __syncthreads();
  }
  store_rows(x.out, out, queries, place.first + place.row0, 1 / total[0], 1 / total[1]);
  for (int h = 0; h < 2; ++h) {
    const int row = place.first + place.row0 + fragment_row(2 * h);
    if (threadIdx.x % 4 == 0 && row < queries.n) x.lse[queries.unit(row)] = top[h] + logf(total[h]);
  }
}

template <int D, bool kVector>
__global__ void __launch_bounds__(kThreads, 2) attention_mma_query_kernel(SequenceBackward x) {
  const Place place(x.sequences.queries);
  const SequenceRows queries = x.sequences.rows(place.sequence, 0), keys = x.sequences.rows(place.sequence, 1);
  if (place.first >= queries.n) return;
  auto& s = *prim::dynamic_shared<QueryShared<D>>();
  load_tile<kVector>(s.q, x.q, queries, place.first);
  load_rounded(s.dout, x.dout, queries, place.first);
  float lse[2], d[2], dq[D / 8][4] = {};
  for (int h = 0; h < 2; ++h) {
    const int row = place.first + place.row0 + fragment_row(2 * h);
    lse[h] = row < queries.n ? x.lse[queries.unit(row)] : 0.0f;
    d[h] = row < queries.n ? x.d[queries.unit(row)] : 0.0f;
  }
  for (int first = 0; first < keys.n; first += kBackwardTile) {
    load_tile<kVector>(s.k, x.k, keys, first);
    load_tile<kVector>(s.v, x.v, keys, first);
    prim::cp_async_commit();
    prim::cp_async_wait<0>();
    __syncthreads();
    float ds[kBackwardTile / 8][4] = {}, dp[kBackwardTile / 8][4] = {};
    multiply_rows(ds, s.q, place.row0, s.k);
    multiply_rows(dp, s.dout, place.row0, s.v);
    for (int n = 0; n < kBackwardTile / 8; ++n)
      for (int i = 0; i < 4; ++i) {
        const bool counts = first + n * 8 + fragment_column(i) < keys.n && keys.n > 1;  // of a single key P = 1, exactly
        ds[n][i] = counts ? expf(ds[n][i] * x.sequences.scale - lse[i / 2]) * (dp[n][i] - d[i / 2]) * x.sequences.scale : 0.0f;
      }
    multiply_weights(dq, ds, s.k);
    __syncthreads();
  }
  store_rows(x.dq, dq, queries, place.first + place.row0, 1, 1);
}

template <int D, bool kVector>
__global__ void __launch_bounds__(kThreads) attention_mma_key_kernel(SequenceBackward x) {
  const Place place(x.sequences.keys);
  const SequenceRows queries = x.sequences.rows(place.sequence, 0), keys = x.sequences.rows(place.sequence, 1);
  if (place.first >= keys.n) return;
  auto& s = *prim::dynamic_shared<KeyShared<D>>();
  load_tile<kVector>(s.k, x.k, keys, place.first);
  load_tile<kVector>(s.v, x.v, keys, place.first);
  prim::cp_async_commit();
  float dk[D / 8][4] = {}, dv[D / 8][4] = {};
  for (int first = 0; first < queries.n; first += kBackwardTile) {
    load_tile<kVector>(s.q, x.q, queries, first);
    load_rounded(s.dout, x.dout, queries, first);
    if (const int i = static_cast<int>(threadIdx.x); i < kBackwardTile) {
      s.lse[i] = first + i < queries.n ? x.lse[queries.unit(first + i)] : 0.0f;
      s.d[i] = first + i < queries.n ? x.d[queries.unit(first + i)] : 0.0f;
    }
    prim::cp_async_commit();
    prim::cp_async_wait<0>();
    __syncthreads();
    float p[kBackwardTile / 8][4] = {}, ds[kBackwardTile / 8][4] = {};
    multiply_rows(p, s.k, place.row0, s.q);
    multiply_rows(ds, s.v, place.row0, s.dout);
    for (int n = 0; n < kBackwardTile / 8; ++n)
      for (int i = 0; i < 4; ++i) {
        const int query = n * 8 + fragment_column(i);
        p[n][i] = first + query < queries.n ? expf(p[n][i] * x.sequences.scale - s.lse[query]) : 0.0f;
        ds[n][i] = keys.n > 1 ? p[n][i] * (ds[n][i] - s.d[query]) * x.sequences.scale : 0.0f;
      }
    multiply_weights(dv, p, s.dout);
    multiply_weights(dk, ds, s.q);
    __syncthreads();
  }
  prim::cp_async_wait<0>();
  store_rows(x.dk, dk, keys, place.first + place.row0, 1, 1);
  store_rows(x.dv, dv, keys, place.first + place.row0, 1, 1);
}

dim3 tile_grid(const Sequences& s, int rows) {
  return dim3(count32(int64_t{s.count()} * ((rows + kRows - 1) / kRows), "tiles of rows"));
}

template <int D, bool kVector>
void launch_backward(Stream& stream, const SequenceBackward& x) {
  const Sequences& s = x.sequences;
  if (s.queries > 0)
    prim::launch(attention_mma_query_kernel<D, kVector>, tile_grid(s, s.queries), dim3(kThreads), sizeof(QueryShared<D>), stream, x);
  prim::launch(attention_mma_key_kernel<D, kVector>, tile_grid(s, s.keys), dim3(kThreads), sizeof(KeyShared<D>), stream, x);
}

template <int D, bool kVector>
void launch_forward(Stream& stream, const SequenceForward& x) {
  prim::launch(attention_mma_forward_kernel<D, kVector>, tile_grid(x.sequences, x.sequences.queries), dim3(kThreads),
               sizeof(ForwardShared<D>), stream, x);
}

bool vectors(const Sequences& s, const void* q, const void* k, const void* v) { return aligned_rows(s.head_dim, 8, q, k, v); }

}  // namespace

void attention_mma_forward(Stream& stream, const SequenceForward& x) {
  if (!vectors(x.sequences, x.q, x.k, x.v)) return launch_forward<kMmaHeadDim, false>(stream, x);
  x.sequences.head_dim <= 64 ? launch_forward<64, true>(stream, x) : launch_forward<kMmaHeadDim, true>(stream, x);
}

void attention_mma_backward(Stream& stream, const SequenceBackward& x) {
  if (!vectors(x.sequences, x.q, x.k, x.v)) return launch_backward<kMmaHeadDim, false>(stream, x);
  x.sequences.head_dim <= 64 ? launch_backward<64, true>(stream, x) : launch_backward<kMmaHeadDim, true>(stream, x);
}

}  // namespace megaslide
