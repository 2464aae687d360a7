// RMS norm over the last axis (spec wan.md B.2): y = w ⊙ x · (mean x² + eps)^−½. All arithmetic is fp32.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/row_pieces.h"
#include "tensor/dtype.h"

namespace megaslide {

// y is overwritten and rounded to dtype (bf16 or fp32). Saves nothing.
using RmsNormForward = void(Stream&, void* y /*(R,C) dtype*/, const float* x /*(R,C)*/, const float* w /*(C)*/,
                            int64_t rows, int64_t width, float eps, DType dtype);

namespace cpu {
RmsNormForward rms_norm_forward;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL RmsNormForward rms_norm_forward;
}  // namespace cuda

// The plain twin: fp64 inside, one row after the other.
namespace reference {
void rms_norm_forward(float* y, const float* x, const float* w, int64_t rows, int64_t width, float eps);
}  // namespace reference

inline Cost rms_norm_forward_cost(void*, const float*, const float*, int64_t rows, int64_t width, float, DType dtype) {
  const double n = static_cast<double>(rows * width);
  return {KernelClass::kVector, 4 * n, n * static_cast<double>(4 + dtype_bytes(dtype))};
}

inline constexpr Kernel<RmsNormForward> rms_norm_forward{"rms_norm_forward", &cpu::rms_norm_forward,
                                                         &cuda::rms_norm_forward, &rms_norm_forward_cost};

}  // namespace megaslide
