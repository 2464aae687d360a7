// Attention in fp32: a block takes 32 rows of one side and walks the other, 32 at a time. A warp has 8 of the rows; its
// lanes are rows of the other side for the dot products, and channels for the sums.
#include <cmath>

#include "kernels/attention/sequences.cuh"

namespace megaslide {
namespace {

constexpr int kTile = 32, kRows = 8, kThreads = 128;

// Shared memory: tiles of 32 rows of `channels` floats, an odd distance apart, then a 32×32 matrix or two.
struct Tiles {
  float* memory;
  int stride;
  __device__ explicit Tiles(int channels) : memory(prim::dynamic_shared<float>()), stride(channels | 1) {}
  __device__ float* tile(int i) const { return memory + i * kTile * stride; }
  static size_t bytes(int tiles, int matrices, int channels) {
    return sizeof(float) * static_cast<size_t>(kTile) * static_cast<size_t>(tiles * (channels | 1) + matrices * kTile);
  }
};

// Rows [first, first + 32) of a sequence; zeros past its end.
template <class T>
__device__ void load_tile(const Tiles& tiles, int index, const T* from, const SequenceRows& rows, int first) {
  float* to = tiles.tile(index);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * rows.head_dim; i += kThreads) {
    const int r = i / rows.head_dim, c = i % rows.head_dim;
    to[r * tiles.stride + c] = first + r < rows.n ? prim::widen(from[rows.at(first + r) + c]) : 0.0f;
  }
}

// dots[r] = row (8·warp + r) of tile a · row `lane` of tile b.
__device__ void dot_rows(float (&dots)[kRows], const Tiles& tiles, int a, int b, int channels) {
  const float* left = tiles.tile(a) + threadIdx.x / 32 * kRows * static_cast<unsigned>(tiles.stride);
  const float* right = tiles.tile(b) + threadIdx.x % 32 * static_cast<unsigned>(tiles.stride);
  for (int r = 0; r < kRows; ++r) dots[r] = 0;
  MS_NO_UNROLL
  for (int c = 0; c < channels; ++c)
    for (int r = 0; r < kRows; ++r) dots[r] = fmaf(left[r * tiles.stride + c], right[c], dots[r]);
}

// sum[r][·] += Σ_j weights[8·warp + r][j] · row j of the tile, for the lane's channels.
template <int NC>
__device__ void add_rows(float (&sum)[kRows][NC], const float* weights, const Tiles& tiles, int index, int channels) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float* mine = weights + threadIdx.x / 32 * kRows * kTile;
  MS_NO_UNROLL
  for (int j = 0; j < kTile; ++j)
    MS_UNROLL
    for (int i = 0; i < NC; ++i) {
      const float x = lane + 32 * i < channels ? tiles.tile(index)[j * tiles.stride + lane + 32 * i] : 0.0f;
      MS_UNROLL
      for (int r = 0; r < kRows; ++r) sum[r][i] = fmaf(mine[r * kTile + j], x, sum[r][i]);
    }
}

template <int NC>
__device__ void store_rows(float* to, const float (&sum)[kRows][NC], const SequenceRows& rows, int first) {
  const int lane = static_cast<int>(threadIdx.x % 32), row0 = first + static_cast<int>(threadIdx.x / 32) * kRows;
  MS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    if (row0 + r >= rows.n) continue;
    MS_UNROLL
    for (int i = 0; i < NC; ++i)
      if (lane + 32 * i < rows.head_dim) to[rows.at(row0 + r) + lane + 32 * i] = sum[r][i];
  }
}

// Which sequence and which 32 rows of it a block has.
struct Place {
  int sequence, first;
  __device__ explicit Place(int rows) {
    const int tiles = (rows + kTile - 1) / kTile;
    sequence = static_cast<int>(blockIdx.x) / tiles;
    first = static_cast<int>(blockIdx.x) % tiles * kTile;
  }
};

template <class T, int NC>
__global__ void __launch_bounds__(kThreads, 2) attention_forward_kernel(SequenceForward x) {
  const Place place(x.sequences.queries);
  const SequenceRows queries = x.sequences.rows(place.sequence, 0), keys = x.sequences.rows(place.sequence, 1);
  if (place.first >= queries.n) return;
  const int d = x.sequences.head_dim, lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const Tiles tiles(d);
  float* p = tiles.tile(3);
  float top[kRows], total[kRows], sum[kRows][NC] = {};
  for (int r = 0; r < kRows; ++r) top[r] = -INFINITY, total[r] = 0;
  load_tile(tiles, 0, static_cast<const T*>(x.q), queries, place.first);
  for (int first = 0; first < keys.n; first += kTile) {
    load_tile(tiles, 1, static_cast<const T*>(x.k), keys, first);
    load_tile(tiles, 2, static_cast<const T*>(x.v), keys, first);
    __syncthreads();
    float dots[kRows];
    dot_rows(dots, tiles, 0, 1, d);
    const bool exists = first + lane < keys.n;
    MS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float s = exists ? dots[r] * x.sequences.scale : -INFINITY;
      const float higher = fmaxf(top[r], prim::warp_max(s)), rescale = first == 0 ? 0.0f : expf(top[r] - higher);
      const float e = exists ? expf(s - higher) : 0.0f;
      p[(warp * kRows + r) * kTile + lane] = e;
      total[r] = total[r] * rescale + prim::warp_sum(e);
      top[r] = higher;
      MS_UNROLL
      for (int i = 0; i < NC; ++i) sum[r][i] *= rescale;
    }
    __syncwarp();
    add_rows(sum, p, tiles, 2, d);
    __syncthreads();
  }
  MS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MS_UNROLL
    for (int i = 0; i < NC; ++i) sum[r][i] /= total[r];
    const int row = place.first + warp * kRows + r;
    if (lane == 0 && row < queries.n) x.lse[queries.unit(row)] = top[r] + logf(total[r]);
  }
  store_rows(x.out, sum, queries, place.first);
}

// P and dS (with the scale) of a query and a key.
struct Pair {
  float p, ds;
};
__device__ Pair pair_gradient(const SequenceBackward& x, float dot, float dp, int64_t query, bool exists, bool alone) {
  if (!exists) return {0, 0};
  const float p = expf(dot * x.sequences.scale - x.lse[query]);
  return {p, alone ? 0.0f : p * (dp - x.d[query]) * x.sequences.scale};  // of a single key P = 1, exactly
}

template <class T, int NC>
__global__ void __launch_bounds__(kThreads, 2) attention_query_gradient_kernel(SequenceBackward x) {
  const Place place(x.sequences.queries);
  const SequenceRows queries = x.sequences.rows(place.sequence, 0), keys = x.sequences.rows(place.sequence, 1);
  if (place.first >= queries.n) return;
  const int d = x.sequences.head_dim, lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const Tiles tiles(d);
  float* ds = tiles.tile(4);
  float sum[kRows][NC] = {};
  load_tile(tiles, 0, static_cast<const T*>(x.q), queries, place.first);
  load_tile(tiles, 1, x.dout, queries, place.first);
  for (int first = 0; first < keys.n; first += kTile) {
    load_tile(tiles, 2, static_cast<const T*>(x.k), keys, first);
    load_tile(tiles, 3, static_cast<const T*>(x.v), keys, first);
    __syncthreads();
    float dots[kRows], dp[kRows];
    dot_rows(dots, tiles, 0, 2, d);
    dot_rows(dp, tiles, 1, 3, d);
    for (int r = 0; r < kRows; ++r) {
      const int row = place.first + warp * kRows + r;
      const bool exists = row < queries.n && first + lane < keys.n;
      ds[(warp * kRows + r) * kTile + lane] =
          pair_gradient(x, dots[r], dp[r], exists ? queries.unit(row) : 0, exists, keys.n == 1).ds;
    }
    __syncwarp();
    add_rows(sum, ds, tiles, 2, d);
    __syncthreads();
  }
  store_rows(x.dq, sum, queries, place.first);
}

template <class T, int NC>
__global__ void __launch_bounds__(kThreads) attention_key_gradient_kernel(SequenceBackward x) {
  const Place place(x.sequences.keys);
  const SequenceRows queries = x.sequences.rows(place.sequence, 0), keys = x.sequences.rows(place.sequence, 1);
  if (place.first >= keys.n) return;
  const int d = x.sequences.head_dim, lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const Tiles tiles(d);
  float *p = tiles.tile(4), *ds = p + kTile * kTile;
  float dk[kRows][NC] = {}, dv[kRows][NC] = {};
  load_tile(tiles, 0, static_cast<const T*>(x.k), keys, place.first);
  load_tile(tiles, 1, static_cast<const T*>(x.v), keys, place.first);
  for (int first = 0; first < queries.n; first += kTile) {
    load_tile(tiles, 2, static_cast<const T*>(x.q), queries, first);
    load_tile(tiles, 3, x.dout, queries, first);
    __syncthreads();
    float dots[kRows], dp[kRows];
    dot_rows(dots, tiles, 0, 2, d);
    dot_rows(dp, tiles, 1, 3, d);
    const bool real = first + lane < queries.n;
    const int64_t query = real ? queries.unit(first + lane) : 0;
    for (int r = 0; r < kRows; ++r) {
      const int row = warp * kRows + r;
      const Pair pair = pair_gradient(x, dots[r], dp[r], query, real && place.first + row < keys.n, keys.n == 1);
      p[row * kTile + lane] = pair.p;
      ds[row * kTile + lane] = pair.ds;
    }
    __syncwarp();
    add_rows(dv, p, tiles, 3, d);
    add_rows(dk, ds, tiles, 2, d);
    __syncthreads();
  }
  store_rows(x.dk, dk, keys, place.first);
  store_rows(x.dv, dv, keys, place.first);
}

dim3 tile_grid(const Sequences& s, int rows) {
  return dim3(count32(int64_t{s.count()} * ((rows + kTile - 1) / kTile), "tiles of rows"));
}

template <class T, int NC>
void launch_backward(Stream& stream, const SequenceBackward& x) {
  const Sequences& s = x.sequences;
  if (s.queries > 0)
    prim::launch(attention_query_gradient_kernel<T, NC>, tile_grid(s, s.queries), dim3(kThreads),
                 Tiles::bytes(4, 1, s.head_dim), stream, x);
  prim::launch(attention_key_gradient_kernel<T, NC>, tile_grid(s, s.keys), dim3(kThreads), Tiles::bytes(4, 2, s.head_dim),
               stream, x);
}

}  // namespace

void attention_plain_forward(Stream& stream, const SequenceForward& x, DType dtype) {
  const Sequences& s = x.sequences;
  const auto kernel = dtype == DType::kBF16 ? attention_forward_kernel<bf16, 8>
                      : s.head_dim <= 128   ? attention_forward_kernel<float, 4>
                                            : attention_forward_kernel<float, 8>;
  prim::launch(kernel, tile_grid(s, s.queries), dim3(kThreads), Tiles::bytes(3, 1, s.head_dim), stream, x);
}

void attention_plain_backward(Stream& stream, const SequenceBackward& x, DType dtype) {
  if (dtype == DType::kBF16) return launch_backward<bf16, 8>(stream, x);
  x.sequences.head_dim <= 128 ? launch_backward<float, 4>(stream, x) : launch_backward<float, 8>(stream, x);
}

}  // namespace megaslide
