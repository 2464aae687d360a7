// A linear layer of a few rows, one a sample (the time path, spec wan.md A.3 and A.11): fp32 arithmetic on weights read
// as they lie, since a packed product of two rows would not be worth its packing.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

// y = x·Wᵀ + b, overwritten. dtype is that of w and bias (bf16 or fp32).
using VectorLinearForward = void(Stream&, float* y /*(M,N)*/, const float* x /*(M,K)*/, const void* w /*(N,K) dtype*/,
                                 const void* bias /*(N) dtype*/, int64_t m, int64_t n, int64_t k, DType dtype);
// dw += dyᵀ·x, db += Σ_m dy.
using VectorLinearWeightGradient = void(Stream&, float* dw /*(N,K)*/, float* db /*(N)*/, const float* dy /*(M,N)*/,
                                        const float* x /*(M,K)*/, int64_t m, int64_t n, int64_t k);
// dx = dy·W, overwritten.
using VectorLinearInputGradient = void(Stream&, float* dx /*(M,K)*/, const float* dy /*(M,N)*/,
                                       const void* w /*(N,K) dtype*/, int64_t m, int64_t n, int64_t k, DType dtype);

namespace cpu {
VectorLinearForward vector_linear_forward;
VectorLinearWeightGradient vector_linear_weight_gradient;
VectorLinearInputGradient vector_linear_input_gradient;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL VectorLinearForward vector_linear_forward;
MS_OPTIONAL VectorLinearWeightGradient vector_linear_weight_gradient;
MS_OPTIONAL VectorLinearInputGradient vector_linear_input_gradient;
}  // namespace cuda

inline Cost vector_linear_cost(int64_t m, int64_t n, int64_t k, double bytes_a_weight) {
  const double weights = static_cast<double>(n) * static_cast<double>(k);
  return {KernelClass::kVector, 2 * static_cast<double>(m) * weights,
          bytes_a_weight * weights + 4.0 * static_cast<double>(m * (n + k))};
}
inline Cost vector_linear_forward_cost(float*, const float*, const void*, const void*, int64_t m, int64_t n, int64_t k,
                                       DType dtype) {
  return vector_linear_cost(m, n, k, static_cast<double>(dtype_bytes(dtype)));
}
inline Cost vector_linear_weight_gradient_cost(float*, float*, const float*, const float*, int64_t m, int64_t n,
                                               int64_t k) {
  return vector_linear_cost(m, n, k, 8);
}
inline Cost vector_linear_input_gradient_cost(float*, const float*, const void*, int64_t m, int64_t n, int64_t k,
                                              DType dtype) {
  return vector_linear_cost(m, n, k, static_cast<double>(dtype_bytes(dtype)));
}

inline constexpr Kernel<VectorLinearForward> vector_linear_forward{
    "vector_linear_forward", &cpu::vector_linear_forward, &cuda::vector_linear_forward, &vector_linear_forward_cost};
inline constexpr Kernel<VectorLinearWeightGradient> vector_linear_weight_gradient{
    "vector_linear_weight_gradient", &cpu::vector_linear_weight_gradient, &cuda::vector_linear_weight_gradient,
    &vector_linear_weight_gradient_cost};
inline constexpr Kernel<VectorLinearInputGradient> vector_linear_input_gradient{
    "vector_linear_input_gradient", &cpu::vector_linear_input_gradient, &cuda::vector_linear_input_gradient,
    &vector_linear_input_gradient_cost};

}  // namespace megaslide
