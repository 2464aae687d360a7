// GELU in its tanh form and SiLU (spec wan.md A.3, A.4, A.14), fp32 arithmetic:
//   k = √(2/π),  u = k (x + 0.044715 x³),  s = 1 / (1 + e^(−2u)),  gelu(x) = x s   (½ (1 + tanh u) = s)
//   gelu'(x) = s + 2 x s (1 − s) k (1 + 3·0.044715 x²);   silu(x) = x σ(x),  silu'(x) = σ (1 + x (1 − σ))
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/row_pieces.h"
#include "tensor/dtype.h"

namespace megaslide {

// y = gelu(x), x first rounded to dtype (bf16 or fp32), so that backward, which reads x_kept, sees what forward saw.
// x_kept may be nullptr.
using GeluForward = void(Stream&, void* y /*(n) dtype*/, void* x_kept /*(n) dtype*/, const float* x /*(n)*/, int64_t n,
                         DType dtype);
// dx = dy ⊙ gelu'(x) and y = gelu(x) again (the operand of the next weight's gradient), both overwritten and rounded to
// dtype; dbias += Σ_rows of the unrounded dx. y may be x_kept; dx must be neither. scratch: gelu_scratch floats.
using GeluBackward = void(Stream&, void* dx /*(R,C) dtype*/, void* y /*(R,C) dtype*/, float* dbias /*(C)*/,
                          float* scratch, const float* dy /*(R,C)*/, const void* x_kept /*(R,C) dtype*/, int64_t rows,
                          int64_t width, DType dtype);
inline int64_t gelu_scratch(int64_t rows, int64_t width) { return row_sum_scratch(rows, rows, width); }

using SiluForward = void(Stream&, float* y /*(n)*/, const float* x /*(n)*/, int64_t n);
// dx = dy ⊙ silu'(x), or dx += … when `accumulate`; dx may be dy when overwritten.
using SiluBackward = void(Stream&, float* dx /*(n)*/, const float* dy /*(n)*/, const float* x /*(n)*/, int64_t n,
                          bool accumulate);

namespace cpu {
GeluForward gelu_forward;
GeluBackward gelu_backward;
SiluForward silu_forward;
SiluBackward silu_backward;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL GeluForward gelu_forward;
MS_OPTIONAL GeluBackward gelu_backward;
MS_OPTIONAL SiluForward silu_forward;
MS_OPTIONAL SiluBackward silu_backward;
}  // namespace cuda

// The plain twins, fp64 inside.
namespace reference {
double gelu(double x);
double gelu_derivative(double x);
}  // namespace reference

// An exponential counts 16 operations.
inline Cost gelu_forward_cost(void*, void*, const float*, int64_t n, DType dtype) {
  return {KernelClass::kVector, 26.0 * static_cast<double>(n), static_cast<double>(n * (4 + 2 * dtype_bytes(dtype)))};
}
inline Cost gelu_backward_cost(void*, void*, float*, float*, const float*, const void*, int64_t rows, int64_t width,
                               DType dtype) {
  const double n = static_cast<double>(rows * width);
  return {KernelClass::kVector, 36 * n, n * static_cast<double>(4 + 3 * dtype_bytes(dtype))};
}
inline Cost silu_forward_cost(float*, const float*, int64_t n) {
  return {KernelClass::kVector, 19.0 * static_cast<double>(n), 8.0 * static_cast<double>(n)};
}
inline Cost silu_backward_cost(float*, const float*, const float*, int64_t n, bool) {
  return {KernelClass::kVector, 23.0 * static_cast<double>(n), 12.0 * static_cast<double>(n)};
}

inline constexpr Kernel<GeluForward> gelu_forward{"gelu_forward", &cpu::gelu_forward, &cuda::gelu_forward,
                                                  &gelu_forward_cost};
inline constexpr Kernel<GeluBackward> gelu_backward{"gelu_backward", &cpu::gelu_backward, &cuda::gelu_backward,
                                                    &gelu_backward_cost};
inline constexpr Kernel<SiluForward> silu_forward{"silu_forward", &cpu::silu_forward, &cuda::silu_forward,
                                                  &silu_forward_cost};
inline constexpr Kernel<SiluBackward> silu_backward{"silu_backward", &cpu::silu_backward, &cuda::silu_backward,
                                                    &silu_backward_cost};

}  // namespace megaslide
