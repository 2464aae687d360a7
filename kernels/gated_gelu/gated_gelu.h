// The gate of a gated FFN (spec wan.md B.2): y = gelu(gate) ⊙ up, GELU in its tanh form, fp32 arithmetic:
//   gelu(x) = x / (1 + e^(−2u)),  u = √(2/π) (x + 0.044715 x³)   (½ (1 + tanh u) = 1 / (1 + e^(−2u)))
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

// y is overwritten and rounded to dtype (bf16 or fp32). Saves nothing.
using GatedGeluForward = void(Stream&, void* y /*(n) dtype*/, const float* gate /*(n)*/, const float* up /*(n)*/, int64_t n,
                              DType dtype);

namespace cpu {
GatedGeluForward gated_gelu_forward;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL GatedGeluForward gated_gelu_forward;
}  // namespace cuda

// The plain twin, fp64 inside.
namespace reference {
double gated_gelu(double gate, double up);
}  // namespace reference

// An exponential counts 16 operations.
inline Cost gated_gelu_forward_cost(void*, const float*, const float*, int64_t n, DType dtype) {
  return {KernelClass::kVector, 27.0 * static_cast<double>(n), static_cast<double>(n * (8 + dtype_bytes(dtype)))};
}

inline constexpr Kernel<GatedGeluForward> gated_gelu_forward{"gated_gelu_forward", &cpu::gated_gelu_forward,
                                                             &cuda::gated_gelu_forward, &gated_gelu_forward_cost};

}  // namespace megaslide
