#include "kernels/rms_norm/rms_norm.h"

#include <cmath>

#include "kernels/elements.cuh"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

// A block a row.
template <int K, class T>
__global__ void __launch_bounds__(ForwardRows::kThreads) rms_norm_forward_kernel(T* y, const float* x, const float* w, int width, float eps,
                                                                                 bool aligned) {
  BlockSums block(prim::dynamic_shared<float>());
  const int64_t at = int64_t{blockIdx.x} * width;
  RowQuads<K> row(block, x + at, width, aligned);
  const float rstd = 1 / sqrtf(row.square / static_cast<float>(width) + eps);
  MS_UNROLL
  for (int k = 0; k < K; ++k) {
    const int c = quad_column(k), left = width - c;
    const Quad g = load_quad(w + c, left, aligned);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) row.v[k].v[i] = g.v[i] * (row.v[k].v[i] * rstd);
    store_quad(y + at + c, row.v[k], left, aligned);
  }
}

}  // namespace

namespace cuda {

void rms_norm_forward(Stream& stream, void* y, const float* x, const float* w, int64_t rows, int64_t width, float eps, DType dtype) {
  if (rows == 0 || width == 0) return;
  const ForwardRows block(width);
  const dim3 grid(count32(rows, "rows"));
  by_type(dtype, [&]<class T>(T*) {
    auto* out = static_cast<T*>(y);
    block.with_quads([&](auto k) {
      prim::launch(rms_norm_forward_kernel<k, T>, grid, block.threads, BlockSums::kShared, stream, out, x, w, static_cast<int>(width), eps,
                   quads_aligned(width, out, x, w));
    });
  });
}

}  // namespace cuda
}  // namespace megaslide
