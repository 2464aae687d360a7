// dense-materialised: the matrices of all heads as (B, heads, N, M) fp32 in the workspace, products of fp32 numbers.
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/elements.cuh"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

// One operand or result: element (row, column) of a head's matrix is at batch·b + head·h + row·r + column·c.
template <class T>
struct Matrix {
  T* data;
  int64_t batch, head;
  int row, column;
  __device__ T* of(int b, int h) const { return data + b * batch + h * head; }
};
template <class T>
Matrix<T> transposed(Matrix<T> m) {
  return {m.data, m.batch, m.head, m.column, m.row};
}

constexpr int kTile = 64, kDepth = 16, kProductThreads = 256;

struct ProductShared {
  float left[kDepth][kTile + 4], right[kDepth][kTile + 4];
};

// Elements (line, depth) of a tile that begins at `from`, zeros from `lines` and `depth` on. Neighbouring threads read along
// the direction in which elements are neighbours.
template <class T>
__device__ __forceinline__ void load_tile(float (&to)[kDepth][kTile + 4], const T* from, int line_stride, int depth_stride, int64_t lines,
                                          int64_t depth) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kProductThreads) {
    const int line = depth_stride == 1 ? i / kDepth : i % kTile, t = depth_stride == 1 ? i % kDepth : i / kTile;
    to[t][line] = line < lines && t < depth ? prim::widen(from[line * line_stride + t * depth_stride]) : 0.0f;
  }
}

struct Extents {
  int64_t rows, columns, depth;
  int heads;
  float scale;
};

// out = scale · left·right, rows of out contiguous, a block 64×64 of a head's matrix, a thread 4×4.
template <class L, class R>
__global__ void __launch_bounds__(kProductThreads) attention_product_kernel(Matrix<float> out, Matrix<const L> left, Matrix<const R> right,
                                                                            Extents e) {
  ProductShared& s = *prim::dynamic_shared<ProductShared>();
  const int b = static_cast<int>(blockIdx.z) / e.heads, h = static_cast<int>(blockIdx.z) % e.heads;
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
  const int64_t row0 = int64_t{blockIdx.y} * kTile, column0 = int64_t{blockIdx.x} * kTile;
  float sum[4][4] = {};
  const L* lines = left.of(b, h) + row0 * left.row;
  const R* columns = right.of(b, h) + column0 * right.column;
  for (int64_t t0 = 0; t0 < e.depth; t0 += kDepth) {
    load_tile(s.left, lines + t0 * left.column, left.row, left.column, e.rows - row0, e.depth - t0);
    load_tile(s.right, columns + t0 * right.row, right.column, right.row, e.columns - column0, e.depth - t0);
    __syncthreads();
    MS_UNROLL
    for (int t = 0; t < kDepth; ++t)
      MS_UNROLL
      for (int i = 0; i < 4; ++i)
        MS_UNROLL
        for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(s.left[t][row + i], s.right[t][column + j], sum[i][j]);
    __syncthreads();
  }
  float* to = out.of(b, h);
  MS_UNROLL
  for (int i = 0; i < 4; ++i)
    MS_UNROLL
    for (int j = 0; j < 4; ++j)
      if (row0 + row + i < e.rows && column0 + column + j < e.columns)
        to[(row0 + row + i) * out.row + column0 + column + j] = e.scale * sum[i][j];
}

// ---- rows of a matrix, a warp each: row (b·heads + h)·N + query ----

struct Rows {
  unsigned count, queries, heads;
  int64_t keys, head_dim;
  // The row's query in (B, N, heads).
  __device__ int64_t token(unsigned row) const {
    const unsigned query = row % queries, head = row / queries % heads, batch = row / queries / heads;
    return (int64_t{batch} * queries + query) * heads + head;
  }
};

__global__ void __launch_bounds__(128) attention_softmax_kernel(float* p, float* lse, Rows rows) {
  const unsigned row = warp_unit(), lane = threadIdx.x % 32;
  if (row >= rows.count) return;
  float* x = p + row * rows.keys;
  float top = -INFINITY, sum = 0;
  for (int64_t i = lane; i < rows.keys; i += 32) top = fmaxf(top, x[i]);
  top = prim::warp_max(top);
  for (int64_t i = lane; i < rows.keys; i += 32) {
    x[i] = expf(x[i] - top);
    sum += x[i];
  }
  sum = prim::warp_sum(sum);
  for (int64_t i = lane; i < rows.keys; i += 32) x[i] /= sum;
  if (lane == 0) lse[rows.token(row)] = top + logf(sum);
}

// p: scores to weights; ds: dP to scale·dS.
__global__ void __launch_bounds__(128) attention_softmax_gradient_kernel(float* p, float* ds, const float* out, const float* dout,
                                                                         const float* lse, Rows rows, float scale) {
  const unsigned row = warp_unit(), lane = threadIdx.x % 32;
  if (row >= rows.count) return;
  const int64_t token = rows.token(row);
  float dot = 0;
  for (int64_t i = lane; i < rows.head_dim; i += 32) dot = fmaf(out[token * rows.head_dim + i], dout[token * rows.head_dim + i], dot);
  dot = prim::warp_sum(dot);
  const float shift = lse[token];
  for (int64_t i = lane; i < rows.keys; i += 32) {
    const int64_t at = row * rows.keys + i;
    const float weight = expf(p[at] - shift);
    p[at] = weight;
    ds[at] = rows.keys == 1 ? 0.0f : scale * weight * (ds[at] - dot);  // of one key dP and its mean are equal
  }
}

// What forward and backward share.
struct Sizes {
  AttentionShape s;
  int width() const { return static_cast<int>(s.heads * s.head_dim); }
  template <class T>
  Matrix<T> queries(T* p) const { return {p, s.queries * width(), s.head_dim, width(), 1}; }
  template <class T>
  Matrix<T> keys(T* p) const { return {p, s.keys * width(), s.head_dim, width(), 1}; }
  template <class T>
  Matrix<T> scores(T* p) const { return {p, s.heads * s.queries * s.keys, s.queries * s.keys, static_cast<int>(s.keys), 1}; }
  Rows rows() const {
    return {count32(s.batch * s.heads * s.queries, "rows"), static_cast<unsigned>(s.queries), static_cast<unsigned>(s.heads), s.keys, s.head_dim};
  }
  template <class L, class R>
  void product(Stream& stream, Matrix<float> out, Matrix<const L> left, Matrix<const R> right, int64_t rows, int64_t columns, int64_t depth,
               float scale = 1) const {
    const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
    prim::launch(attention_product_kernel<L, R>, dim3(tiles(columns), tiles(rows), static_cast<unsigned>(s.batch * s.heads)), dim3(kProductThreads),
                 sizeof(ProductShared), stream, out, left, right, Extents{rows, columns, depth, static_cast<int>(s.heads), scale});
  }
};
Sizes sizes_of(const AttentionShape& s) {
  // Of a grid, and of offsets in a tile.
  if (s.batch * s.heads > 65535 || s.queries > 65535 * kTile || s.keys > 65535 * kTile || s.heads * s.head_dim > 65535 * kTile)
    throw Error(fmt::format("{} heads of {} channels, {} queries, {} keys: more than materialised attention takes on CUDA", s.batch * s.heads,
                            s.head_dim, s.queries, s.keys));
  return {s};
}
bool nothing(const AttentionShape& s) { return s.batch * s.heads * s.head_dim * s.queries * s.keys == 0; }

}  // namespace

namespace cuda {

void dense_materialised_forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v, void* workspace,
                                AttentionShape s, DType dtype) {
  if (nothing(s)) return;
  const Sizes z = sizes_of(s);
  auto* p = static_cast<float*>(workspace);
  by_type(dtype, [&]<class T>(T*) {
    const auto *query = static_cast<const T*>(q), *key = static_cast<const T*>(k), *value = static_cast<const T*>(v);
    z.product(stream, z.scores(p), z.queries(query), transposed(z.keys(key)), s.queries, s.keys, s.head_dim, s.scale);
    prim::launch(attention_softmax_kernel, warp_grid(z.rows().count), warp_block(), 0, stream, p, lse, z.rows());
    z.product(stream, z.queries(out), z.scores<const float>(p), z.keys(value), s.queries, s.head_dim, s.keys);
  });
}

void dense_materialised_backward(Stream& stream, float* dq, float* dk, float* dv, const void* q, const void* k, const void* v,
                                 const float* out, const float* lse, const float* dout, void* workspace, AttentionShape s, DType dtype) {
  if (nothing(s)) return;
  const Sizes z = sizes_of(s);
  float *p = static_cast<float*>(workspace), *ds = p + s.batch * s.heads * s.queries * s.keys;
  const auto weights = z.scores<const float>(p), gradient = z.scores<const float>(ds);
  by_type(dtype, [&]<class T>(T*) {
    const auto *query = static_cast<const T*>(q), *key = static_cast<const T*>(k), *value = static_cast<const T*>(v);
    z.product(stream, z.scores(p), z.queries(query), transposed(z.keys(key)), s.queries, s.keys, s.head_dim, s.scale);
    z.product(stream, z.scores(ds), z.queries(dout), transposed(z.keys(value)), s.queries, s.keys, s.head_dim);
    prim::launch(attention_softmax_gradient_kernel, warp_grid(z.rows().count), warp_block(), 0, stream, p, ds, out, dout, lse, z.rows(), s.scale);
    z.product(stream, z.queries(dq), gradient, z.keys(key), s.queries, s.head_dim, s.keys);
    z.product(stream, z.keys(dk), transposed(gradient), z.queries(query), s.keys, s.head_dim, s.queries);
    z.product(stream, z.keys(dv), transposed(weights), z.queries(dout), s.keys, s.head_dim, s.queries);
  });
}

}  // namespace cuda
}  // namespace megaslide
