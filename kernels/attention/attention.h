// Softmax attention over a whole sequence or over fixed windows: forward and backward.
//
//   S = scale · Q Kᵀ,  P = softmax(S) over the visible keys,  O = P V,  LSE = log Σ exp(S) (natural logarithm)
//   dV = Pᵀ dO,  dP = dO Vᵀ,  dS = P ⊙ (dP − rowsum(dO ⊙ O)),  dQ = scale · dS K,  dK = scale · dSᵀ Q
//
// Shared by all: q is (B, N, heads, d), k and v are (B, M, heads, d), contiguous, elements of `dtype` (kF32 or kBF16).
// out, dout, dq, dk, dv are fp32 in the layout of their tensor, lse is (B, N, heads) fp32. Products accumulate in
// fp32 and the scale is applied after the dot product. Forward saves out and lse; backward overwrites dq, dk and dv.
// Results do not depend on the number of threads. `workspace` has the bytes of the matching *_workspace_bytes,
// 64-byte aligned, and may be nullptr where those are 0.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

struct AttentionShape {
  int64_t batch = 1;
  int64_t queries = 0;  // N
  int64_t keys = 0;     // M; differs from N in cross-attention
  int64_t heads = 1;
  int64_t head_dim = 0;  // d, any from 1 up
  float scale = 1;
};

using AttentionForward = void(Stream&, float* out /*(B,N,heads,d)*/, float* lse /*(B,N,heads)*/,
                              const void* q /*(B,N,heads,d)*/, const void* k /*(B,M,heads,d)*/,
                              const void* v /*(B,M,heads,d)*/, void* workspace, AttentionShape shape, DType dtype);
using AttentionBackward = void(Stream&, float* dq, float* dk, float* dv, const void* q, const void* k, const void* v,
                               const float* out, const float* lse, const float* dout, void* workspace,
                               AttentionShape shape, DType dtype);

// `dense`: blocked softmax, O(N + M) memory.
int64_t dense_attention_forward_workspace_bytes(const AttentionShape& shape, DType dtype);
int64_t dense_attention_backward_workspace_bytes(const AttentionShape& shape, DType dtype);
// `dense-materialised`: the N×M matrix of every head is written to the workspace, O(N·M) memory. The baseline that
// longer sequences cannot afford.
int64_t dense_materialised_forward_workspace_bytes(const AttentionShape& shape, DType dtype);
int64_t dense_materialised_backward_workspace_bytes(const AttentionShape& shape, DType dtype);

// `window`: Swin 3D (spec dsa.md §6). Tokens lie on a grid (T, H, W), t-major; per axis of length L the window is
// w = min(size, L), shifted by ⌊w/2⌋ on odd layers where w < L, and a token attends within its group
// ⌊p/w⌋ (unshifted) or ⌊(p + w − shift)/w⌋: equal to rolling with masks, nothing wraps around.
struct WindowShape {
  int64_t batch = 1;
  int64_t frames = 1, height = 1, width = 1;  // T, H, W
  int64_t heads = 1;
  int64_t head_dim = 0;
  float scale = 1;
  int64_t window[3] = {1, 1, 1};  // t, h, w; larger than the grid shrinks
  int64_t layer = 0;              // 0 is the first
  // Where the grid is frames [first_frame, first_frame + T) of a longer clip: windows are the clip's. 0 clip frames: all of it.
  int64_t first_frame = 0, clip_frames = 0;
  int64_t tokens() const { return frames * height * width; }
};

using WindowForward = void(Stream&, float* out, float* lse, const void* q, const void* k, const void* v,
                           void* workspace, WindowShape shape, DType dtype);
using WindowBackward = void(Stream&, float* dq, float* dk, float* dv, const void* q, const void* k, const void* v,
                            const float* out, const float* lse, const float* dout, void* workspace, WindowShape shape,
                            DType dtype);
int64_t window_attention_forward_workspace_bytes(const WindowShape& shape, DType dtype);
int64_t window_attention_backward_workspace_bytes(const WindowShape& shape, DType dtype);
// (query, key) pairs that see each other, of one sample and head.
double window_attention_pairs(const WindowShape& shape);

namespace cpu {
AttentionForward dense_attention_forward, dense_materialised_forward;
AttentionBackward dense_attention_backward, dense_materialised_backward;
WindowForward window_attention_forward;
WindowBackward window_attention_backward;
}  // namespace cpu

namespace cuda {
MS_OPTIONAL AttentionForward dense_attention_forward;
MS_OPTIONAL AttentionBackward dense_attention_backward;
MS_OPTIONAL AttentionForward dense_materialised_forward;
MS_OPTIONAL AttentionBackward dense_materialised_backward;
MS_OPTIONAL WindowForward window_attention_forward;
MS_OPTIONAL WindowBackward window_attention_backward;
int64_t dense_attention_forward_workspace_bytes(const AttentionShape& shape, DType dtype);   // none
int64_t dense_attention_backward_workspace_bytes(const AttentionShape& shape, DType dtype);  // rowsum(dO ⊙ O) of every query and head
int64_t dense_materialised_forward_workspace_bytes(const AttentionShape& shape, DType dtype);
int64_t dense_materialised_backward_workspace_bytes(const AttentionShape& shape, DType dtype);
int64_t window_attention_forward_workspace_bytes(const WindowShape& shape, DType dtype);   // none
int64_t window_attention_backward_workspace_bytes(const WindowShape& shape, DType dtype);  // as dense
}  // namespace cuda
inline constexpr WorkspaceSize dense_attention_forward_workspace{&dense_attention_forward_workspace_bytes,
                                                                &cuda::dense_attention_forward_workspace_bytes};
inline constexpr WorkspaceSize dense_attention_backward_workspace{&dense_attention_backward_workspace_bytes,
                                                                 &cuda::dense_attention_backward_workspace_bytes};
inline constexpr WorkspaceSize dense_materialised_forward_workspace{&dense_materialised_forward_workspace_bytes,
                                                                   &cuda::dense_materialised_forward_workspace_bytes};
inline constexpr WorkspaceSize dense_materialised_backward_workspace{&dense_materialised_backward_workspace_bytes,
                                                                    &cuda::dense_materialised_backward_workspace_bytes};
inline constexpr WorkspaceSize window_attention_forward_workspace{&window_attention_forward_workspace_bytes,
                                                                 &cuda::window_attention_forward_workspace_bytes};
inline constexpr WorkspaceSize window_attention_backward_workspace{&window_attention_backward_workspace_bytes,
                                                                  &cuda::window_attention_backward_workspace_bytes};

// Two products a pair forward, five backward; bytes of the tensors, once each.
Cost attention_cost(double pairs, double query_elements, double key_elements, double element_bytes, bool backward);
Cost dense_attention_forward_cost(float*, float*, const void*, const void*, const void*, void*, AttentionShape, DType);
Cost dense_attention_backward_cost(float*, float*, float*, const void*, const void*, const void*, const float*,
                                   const float*, const float*, void*, AttentionShape, DType);
Cost dense_materialised_forward_cost(float*, float*, const void*, const void*, const void*, void*, AttentionShape,
                                     DType);
Cost dense_materialised_backward_cost(float*, float*, float*, const void*, const void*, const void*, const float*,
                                      const float*, const float*, void*, AttentionShape, DType);
Cost window_attention_forward_cost(float*, float*, const void*, const void*, const void*, void*, WindowShape, DType);
Cost window_attention_backward_cost(float*, float*, float*, const void*, const void*, const void*, const float*,
                                    const float*, const float*, void*, WindowShape, DType);

inline constexpr Kernel<AttentionForward> dense_attention_forward{
    "dense_attention_forward", &cpu::dense_attention_forward, &cuda::dense_attention_forward, &dense_attention_forward_cost};
inline constexpr Kernel<AttentionBackward> dense_attention_backward{
    "dense_attention_backward", &cpu::dense_attention_backward, &cuda::dense_attention_backward, &dense_attention_backward_cost};
inline constexpr Kernel<AttentionForward> dense_materialised_forward{
    "dense_materialised_forward", &cpu::dense_materialised_forward, &cuda::dense_materialised_forward, &dense_materialised_forward_cost};
inline constexpr Kernel<AttentionBackward> dense_materialised_backward{
    "dense_materialised_backward", &cpu::dense_materialised_backward, &cuda::dense_materialised_backward, &dense_materialised_backward_cost};
inline constexpr Kernel<WindowForward> window_attention_forward{
    "window_attention_forward", &cpu::window_attention_forward, &cuda::window_attention_forward, &window_attention_forward_cost};
inline constexpr Kernel<WindowBackward> window_attention_backward{
    "window_attention_backward", &cpu::window_attention_backward, &cuda::window_attention_backward, &window_attention_backward_cost};

}  // namespace megaslide
