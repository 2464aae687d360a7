// Attention of a short text in which a token sees itself and what stands before it: the text towers of CLIP and ViCLIP.
//   out_i = Σ_{j ≤ i} p_ij v_j,   p_i = softmax_{j ≤ i}(scale · q_i·k_j)
// fp32 inside, whatever dtype holds. A thread keeps 16 rows of scores, n each.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

// out is overwritten and rounded to dtype (bf16 or fp32). Saves nothing. out must be none of the others.
using CausalAttentionForward = void(Stream&, void* out /*(N,heads,d) dtype*/, const void* q, const void* k, const void* v, int64_t n,
                                    int64_t heads, int64_t head_dim, float scale, DType dtype);

namespace cpu {
CausalAttentionForward causal_attention_forward;
}
namespace cuda {
MS_OPTIONAL CausalAttentionForward causal_attention_forward;
}

// The plain twin, fp64 inside.
namespace reference {
void causal_attention_forward(float* out, const float* q, const float* k, const float* v, int64_t n, int64_t heads, int64_t d, double scale);
}

// Two products of every pair that is seen; an exponential counts 16 operations.
inline Cost causal_attention_forward_cost(void*, const void*, const void*, const void*, int64_t n, int64_t heads, int64_t head_dim, float, DType dtype) {
  const double pairs = 0.5 * static_cast<double>(n) * static_cast<double>(n + 1) * static_cast<double>(heads);
  return {KernelClass::kAttention, pairs * (4.0 * static_cast<double>(head_dim) + 19.0), static_cast<double>(4 * n * heads * head_dim * dtype_bytes(dtype))};
}

inline constexpr Kernel<CausalAttentionForward> causal_attention_forward{"causal_attention_forward", &cpu::causal_attention_forward,
                                                                         &cuda::causal_attention_forward, &causal_attention_forward_cost};

}  // namespace megaslide
