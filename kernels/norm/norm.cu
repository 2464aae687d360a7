#include "kernels/norm/norm.h"

#include <cmath>

#include "kernels/memory/row_piece.cuh"
#include "kernels/memory/row_sums_cuda.h"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

struct Rows {
  unsigned group_rows;
  int width;
  int64_t group_stride;
  float eps;
  bool aligned;  // all rows and vectors
};

struct Statistics {
  float mean, rstd;
};

// Of a row whose elements behind its end are 0.
template <int K>
__device__ __forceinline__ Statistics row_statistics(float* part, const Quad (&x)[K], const Rows& s) {
  float sum = 0, square = 0;
  MS_UNROLL
  for (int k = 0; k < K; ++k)
    MS_UNROLL
    for (int i = 0; i < 4; ++i) sum += x[k].v[i];
  const float mean = block_total(part, sum) / static_cast<float>(s.width);
  MS_UNROLL
  for (int k = 0; k < K; ++k)
    MS_UNROLL
    for (int i = 0; i < 4; ++i)
      if (quad_column(k) + i < s.width) square = fmaf(x[k].v[i] - mean, x[k].v[i] - mean, square);
  return {mean, 1 / sqrtf(block_total(part, square) / static_cast<float>(s.width) + s.eps)};
}

template <int K>
__device__ __forceinline__ void load_row(Quad (&x)[K], const float* p, const Rows& s) {
  MS_UNROLL
  for (int k = 0; k < K; ++k) x[k] = load_quad(p + quad_column(k), s.width - quad_column(k), s.aligned);
}

template <int K, class T>
__global__ void __launch_bounds__(kRowThreads) layer_norm_forward_kernel(T* y, const float* x, const float* mul, const float* add, Rows s) {
  float* part = prim::dynamic_shared<float>();
  const int64_t at = int64_t{blockIdx.x} * s.width, group = blockIdx.x / s.group_rows * s.group_stride;
  Quad v[K];
  load_row(v, x + at, s);
  const Statistics stats = row_statistics(part, v, s);
  MS_UNROLL
  for (int k = 0; k < K; ++k) {
    const int c = quad_column(k), left = s.width - c;
    const Quad m = load_quad(mul + group + c, left, s.aligned), a = load_quad(add + group + c, left, s.aligned);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) v[k].v[i] = fmaf((v[k].v[i] - stats.mean) * stats.rstd, m.v[i], a.v[i]);
    store_quad(y + at + c, v[k], left, s.aligned);
  }
}

struct BackwardArgs {
  float *dx, *sums;
  const float *dy, *residual, *x, *mul;
  RowPieces pieces;
  Rows rows;
};

// dx of one row; its share in dmul and dadd.
template <int K>
__device__ __forceinline__ void backward_row(const BackwardArgs& a, float* part, Quad (&dmul)[K], Quad (&dadd)[K], int64_t at, const float* mul) {
  const Rows& s = a.rows;
  Quad x[K], g[K];
  load_row(x, a.x + at, s);
  load_row(g, a.dy + at, s);
  const Statistics stats = row_statistics(part, x, s);
  float sum_g = 0, sum_gu = 0;
  MS_UNROLL
  for (int k = 0; k < K; ++k) {
    const Quad m = load_quad(mul + quad_column(k), s.width - quad_column(k), s.aligned);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float unit = (x[k].v[i] - stats.mean) * stats.rstd, d = g[k].v[i];
      dmul[k].v[i] = fmaf(d, unit, dmul[k].v[i]);
      dadd[k].v[i] += d;
      x[k].v[i] = unit;
      g[k].v[i] = d * m.v[i];
      sum_g += g[k].v[i];
      sum_gu = fmaf(g[k].v[i], unit, sum_gu);
    }
  }
  const float mean_g = block_total(part, sum_g) / static_cast<float>(s.width), mean_gu = block_total(part, sum_gu) / static_cast<float>(s.width);
  MS_UNROLL
  for (int k = 0; k < K; ++k) {
    const int c = quad_column(k), left = s.width - c;
    const Quad base = a.residual != nullptr ? load_quad(a.residual + at + c, left, s.aligned) : Quad();
    MS_UNROLL
    for (int i = 0; i < 4; ++i) g[k].v[i] = fmaf(stats.rstd, fmaf(-x[k].v[i], mean_gu, g[k].v[i] - mean_g), base.v[i]);
    store_quad(a.dx + at + c, g[k], left, s.aligned);
  }
}

// A block a piece of rows: a thread keeps its columns' sums.
template <int K>
__global__ void __launch_bounds__(kRowThreads) layer_norm_backward_kernel(BackwardArgs a) {
  float* part = prim::dynamic_shared<float>();
  const RowPiece piece(a.pieces, blockIdx.x);
  const int width = a.rows.width;
  Quad dmul[K], dadd[K];
  for (int64_t r = piece.begin; r < piece.end; ++r) backward_row(a, part, dmul, dadd, r * width, a.mul + piece.group * a.rows.group_stride);
  float* to = a.sums + int64_t{blockIdx.x} * 2 * width;
  MS_UNROLL
  for (int k = 0; k < K; ++k) {
    const int c = quad_column(k), left = width - c;
    store_quad(to + c, dmul[k], left, a.rows.aligned);
    store_quad(to + width + c, dadd[k], left, a.rows.aligned);
  }
}

}  // namespace

namespace cuda {

void layer_norm_forward(Stream& stream, void* y, const float* x, const float* mul, const float* add, int64_t rows, int64_t width,
                        int64_t group_rows, int64_t group_stride, float eps, DType dtype) {
  if (rows == 0 || width == 0) return;
  const RowBlock block(width);
  const dim3 grid(count32(rows, "rows"));
  by_type(dtype, [&]<class T>(T*) {
    auto* out = static_cast<T*>(y);
    const Rows s{count32(group_rows, "rows"), static_cast<int>(width), group_stride, eps,
                 group_stride % 4 == 0 && quads_aligned(width, out, x, mul, add)};
    by_quads(block.quads, [&](auto k) {
      prim::launch(layer_norm_forward_kernel<k, T>, grid, block.threads, kRowShared, stream, out, x, mul, add, s);
    });
  });
}

void layer_norm_backward(Stream& stream, float* dx, float* dmul, float* dadd, float* scratch, const float* dy, const float* residual,
                         const float* x, const float* mul, int64_t rows, int64_t width, int64_t group_rows, int64_t group_stride,
                         float eps) {
  if (rows == 0 || width == 0) return;
  const RowBlock block(width);
  const BackwardArgs a{dx, scratch, dy, residual, x, mul, RowPieces(rows, group_rows),
                       Rows{count32(group_rows, "rows"), static_cast<int>(width), group_stride, eps,
                            group_stride % 4 == 0 && quads_aligned(width, dx, scratch, dy, residual, x, mul)}};
  by_quads(block.quads, [&](auto k) {
    prim::launch(layer_norm_backward_kernel<k>, dim3(a.pieces.count), block.threads, kRowShared, stream, a);
  });
  add_piece_sums(stream, dmul, group_stride, rows, group_rows, 2 * width, 0, width, scratch);
  add_piece_sums(stream, dadd, group_stride, rows, group_rows, 2 * width, width, width, scratch);
}

}  // namespace cuda
}  // namespace megaslide
