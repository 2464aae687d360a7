#include "kernels/activation/activation.h"

#include <cmath>

#include "kernels/activation/gelu.cuh"
#include "kernels/memory/row_piece.cuh"
#include "kernels/memory/row_sums_cuda.h"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

template <class T>
__global__ void __launch_bounds__(kFlatThreads) gelu_forward_kernel(T* y, T* kept, const float* x, int64_t n, bool aligned) {
  const FlatQuad u(n);
  Quad v = load_quad(x + u.at, u.left, aligned);
  MS_UNROLL
  for (int i = 0; i < 4; ++i) v.v[i] = rounded(v.v[i], y);
  if (kept != nullptr) store_quad(kept + u.at, v, u.left, aligned);
  MS_UNROLL
  for (int i = 0; i < 4; ++i) v.v[i] *= gelu_sigmoid(v.v[i]);
  store_quad(y + u.at, v, u.left, aligned);
}

constexpr int kColumnThreads = 128;

// A piece of rows, a thread four columns. y may be x.
template <class T>
__global__ void __launch_bounds__(kColumnThreads) gelu_backward_kernel(T* dx, T* y, float* sums, const float* dy, const T* x, int64_t rows,
                                                                       int64_t width, bool aligned) {
  const int64_t c = 4 * (int64_t{blockIdx.y} * kColumnThreads + threadIdx.x), first = int64_t{blockIdx.x} * kPieceRows;
  if (c >= width) return;
  const int left = static_cast<int>(width - c < 4 ? width - c : 4);
  const int64_t last = first + kPieceRows < rows ? first + kPieceRows : rows;
  Quad sum;
  for (int64_t r = first; r < last; ++r) {
    const int64_t at = r * width + c;
    Quad g = load_quad(dy + at, left, aligned), value;
    const Quad v = load_quad(x + at, left, aligned);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const GeluSlope s(v.v[i]);
      value.v[i] = s.value;
      g.v[i] *= s.slope;
      sum.v[i] += g.v[i];
    }
    store_quad(y + at, value, left, aligned);
    store_quad(dx + at, g, left, aligned);
  }
  store_quad(sums + blockIdx.x * width + c, sum, left, aligned);
}

__device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

__global__ void __launch_bounds__(kFlatThreads) silu_forward_kernel(float* y, const float* x, int64_t n, bool aligned) {
  const FlatQuad u(n);
  Quad v = load_quad(x + u.at, u.left, aligned);
  MS_UNROLL
  for (int i = 0; i < 4; ++i) v.v[i] = v.v[i] / (1 + expf(-v.v[i]));
  store_quad(y + u.at, v, u.left, aligned);
}

__global__ void __launch_bounds__(kFlatThreads) silu_backward_kernel(float* dx, const float* dy, const float* x, int64_t n, bool accumulate,
                                                                     bool aligned) {
  const FlatQuad u(n);
  const Quad v = load_quad(x + u.at, u.left, aligned), base = accumulate ? load_quad(dx + u.at, u.left, aligned) : Quad();
  Quad g = load_quad(dy + u.at, u.left, aligned);
  MS_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float s = sigmoid(v.v[i]), d = g.v[i] * s * (1 + v.v[i] * (1 - s));
    g.v[i] = accumulate ? base.v[i] + d : d;
  }
  store_quad(dx + u.at, g, u.left, aligned);
}

}  // namespace

namespace cuda {

void gelu_forward(Stream& stream, void* y, void* x_kept, const float* x, int64_t n, DType dtype) {
  if (n == 0) return;
  by_type(dtype, [&]<class T>(T*) {
    auto *out = static_cast<T*>(y), *kept = static_cast<T*>(x_kept);
    prim::launch(gelu_forward_kernel<T>, flat_grid(n), dim3(kFlatThreads), 0, stream, out, kept, x, n, quads_aligned(4, out, kept, x));
  });
}

void gelu_backward(Stream& stream, void* dx, void* y, float* dbias, float* scratch, const float* dy, const void* x_kept, int64_t rows,
                   int64_t width, DType dtype) {
  if (rows == 0 || width == 0) return;
  const dim3 grid(count32(row_pieces(rows, rows), "pieces of rows"),
                  static_cast<unsigned>((width + 4 * kColumnThreads - 1) / (4 * kColumnThreads)));
  by_type(dtype, [&]<class T>(T*) {
    auto *to = static_cast<T*>(dx), *value = static_cast<T*>(y);
    const auto* x = static_cast<const T*>(x_kept);
    prim::launch(gelu_backward_kernel<T>, grid, dim3(kColumnThreads), 0, stream, to, value, scratch, dy, x, rows, width,
                 quads_aligned(width, to, value, scratch, dy, x));
  });
  add_piece_sums(stream, dbias, 0, rows, rows, width, 0, width, scratch);
}

void silu_forward(Stream& stream, float* y, const float* x, int64_t n) {
  if (n == 0) return;
  prim::launch(silu_forward_kernel, flat_grid(n), dim3(kFlatThreads), 0, stream, y, x, n, quads_aligned(4, y, x));
}

void silu_backward(Stream& stream, float* dx, const float* dy, const float* x, int64_t n, bool accumulate) {
  if (n == 0) return;
  prim::launch(silu_backward_kernel, flat_grid(n), dim3(kFlatThreads), 0, stream, dx, dy, x, n, accumulate, quads_aligned(4, dx, dy, x));
}

}  // namespace cuda
}  // namespace megaslide
