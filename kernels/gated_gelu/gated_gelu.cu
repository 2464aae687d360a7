#include "kernels/gated_gelu/gated_gelu.h"

#include "kernels/activation/gelu.cuh"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

template <class T>
__global__ void __launch_bounds__(kFlatThreads) gated_gelu_forward_kernel(T* y, const float* gate, const float* up, int64_t n, bool aligned) {
  const FlatQuad u(n);
  Quad v = load_quad(gate + u.at, u.left, aligned);
  const Quad w = load_quad(up + u.at, u.left, aligned);
  MS_UNROLL
  for (int i = 0; i < 4; ++i) v.v[i] = v.v[i] * gelu_sigmoid(v.v[i]) * w.v[i];
  store_quad(y + u.at, v, u.left, aligned);
}

}  // namespace

namespace cuda {

void gated_gelu_forward(Stream& stream, void* y, const float* gate, const float* up, int64_t n, DType dtype) {
  if (n == 0) return;
  by_type(dtype, [&]<class T>(T*) {
    auto* out = static_cast<T*>(y);
    prim::launch(gated_gelu_forward_kernel<T>, flat_grid(n), dim3(kFlatThreads), 0, stream, out, gate, up, n, quads_aligned(4, out, gate, up));
  });
}

}  // namespace cuda
}  // namespace megaslide
