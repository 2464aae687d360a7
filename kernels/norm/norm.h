// Layer norm over the last axis with a multiplier and an addend per channel (spec wan.md A.6, A.14):
//   û = (x − mean) · (var + eps)^−½   (biased variance),   y = û ⊙ mul + add.
// An affine norm passes its weight and bias; a modulated one 1 + scale and shift, one pair a sample: row r uses the
// vectors at mul + (r / group_rows) * group_stride. All arithmetic is fp32.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/row_pieces.h"
#include "tensor/dtype.h"

namespace megaslide {

// y is overwritten and rounded to dtype (bf16 or fp32). Saves nothing: backward rebuilds the statistics from x.
using LayerNormForward = void(Stream&, void* y /*(R,C) dtype*/, const float* x /*(R,C)*/,
                              const float* mul /*(C) a group*/, const float* add /*(C) a group*/, int64_t rows,
                              int64_t width, int64_t group_rows, int64_t group_stride, float eps, DType dtype);

// dx = residual + LNᵀ(dy ⊙ mul), overwritten (dx may be residual or dy; a null residual is 0). dmul += Σ dy ⊙ û and
// dadd += Σ dy over the rows of a group, at the group's place like mul. scratch: layer_norm_scratch floats.
using LayerNormBackward = void(Stream&, float* dx /*(R,C)*/, float* dmul, float* dadd, float* scratch,
                               const float* dy /*(R,C)*/, const float* residual /*(R,C)*/, const float* x /*(R,C)*/,
                               const float* mul, int64_t rows, int64_t width, int64_t group_rows, int64_t group_stride,
                               float eps);

inline int64_t layer_norm_scratch(int64_t rows, int64_t group_rows, int64_t width) {
  return row_sum_scratch(rows, group_rows, 2 * width);
}

namespace cpu {
LayerNormForward layer_norm_forward;
LayerNormBackward layer_norm_backward;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL LayerNormForward layer_norm_forward;
MS_OPTIONAL LayerNormBackward layer_norm_backward;
}  // namespace cuda

// The plain twins: fp64 inside, one row after the other.
namespace reference {
void layer_norm_forward(float* y, const float* x, const float* mul, const float* add, int64_t rows, int64_t width,
                        int64_t group_rows, int64_t group_stride, float eps);
void layer_norm_backward(float* dx, float* dmul, float* dadd, const float* dy, const float* residual, const float* x,
                         const float* mul, int64_t rows, int64_t width, int64_t group_rows, int64_t group_stride,
                         float eps);
}  // namespace reference

inline Cost layer_norm_forward_cost(void*, const float*, const float*, const float*, int64_t rows, int64_t width,
                                    int64_t, int64_t, float, DType dtype) {
  const double n = static_cast<double>(rows * width);
  return {KernelClass::kVector, 8 * n, n * static_cast<double>(4 + dtype_bytes(dtype))};
}
inline Cost layer_norm_backward_cost(float*, float*, float*, float*, const float*, const float*, const float*,
                                     const float*, int64_t rows, int64_t width, int64_t, int64_t, float) {
  const double n = static_cast<double>(rows * width);
  return {KernelClass::kVector, 19 * n, 16 * n};
}

inline constexpr Kernel<LayerNormForward> layer_norm_forward{"layer_norm_forward", &cpu::layer_norm_forward,
                                                             &cuda::layer_norm_forward, &layer_norm_forward_cost};
inline constexpr Kernel<LayerNormBackward> layer_norm_backward{"layer_norm_backward", &cpu::layer_norm_backward,
                                                               &cuda::layer_norm_backward, &layer_norm_backward_cost};

}  // namespace megaslide
