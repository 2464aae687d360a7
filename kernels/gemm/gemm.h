// The three products of a linear layer y = x·Wᵀ + b, W (N,K) row-major, operands in bf16 or fp32, sums and results in
// fp32. Weights are re-laid once a load (linear_pack), not once a call. Every result is a function of its operands and
// sizes alone: pieces are fixed by the sizes, each runs on one thread.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

// Which product a packed weight serves: y = x·Wᵀ (kForward) or dx = dy·W (kInputGradient).
enum class PackFor { kForward, kInputGradient };

// Bytes of a packed weight, a multiple of 256. dtype is kBF16 or kF32. The same on every machine, whatever layout it
// packs into.
int64_t linear_packed_bytes(int64_t n, int64_t k, DType dtype, PackFor pack_for);

// packed is 64-byte aligned, linear_packed_bytes long, and overwritten. It may be read by this process only: the layout
// follows the processor.
using LinearPack = void(Stream&, void* packed, const void* w /*(N,K) dtype*/, int64_t n, int64_t k, DType dtype,
                        PackFor pack_for);

// y = x·Wᵀ + b. y is overwritten; bias may be nullptr. Saves nothing.
using LinearForward = void(Stream&, float* y /*(M,N)*/, const void* x /*(M,K) dtype*/, const void* packed /*kForward*/,
                           const void* bias /*(N) dtype*/, int64_t m, int64_t n, int64_t k, DType dtype);

// dx = dy·W, or dx += dy·W when `accumulate`.
using LinearInputGradient = void(Stream&, float* dx /*(M,K)*/, const void* dy /*(M,N) dtype*/,
                                 const void* packed /*kInputGradient*/, int64_t m, int64_t n, int64_t k, DType dtype,
                                 bool accumulate);

// dw += dyᵀ·x. scratch: linear_weight_gradient_scratch bytes, 64-byte aligned.
using LinearWeightGradient = void(Stream&, float* dw /*(N,K) accumulated*/, void* scratch,
                                  const void* dy /*(M,N) dtype*/, const void* x /*(M,K) dtype*/, int64_t m, int64_t n,
                                  int64_t k, DType dtype);
int64_t linear_weight_gradient_scratch(int64_t m, int64_t n, int64_t k, DType dtype);

// Whether a row of linear_forward and linear_operand on the CPU has the same bits whatever other rows there are.
bool linear_rows_independent(DType dtype);

// Forward products whose result becomes something else on its way to memory. Each equals linear_forward into fp32
// followed by the kernel named, at the same roundings; on a tile unit GELU is within 4e-6 of it before its rounding.
//   y = x·Wᵀ + b, rounded to dtype: cast_operand.
using LinearOperand = void(Stream&, void* y /*(M,N) dtype*/, const void* x /*(M,K) dtype*/,
                           const void* packed /*kForward*/, const void* bias /*(N) dtype*/, int64_t m, int64_t n,
                           int64_t k, DType dtype);
//   y = gelu(x·Wᵀ + b): gelu_forward. kept may be nullptr.
using LinearGelu = void(Stream&, void* y /*(M,N) dtype*/, void* kept /*(M,N) dtype*/, const void* x /*(M,K) dtype*/,
                        const void* packed /*kForward*/, const void* bias /*(N) dtype*/, int64_t m, int64_t n,
                        int64_t k, DType dtype);
//   y = residual + gate ⊙ (x·Wᵀ + b): gated_add_forward of rows that start at row `first_row` of their groups. kept and
//   gate may be nullptr, y may be residual.
using LinearGatedAdd = void(Stream&, float* y /*(M,N)*/, void* kept /*(M,N) dtype*/, const float* residual /*(M,N)*/,
                            const float* gate, const void* x /*(M,K) dtype*/, const void* packed /*kForward*/,
                            const void* bias /*(N) dtype*/, int64_t m, int64_t n, int64_t k, int64_t first_row,
                            int64_t group_rows, int64_t group_stride, DType dtype);
// dx = (dy·W) ⊙ gelu'(kept) and y = gelu(kept), both overwritten; dbias += Σ_rows of the unrounded dx: gelu_backward of
// linear_input_gradient. y may be kept, dx must be neither. scratch: gelu_scratch(m, k) floats.
using LinearGeluGradient = void(Stream&, void* dx /*(M,K) dtype*/, void* y /*(M,K) dtype*/, float* dbias /*(K)*/,
                                float* scratch, const void* dy /*(M,N) dtype*/, const void* packed /*kInputGradient*/,
                                const void* kept /*(M,K) dtype*/, int64_t m, int64_t n, int64_t k, DType dtype);

// db += Σ_m dy[m]. Rows are summed in blocks of 64 in order, blocks in order.
using BiasGradient = void(Stream&, float* db /*(N) accumulated*/, const float* dy /*(M,N)*/, int64_t m, int64_t n);

// n floats to dtype (bf16: to nearest, ties to even; fp32: a copy).
using CastOperand = void(Stream&, void* out /*(n) dtype*/, const float* in /*(n)*/, int64_t n, DType dtype);

namespace cpu {
LinearPack linear_pack;
LinearForward linear_forward;
LinearInputGradient linear_input_gradient;
LinearWeightGradient linear_weight_gradient;
LinearOperand linear_operand;
LinearGelu linear_gelu;
LinearGatedAdd linear_gated_add;
LinearGeluGradient linear_gelu_gradient;
BiasGradient bias_gradient;
CastOperand cast_operand;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL LinearPack linear_pack;
MS_OPTIONAL LinearForward linear_forward;
MS_OPTIONAL LinearInputGradient linear_input_gradient;
MS_OPTIONAL LinearWeightGradient linear_weight_gradient;
MS_OPTIONAL LinearOperand linear_operand;
MS_OPTIONAL LinearGelu linear_gelu;
MS_OPTIONAL LinearGatedAdd linear_gated_add;
MS_OPTIONAL LinearGeluGradient linear_gelu_gradient;
MS_OPTIONAL BiasGradient bias_gradient;
MS_OPTIONAL CastOperand cast_operand;
}  // namespace cuda

// Operands are read once, fp32 results written once (and read where they are accumulated).
inline Cost gemm_cost(int64_t m, int64_t n, int64_t k, double operand_elements, double result_bytes, DType dtype) {
  return {KernelClass::kGemm, 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
          operand_elements * static_cast<double>(dtype_bytes(dtype)) + result_bytes};
}
inline Cost linear_pack_cost(void*, const void*, int64_t n, int64_t k, DType dtype, PackFor) {
  return {KernelClass::kPack, 0, 2.0 * static_cast<double>(n * k * dtype_bytes(dtype))};
}
inline Cost linear_forward_cost(float*, const void*, const void*, const void*, int64_t m, int64_t n, int64_t k,
                                DType dtype) {
  return gemm_cost(m, n, k, static_cast<double>(m * k + n * k), 4.0 * static_cast<double>(m * n), dtype);
}
inline Cost linear_input_gradient_cost(float*, const void*, const void*, int64_t m, int64_t n, int64_t k, DType dtype,
                                       bool accumulate) {
  return gemm_cost(m, n, k, static_cast<double>(m * n + n * k), (accumulate ? 8.0 : 4.0) * static_cast<double>(m * k),
                   dtype);
}
inline Cost linear_weight_gradient_cost(float*, void*, const void*, const void*, int64_t m, int64_t n, int64_t k,
                                        DType dtype) {
  return gemm_cost(m, n, k, static_cast<double>(m * n + m * k), 8.0 * static_cast<double>(n * k), dtype);
}
inline Cost linear_operand_cost(void*, const void*, const void*, const void*, int64_t m, int64_t n, int64_t k,
                                DType dtype) {
  return gemm_cost(m, n, k, static_cast<double>(m * k + n * k + m * n), 0, dtype);
}
inline Cost linear_gelu_cost(void*, void*, const void*, const void*, const void*, int64_t m, int64_t n, int64_t k,
                             DType dtype) {
  return gemm_cost(m, n, k, static_cast<double>(m * k + n * k + 2 * m * n), 0, dtype);
}
inline Cost linear_gated_add_cost(float*, void*, const float*, const float*, const void*, const void*, const void*,
                                  int64_t m, int64_t n, int64_t k, int64_t, int64_t, int64_t, DType dtype) {
  return gemm_cost(m, n, k, static_cast<double>(m * k + n * k + m * n), 8.0 * static_cast<double>(m * n), dtype);
}
inline Cost linear_gelu_gradient_cost(void*, void*, float*, float*, const void*, const void*, const void*, int64_t m,
                                      int64_t n, int64_t k, DType dtype) {
  return gemm_cost(m, n, k, static_cast<double>(m * n + n * k + 3 * m * k), 0, dtype);
}
inline Cost bias_gradient_cost(float*, const float*, int64_t m, int64_t n) {
  return {KernelClass::kVector, static_cast<double>(m * n), 4.0 * static_cast<double>(m * n + 2 * n)};
}
inline Cost cast_operand_cost(void*, const float*, int64_t n, DType dtype) {
  return {KernelClass::kVector, 0, static_cast<double>(n * (4 + dtype_bytes(dtype)))};
}

inline constexpr Kernel<LinearPack> linear_pack{"linear_pack", &cpu::linear_pack, &cuda::linear_pack,
                                                &linear_pack_cost};
inline constexpr Kernel<LinearForward> linear_forward{"linear_forward", &cpu::linear_forward, &cuda::linear_forward,
                                                      &linear_forward_cost};
inline constexpr Kernel<LinearInputGradient> linear_input_gradient{
    "linear_input_gradient", &cpu::linear_input_gradient, &cuda::linear_input_gradient, &linear_input_gradient_cost};
inline constexpr Kernel<LinearWeightGradient> linear_weight_gradient{
    "linear_weight_gradient", &cpu::linear_weight_gradient, &cuda::linear_weight_gradient,
    &linear_weight_gradient_cost};
inline constexpr Kernel<LinearOperand> linear_operand{"linear_operand", &cpu::linear_operand, &cuda::linear_operand,
                                                      &linear_operand_cost};
inline constexpr Kernel<LinearGelu> linear_gelu{"linear_gelu", &cpu::linear_gelu, &cuda::linear_gelu,
                                                &linear_gelu_cost};
inline constexpr Kernel<LinearGatedAdd> linear_gated_add{"linear_gated_add", &cpu::linear_gated_add,
                                                         &cuda::linear_gated_add, &linear_gated_add_cost};
inline constexpr Kernel<LinearGeluGradient> linear_gelu_gradient{"linear_gelu_gradient", &cpu::linear_gelu_gradient,
                                                                 &cuda::linear_gelu_gradient,
                                                                 &linear_gelu_gradient_cost};
inline constexpr Kernel<BiasGradient> bias_gradient{"bias_gradient", &cpu::bias_gradient, &cuda::bias_gradient,
                                                    &bias_gradient_cost};
inline constexpr Kernel<CastOperand> cast_operand{"cast_operand", &cpu::cast_operand, &cuda::cast_operand,
                                                  &cast_operand_cost};

}  // namespace megaslide
