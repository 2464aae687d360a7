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
__device__ __forceinline__ Statistics row_statistics(BlockSums& block, const Quad (&x)[K], const Rows& s) {
  float sum = 0, square = 0;
  MS_UNROLL
  for (int k = 0; k < K; ++k)
    MS_UNROLL
    for (int i = 0; i < 4; ++i) sum += x[k].v[i];
  const float mean = block.of(sum) / static_cast<float>(s.width);
  MS_UNROLL
  for (int k = 0; k < K; ++k)
    MS_UNROLL
    for (int i = 0; i < 4; ++i)
      if (quad_column(k) + i < s.width) square = fmaf(x[k].v[i] - mean, x[k].v[i] - mean, square);
  return {mean, 1 / sqrtf(block.of(square) / static_cast<float>(s.width) + s.eps)};
}

template <int K, class T>
__global__ void __launch_bounds__(ForwardRows::kThreads) layer_norm_forward_kernel(T* y, const float* x, const float* mul, const float* add,
                                                                                   Rows s) {
  BlockSums block(prim::dynamic_shared<float>());
  const int64_t at = int64_t{blockIdx.x} * s.width, group = blockIdx.x / s.group_rows * s.group_stride;
  Quad v[K];
  MS_UNROLL
  for (int k = 0; k < K; ++k) v[k] = load_quad(x + at + quad_column(k), s.width - quad_column(k), s.aligned);
  const Statistics stats = row_statistics(block, v, s);
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

// A block a piece of rows: a thread keeps its columns' sums, and fetches the next row as soon as it has read this one's.
template <int K>
__global__ void __launch_bounds__(BackwardRows::kThreads) layer_norm_backward_kernel(BackwardArgs a) {
  auto* memory = prim::dynamic_shared<unsigned char>();
  BlockSums block(reinterpret_cast<float*>(memory));
  memory += BlockSums::kShared;
  const RowAhead<K, float> x_ahead(memory), dy_ahead(memory), residual_ahead(memory);
  const RowPiece piece(a.pieces, blockIdx.x);
  const Rows& s = a.rows;
  const int width = s.width;
  const float* mul = a.mul + piece.group * s.group_stride;
  // Two groups of copies a row, empty ones behind the last: x, then dy and the residual.
  const auto fetch_x = [&](int64_t row) {
    if (row < piece.end) x_ahead.fetch(a.x + row * width, width, s.aligned);
    prim::cp_async_commit();
  };
  const auto fetch_gradients = [&](int64_t row) {
    if (row < piece.end) dy_ahead.fetch(a.dy + row * width, width, s.aligned);
    if (row < piece.end && a.residual != nullptr) residual_ahead.fetch(a.residual + row * width, width, s.aligned);
    prim::cp_async_commit();
  };
  Quad dmul[K], dadd[K];
  fetch_x(piece.begin);
  fetch_gradients(piece.begin);
  for (int64_t r = piece.begin; r < piece.end; ++r) {
    prim::cp_async_wait<1>();
    Quad x[K];
    MS_UNROLL
    for (int k = 0; k < K; ++k) x[k] = x_ahead.quad(k);
    const Statistics stats = row_statistics(block, x, s);
    fetch_x(r + 1);
    prim::cp_async_wait<1>();
    float mean_g = 0, mean_gu = 0;
    MS_UNROLL
    for (int k = 0; k < K; ++k) {
      const Quad m = load_quad(mul + quad_column(k), width - quad_column(k), s.aligned), d = dy_ahead.quad(k);
      MS_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float unit = (x[k].v[i] - stats.mean) * stats.rstd, g = d.v[i] * m.v[i];
        dmul[k].v[i] = fmaf(d.v[i], unit, dmul[k].v[i]);
        dadd[k].v[i] += d.v[i];
        x[k].v[i] = unit;
        mean_g += g;
        mean_gu = fmaf(g, unit, mean_gu);
      }
    }
    block.of(mean_g, mean_gu);
    mean_g /= static_cast<float>(width), mean_gu /= static_cast<float>(width);
    MS_UNROLL
    for (int k = 0; k < K; ++k) {
      const Quad m = load_quad(mul + quad_column(k), width - quad_column(k), s.aligned), d = dy_ahead.quad(k);
      Quad base = a.residual != nullptr ? residual_ahead.quad(k) : Quad();
      MS_UNROLL
      for (int i = 0; i < 4; ++i) base.v[i] = fmaf(stats.rstd, fmaf(-x[k].v[i], mean_gu, d.v[i] * m.v[i] - mean_g), base.v[i]);
      store_quad(a.dx + r * width + quad_column(k), base, width - quad_column(k), s.aligned);
    }
    fetch_gradients(r + 1);
  }
  prim::cp_async_wait<0>();
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
  const ForwardRows block(width);
  const dim3 grid(count32(rows, "rows"));
  by_type(dtype, [&]<class T>(T*) {
    auto* out = static_cast<T*>(y);
    const Rows s{count32(group_rows, "rows"), static_cast<int>(width), group_stride, eps,
                 group_stride % 4 == 0 && quads_aligned(width, out, x, mul, add)};
    block.with_quads([&](auto k) {
      prim::launch(layer_norm_forward_kernel<k, T>, grid, block.threads, BlockSums::kShared, stream, out, x, mul, add, s);
    });
  });
}

void layer_norm_backward(Stream& stream, float* dx, float* dmul, float* dadd, float* scratch, const float* dy, const float* residual,
                         const float* x, const float* mul, int64_t rows, int64_t width, int64_t group_rows, int64_t group_stride,
                         float eps) {
  if (rows == 0 || width == 0) return;
  const BackwardRows block(width);
  const BackwardArgs a{dx, scratch, dy, residual, x, mul, RowPieces(rows, group_rows),
                       Rows{count32(group_rows, "rows"), static_cast<int>(width), group_stride, eps,
                            group_stride % 4 == 0 && quads_aligned(width, dx, scratch, dy, residual, x, mul)}};
  block.with_quads([&](auto k) {
    prim::launch(layer_norm_backward_kernel<k>, dim3(a.pieces.count), block.threads,
                 BlockSums::kShared + 3 * RowAhead<k, float>::shared(block), stream, a);
  });
  add_piece_sums(stream, dmul, group_stride, rows, group_rows, 2 * width, 0, width, scratch);
  add_piece_sums(stream, dadd, group_stride, rows, group_rows, 2 * width, width, width, scratch);
}

}  // namespace cuda
}  // namespace megaslide
