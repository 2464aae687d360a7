#include <algorithm>

#include "kernels/dsa/pooled_cuda.h"
#include "kernels/elements.cuh"

namespace megaslide {
namespace {

using cuda::pooled_elements;
using cuda::tile_attention;

struct Tiling {
  int length[3], size[3], count[3];
  int tokens, tiles, row, head_dim;  // row: heads · d
  explicit Tiling(const PooledShape& s)
      : length{static_cast<int>(s.frames), static_cast<int>(s.height), static_cast<int>(s.width)},
        size{static_cast<int>(s.tile[0]), static_cast<int>(s.tile[1]), static_cast<int>(s.tile[2])},
        tokens(static_cast<int>(count32(s.batch * s.tokens(), "tokens") / std::max<int64_t>(s.batch, 1))),
        tiles(static_cast<int>(s.tiles())), row(static_cast<int>(s.heads * s.head_dim)), head_dim(static_cast<int>(s.head_dim)) {
    for (int a = 0; a < 3; ++a) count[a] = (length[a] + size[a] - 1) / size[a];
  }
  __device__ int tile_of(int token) const {
    const int t = token / (length[1] * length[2]), h = token / length[2] % length[1], w = token % length[2];
    return (t / size[0] * count[1] + h / size[1]) * count[2] + w / size[2];
  }
  // Tokens of a tile along one axis: [first, last).
  __device__ int first(int tile, int a) const {
    return (a == 0 ? tile / (count[1] * count[2]) : a == 1 ? tile / count[2] % count[1] : tile % count[2]) * size[a];
  }
  __device__ int last(int tile, int a) const {
    const int end = first(tile, a) + size[a];
    return end < length[a] ? end : length[a];
  }
  __device__ int members(int tile) const {
    return (last(tile, 0) - first(tile, 0)) * (last(tile, 1) - first(tile, 1)) * (last(tile, 2) - first(tile, 2));
  }
};

// Sum or mean over the tokens of each tile, in order: a thread an element of (B, M, heads · d).
__global__ void __launch_bounds__(256) pool_kernel(float* to, AnyElements from, Tiling g, int64_t elements, bool mean) {
  const int64_t i = element_index();
  if (i >= elements) return;
  const int c = static_cast<int>(i % g.row), unit = static_cast<int>(i / g.row), tile = unit % g.tiles;
  const int64_t base = int64_t{unit / g.tiles} * g.tokens;
  float sum = 0;
  for (int t = g.first(tile, 0); t < g.last(tile, 0); ++t)
    for (int h = g.first(tile, 1); h < g.last(tile, 1); ++h)
      for (int w = g.first(tile, 2); w < g.last(tile, 2); ++w)
        sum += from.at((base + (int64_t{t} * g.length[1] + h) * g.length[2] + w) * g.row + c);
  to[i] = mean ? sum / static_cast<float>(g.members(tile)) : sum;
}

// to[p] += factor · from[tile(p)]: by the gate of the head, or one over the tile's tokens. A thread an element of to.
__global__ void __launch_bounds__(256) spread_kernel(float* to, const float* from, AnyElements gate, bool gated, Tiling g,
                                                     int64_t elements) {
  const int64_t i = element_index();
  if (i >= elements) return;
  const int c = static_cast<int>(i % g.row), unit = static_cast<int>(i / g.row);
  const int tile = g.tile_of(unit % g.tokens);
  const float x = from[(int64_t{unit / g.tokens} * g.tiles + tile) * g.row + c];
  to[i] += gated ? gate.at(c / g.head_dim) * x : x / static_cast<float>(g.members(tile));
}

// dgate[head] += Σ dout·out in fp64 (many cancelling terms), a block of 128 a head; then dout takes the gate's factor.
__global__ void __launch_bounds__(128) gate_kernel(float* dgate, float* dout, const float* out, AnyElements gate, int64_t rows,
                                                   int row, int head_dim) {
  double* part = prim::dynamic_shared<double>();
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int64_t i = thread; i < rows * head_dim; i += 128) {
    const int64_t at = i / head_dim * row + int64_t{head} * head_dim + i % head_dim;
    sum += static_cast<double>(dout[at]) * static_cast<double>(out[at]);
    dout[at] *= gate.at(head);
  }
  part[thread] = sum;
  __syncthreads();
  if (thread != 0) return;
  for (int i = 1; i < 128; ++i) sum += part[i];
  dgate[head] += static_cast<float>(sum);
}

// q̄, k̄, v̄, Ō and the lse in `saved`.
template <class P>
struct Saved {
  P *q, *k, *v, *out, *lse;
  Saved(P* base, int64_t n) : q(base), k(base + n), v(base + 2 * n), out(base + 3 * n), lse(base + 4 * n) {}
};

void pool(Stream& stream, float* to, const void* from, DType dtype, const PooledShape& s, bool mean) {
  prim::launch(pool_kernel, element_grid(pooled_elements(s)), element_block(), 0, stream, to, AnyElements(from, dtype), Tiling(s),
               pooled_elements(s), mean);
}
void spread(Stream& stream, float* to, const float* from, const void* gate, const PooledShape& s) {
  const int64_t n = s.batch * s.tokens() * s.heads * s.head_dim;
  prim::launch(spread_kernel, element_grid(n), element_block(), 0, stream, to, from, AnyElements(gate, s.gate_dtype), gate != nullptr,
               Tiling(s), n);
}

}  // namespace

namespace cuda {

void pooled_forward(Stream& stream, float* out, float* saved, const void* q, const void* k, const void* v,
                    const void* gate, void*, PooledShape s, DType dtype) {
  if (pooled_elements(s) == 0) return;
  const Saved<float> x(saved, pooled_elements(s));
  pool(stream, x.q, q, dtype, s, true);
  pool(stream, x.k, k, dtype, s, true);
  pool(stream, x.v, v, dtype, s, true);
  dense_attention_forward(stream, x.out, x.lse, x.q, x.k, x.v, nullptr, tile_attention(s), DType::kF32);
  spread(stream, out, x.out, gate, s);
}

void pooled_backward(Stream& stream, float* dq, float* dk, float* dv, float* dgate, const float* saved,
                     const void* gate, const float* dout, void* workspace, PooledShape s) {
  if (pooled_elements(s) == 0) return;
  const Saved<const float> x(saved, pooled_elements(s));
  Carver carver(workspace);
  const PooledBackwardSpace w(carver, s);
  pool(stream, w.dout, dout, DType::kF32, s, false);
  prim::launch(gate_kernel, dim3(static_cast<unsigned>(s.heads)), dim3(128), 128 * sizeof(double), stream, dgate, w.dout, x.out,
               AnyElements(gate, s.gate_dtype), s.batch * s.tiles(), static_cast<int>(s.heads * s.head_dim),
               static_cast<int>(s.head_dim));
  dense_attention_backward(stream, w.dq, w.dk, w.dv, x.q, x.k, x.v, x.out, x.lse, w.dout, w.attention, tile_attention(s),
                           DType::kF32);
  spread(stream, dq, w.dq, nullptr, s);
  spread(stream, dk, w.dk, nullptr, s);
  spread(stream, dv, w.dv, nullptr, s);
}

}  // namespace cuda
}  // namespace megaslide
