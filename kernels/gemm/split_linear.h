// y = x·Wᵀ + b in fp32 on a tile unit for bf16. An fp32 number is the sum of three bf16 ones but for 2^-27 of it (8 bits each, rounded
// to nearest); of the nine products of the parts of two numbers the six above 2^-26 of the largest are taken, all sums are fp32, blocks
// of 32 terms first. The result is as near to the exact one as that of an fp32 product, at about half its time on AMX. A row has the same
// bits whatever other rows there are.
//
// Magnitudes below 2^-100 may count as 0, those above 2^127 become NaN, as do infinities.
#pragma once
#include <cstdint>

#include "kernels/activation/mlp_activation.h"
#include "kernels/kernel.h"

namespace megaslide {

// Whether this processor has such a unit, and the stream is the CPU's. Elsewhere linear_forward in fp32 (gemm.h) is the way. It is
// on a GPU too, where cuBLASLt takes fp32 operands whole: there are no entries for one below.
bool split_linear_serves(const Stream& stream);

// Bytes of a packed weight, a multiple of 256.
int64_t split_linear_packed_bytes(int64_t n, int64_t k);
// packed is 64-byte aligned, split_linear_packed_bytes long, and overwritten; for this processor only.
using SplitLinearPack = void(Stream&, void* packed, const float* w /*(N,K)*/, int64_t n, int64_t k);
// The parts of x, split_operand_bytes long, 64-byte aligned: what products of x have in common. Overwritten.
int64_t split_operand_bytes(int64_t m, int64_t k);
using SplitOperand = void(Stream&, void* parts, const float* x /*(M,K)*/, int64_t m, int64_t k);
// y = x·Wᵀ + b, or y += … where `accumulate`. bias may be nullptr.
using SplitLinearForward = void(Stream&, float* y /*(M,N)*/, const void* x_parts, const void* packed, const float* bias /*(N)*/, int64_t m, int64_t n,
                                int64_t k, bool accumulate);
// The parts of f(x·Wᵀ + b), as split_operand of the result would give them, split_operand_bytes(m, n): the operand of the product that
// follows.
using SplitLinearActivation = void(Stream&, void* y_parts, const void* x_parts, const void* packed, const float* bias /*(N)*/, int64_t m, int64_t n,
                                   int64_t k, MlpActivation f);

namespace cpu {
SplitLinearPack split_linear_pack;
SplitOperand split_operand;
SplitLinearForward split_linear_forward;
SplitLinearActivation split_linear_activation;
}  // namespace cpu

inline Cost split_linear_pack_cost(void*, const float*, int64_t n, int64_t k) {
  return {KernelClass::kPack, 0, 10.0 * static_cast<double>(n * k)};
}
inline Cost split_operand_cost(void*, const float*, int64_t m, int64_t k) { return {KernelClass::kVector, 0, 10.0 * static_cast<double>(m * k)}; }
inline Cost split_linear_forward_cost(float*, const void*, const void*, const float*, int64_t m, int64_t n, int64_t k, bool accumulate) {
  return {KernelClass::kGemm, 12.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
          static_cast<double>(6 * m * k + 6 * n * k + (accumulate ? 8 : 4) * m * n)};
}
inline Cost split_linear_activation_cost(void*, const void*, const void*, const float*, int64_t m, int64_t n, int64_t k, MlpActivation) {
  return {KernelClass::kGemm, 12.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k), static_cast<double>(6 * (m * k + n * k + m * n))};
}

inline constexpr Kernel<SplitLinearPack> split_linear_pack{"split_linear_pack", &cpu::split_linear_pack, nullptr, &split_linear_pack_cost};
inline constexpr Kernel<SplitOperand> split_operand{"split_operand", &cpu::split_operand, nullptr, &split_operand_cost};
inline constexpr Kernel<SplitLinearForward> split_linear_forward{"split_linear_forward", &cpu::split_linear_forward, nullptr, &split_linear_forward_cost};
inline constexpr Kernel<SplitLinearActivation> split_linear_activation{"split_linear_activation", &cpu::split_linear_activation, nullptr,
                                                                       &split_linear_activation_cost};

}  // namespace megaslide
