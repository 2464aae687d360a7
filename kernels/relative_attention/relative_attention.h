// Softmax attention of a sequence to itself with a bias by relative position, as T5 has it (spec wan.md B.2, B.3):
//
//   S_ab = q_a·k_b + bias[bucket(b − a)][head],  P = softmax_b(S),  out = P v
//
// There is no scale on q·k. Products accumulate in fp32, scores and softmax are fp32.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

inline constexpr int64_t kRelativeBuckets = 32;  // of a head

// The bucket of key position − query position, bidirectional, 32 buckets up to a distance of 128. Beyond 7 the buckets
// grow by a factor of √2: 8·2^(j/2) ≤ |distance|. Written as the numbers that the reference yields, since 16, 32 and 64
// lie on its logarithm's rounding.
constexpr int64_t relative_bucket(int64_t relative) {
  const int64_t distance = relative < 0 ? -relative : relative, side = relative > 0 ? kRelativeBuckets / 2 : 0;
  if (distance < 8) return side + distance;
  // Where buckets 9 … 15 begin.
  const int64_t bucket = 8 + (distance >= 12) + (distance >= 16) + (distance >= 23) + (distance >= 32) + (distance >= 46) +
                         (distance >= 64) + (distance >= 91);
  return side + bucket;
}

// q, k, v: elements of dtype (bf16 or fp32). out is overwritten and rounded to dtype. Saves nothing. Each head runs on
// one thread: results do not depend on how many there are.
using RelativeAttentionForward = void(Stream&, void* out /*(N,heads,d) dtype*/, const void* q /*(N,heads,d)*/,
                                      const void* k /*(N,heads,d)*/, const void* v /*(N,heads,d)*/,
                                      const float* bias /*(32,heads)*/, int64_t n, int64_t heads, int64_t head_dim,
                                      DType dtype);

namespace cpu {
RelativeAttentionForward relative_attention_forward;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL RelativeAttentionForward relative_attention_forward;
}  // namespace cuda

// The plain twin: fp64 inside, one query after the other.
namespace reference {
void relative_attention_forward(float* out, const float* q, const float* k, const float* v, const float* bias, int64_t n,
                                int64_t heads, int64_t head_dim);
}  // namespace reference

inline Cost relative_attention_forward_cost(void*, const void*, const void*, const void*, const float*, int64_t n,
                                            int64_t heads, int64_t head_dim, DType dtype) {
  const double rows = static_cast<double>(n), width = static_cast<double>(heads * head_dim);
  return {KernelClass::kAttention, 4 * rows * rows * width, 4 * rows * width * static_cast<double>(dtype_bytes(dtype))};
}

inline constexpr Kernel<RelativeAttentionForward> relative_attention_forward{
    "relative_attention_forward", &cpu::relative_attention_forward, &cuda::relative_attention_forward,
    &relative_attention_forward_cost};

}  // namespace megaslide
