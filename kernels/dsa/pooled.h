// The pooled branch (spec dsa.md §5): dense attention between the means of 4×4×4 tiles, gated and added.
//
//   q̄, k̄, v̄ = means over the tokens of each tile (ragged tiles at the far ends average what they have)
//   Ō = softmax(scale · q̄ k̄ᵀ) v̄ over all M tiles, out[p] += gate[head] · Ō[tile(p)]
//
// q, k, v are (B, N, heads, d) of `dtype`, the gate (heads) of gate_dtype; all else is fp32. The branch is global: it
// knows no shot tables. Results do not depend on the number of threads.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

struct PooledShape {
  int64_t batch = 1;
  int64_t frames = 1, height = 1, width = 1;  // T, H, W
  int64_t heads = 1;
  int64_t head_dim = 0;
  float scale = 1;
  int64_t tile[3] = {4, 4, 4};
  DType gate_dtype = DType::kF32;
  int64_t tokens() const { return frames * height * width; }
  int64_t tiles() const {  // M
    return ((frames + tile[0] - 1) / tile[0]) * ((height + tile[1] - 1) / tile[1]) * ((width + tile[2] - 1) / tile[2]);
  }
};

// Floats of `saved`: q̄, k̄, v̄, Ō (B,M,heads,d) each, then the tiles' lse (B,M,heads).
inline int64_t pooled_saved_count(const PooledShape& s) {
  return s.batch * s.tiles() * s.heads * (4 * s.head_dim + 1);
}
int64_t pooled_workspace_bytes(const PooledShape& shape);  // forward and backward

// out is accumulated; `saved` is written.
using PooledForward = void(Stream&, float* out /*(B,N,heads,d)*/, float* saved, const void* q, const void* k,
                           const void* v, const void* gate /*(heads)*/, void* workspace, PooledShape shape,
                           DType dtype);
// dq, dk, dv (B,N,heads,d) and dgate (heads) are accumulated.
using PooledBackward = void(Stream&, float* dq, float* dk, float* dv, float* dgate, const float* saved,
                            const void* gate, const float* dout, void* workspace, PooledShape shape);

namespace cpu {
PooledForward pooled_forward;
PooledBackward pooled_backward;
}  // namespace cpu

namespace cuda {
MS_OPTIONAL PooledForward pooled_forward;
MS_OPTIONAL PooledBackward pooled_backward;
int64_t pooled_workspace_bytes(const PooledShape& shape);  // of backward alone
}  // namespace cuda
inline constexpr WorkspaceSize pooled_workspace{&pooled_workspace_bytes, &cuda::pooled_workspace_bytes};

Cost pooled_forward_cost(float*, float*, const void*, const void*, const void*, const void*, void*, PooledShape, DType);
Cost pooled_backward_cost(float*, float*, float*, float*, const float*, const void*, const float*, void*, PooledShape);

inline constexpr Kernel<PooledForward> pooled_forward{"pooled_forward", &cpu::pooled_forward, &cuda::pooled_forward,
                                                      &pooled_forward_cost};
inline constexpr Kernel<PooledBackward> pooled_backward{"pooled_backward", &cpu::pooled_backward, &cuda::pooled_backward,
                                                        &pooled_backward_cost};

}  // namespace megaslide
