#include "kernels/activation/mlp_activation.h"

#include <cmath>

#include "kernels/activation/normal_tail.h"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

// x·Φ(x). For x > 0, Φ(x) = 1 − Φ(−x). The exponent is kept where e^x is a normal number; x brings NaN back.
__device__ __forceinline__ float gelu(float x) {
  constexpr NormalTail tail = kNormalTail;
  const float a = fabsf(x), t = 1 / fmaf(tail.spread, a, 1.0f);
  float sum = tail.power[NormalTail::kPowers - 1];
  MS_UNROLL
  for (int i = NormalTail::kPowers - 2; i >= 0; --i) sum = fmaf(sum, t, tail.power[i]);
  const float below = sum * t * expf(fmaxf(a * a * -0.5f, -87.0f));
  return x * (x < 0 ? below : 1 - below);
}

__device__ __forceinline__ float quick_gelu(float x) { return x / (1 + expf(fminf(fmaxf(x * -1.702f, -87.0f), 87.0f))); }

// y may be x.
template <MlpActivation f, class T>
__global__ void __launch_bounds__(kFlatThreads) mlp_activation_kernel(T* y, const float* x, int64_t n, bool aligned) {
  const FlatQuad u(n);
  Quad v = load_quad(x + u.at, u.left, aligned);
  MS_UNROLL
  for (int i = 0; i < 4; ++i) v.v[i] = f == MlpActivation::kGelu ? gelu(v.v[i]) : quick_gelu(v.v[i]);
  store_quad(y + u.at, v, u.left, aligned);
}

}  // namespace

namespace cuda {

void mlp_activation_forward(Stream& stream, void* y, const float* x, int64_t n, MlpActivation f, DType dtype) {
  MS_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "{}", dtype_name(dtype));
  if (n == 0) return;
  by_type(dtype, [&]<class T>(T*) {
    auto* out = static_cast<T*>(y);
    const auto kernel = f == MlpActivation::kGelu ? &mlp_activation_kernel<MlpActivation::kGelu, T> : &mlp_activation_kernel<MlpActivation::kQuickGelu, T>;
    prim::launch(kernel, flat_grid(n), dim3(kFlatThreads), 0, stream, out, x, n, quads_aligned(4, out, x));
  });
}

}  // namespace cuda
}  // namespace megaslide
