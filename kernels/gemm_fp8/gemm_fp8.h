// The forward product of a linear layer in 8 bits: y = x·Wᵀ + b with both operands as E4M3 and one scale a tensor, summed
// in fp32. With c = to_e4m3(v / s) (e4m3.h), s = amax / 448:
//   y = (s_x·s_w)·Σ_k c_x c_w + b
// CUDA entries keep codes as bytes and multiply by cuBLASLt, which needs compute capability 8.9, and n and k a multiple of
// 16: other sizes go to a plain kernel that any device has. The CPU keeps the codes' values in bf16, which holds them
// exactly. Every result is a function of its operands and sizes alone.
#pragma once
#include <cstdint>

#include "kernels/gemm/gemm.h"
#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

// What lies before a quantised tensor's codes: its scale, and what finding it takes.
constexpr int64_t kFp8Partials = 1024;
struct Fp8Header {
  float scale, inverse;
  float unused[62];
  float maxima[kFp8Partials];
};
static_assert(sizeof(Fp8Header) % 256 == 0);

// Bytes of a quantised operand of n numbers, and of a quantised weight: the same for both entries, a multiple of 256.
inline int64_t fp8_operand_bytes(int64_t n) { return static_cast<int64_t>(sizeof(Fp8Header)) + (2 * n + 255) / 256 * 256; }
inline int64_t fp8_packed_bytes(int64_t n, int64_t k) {
  return static_cast<int64_t>(sizeof(Fp8Header)) + linear_packed_bytes(n, k, DType::kBF16, PackFor::kForward);
}

// x's codes and scale. q: fp8_operand_bytes(n), 256-byte aligned, overwritten. A NaN stays one and has no part in the
// scale; an infinity becomes a NaN, and all finite numbers 0.
using Fp8Quantize = void(Stream&, void* q, const bf16* x /*(n)*/, int64_t n);

// The same of a weight, laid for linear_forward_fp8. packed: fp8_packed_bytes(n, k), 256-byte aligned, overwritten.
using Fp8Pack = void(Stream&, void* packed, const bf16* w /*(N,K)*/, int64_t n, int64_t k);

// Rows first_row … first_row + m − 1 of y, of type `out` (fp32, or bf16, rounded to nearest even); y is the first of them,
// and overwritten. bias may be nullptr.
using LinearForwardFp8 = void(Stream&, void* y /*(M,N) out*/, const void* x /*fp8_quantize of (first_row + M …,K)*/,
                              const void* packed /*fp8_pack*/, const bf16* bias /*(N)*/, int64_t first_row, int64_t m,
                              int64_t n, int64_t k, DType out);

namespace cpu {
Fp8Quantize fp8_quantize;
Fp8Pack fp8_pack;
LinearForwardFp8 linear_forward_fp8;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL Fp8Quantize fp8_quantize;
MS_OPTIONAL Fp8Pack fp8_pack;
MS_OPTIONAL LinearForwardFp8 linear_forward_fp8;
}  // namespace cuda

// Numbers are read twice: for the scale, and for the codes.
inline Cost fp8_quantize_cost(void*, const bf16*, int64_t n) { return {KernelClass::kVector, 0, 5.0 * static_cast<double>(n)}; }
inline Cost fp8_pack_cost(void*, const bf16*, int64_t n, int64_t k) {
  return {KernelClass::kPack, 0, 5.0 * static_cast<double>(n * k)};
}
inline Cost linear_forward_fp8_cost(void*, const void*, const void*, const bf16*, int64_t, int64_t m, int64_t n, int64_t k,
                                    DType out) {
  return {KernelClass::kGemm, 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
          static_cast<double>(m * k + n * k + m * n * dtype_bytes(out))};
}

inline constexpr Kernel<Fp8Quantize> fp8_quantize{"fp8_quantize", &cpu::fp8_quantize, &cuda::fp8_quantize, &fp8_quantize_cost};
inline constexpr Kernel<Fp8Pack> fp8_pack{"fp8_pack", &cpu::fp8_pack, &cuda::fp8_pack, &fp8_pack_cost};
inline constexpr Kernel<LinearForwardFp8> linear_forward_fp8{"linear_forward_fp8", &cpu::linear_forward_fp8,
                                                             &cuda::linear_forward_fp8, &linear_forward_fp8_cost};

}  // namespace megaslide
