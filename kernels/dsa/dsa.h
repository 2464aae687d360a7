// 3D deformable slide attention (spec dsa.md §1): every query attends to the samples of its shifted window, and each
// sample sits at x = b + R·tanh(o/R), read by trilinear interpolation.
//
// Tokens lie on a grid (T, H, W), t-major, N = T·H·W. q, k, v are (B, N, heads, d) contiguous, elements of `dtype`
// (kF32 or kBF16); offsets are the raw ones, fp32, (B, N) + the shape of the mode; out, dout, dq, dk, dv, doffsets
// are fp32, lse (B, N, heads) fp32, the natural logarithm over the scaled scores.
//
//   S_j = scale · q · Σ_c w_jc K[i_jc],  P = softmax(S),  O = Σ_j P_j Σ_c w_jc V[i_jc]
//
// A call may serve a run of the heads of wider rows, and read its offsets from wider rows too: the pointers are then those
// of its first head and first raw offset, row_heads says how many heads a row of q, k, v, out, lse and of their gradients
// has, and row_offsets how many raw offsets. What is not the call's own is neither read nor written.
//
// Coordinates are fp32; corners of weight 0 are not read; nothing outside the grid, or outside the query's shot, is
// ever read, whatever the offsets hold. A NaN offset makes the outputs of its query NaN. Forward saves out and lse.
// Backward overwrites dq, dk, dv and doffsets; bit-identical on repeat and for any number of threads.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

// Raw offsets a token: [G, K, 3], [G, k_t, 2] (h, w alone) or [G, 3]; components (t, h, w).
enum class DsaOffsetMode { kFull, kSlice, kRigid };

struct DsaShape {
  int64_t batch = 1;
  int64_t frames = 1, height = 1, width = 1;  // T, H, W
  int64_t heads = 1;
  int64_t head_dim = 0;     // d, any from 1 up
  int64_t row_heads = 0;    // ≥ heads; 0: heads
  int64_t row_offsets = 0;  // ≥ dsa_offset_count; 0: that
  float scale = 1;
  int64_t kernel[3] = {1, 1, 1};  // k_t, k_h, k_w: nominal; an axis shorter than its kernel shrinks it
  float reach[3] = {1, 2, 2};     // R ≥ 0 in tokens; 0 switches the axis off
  DsaOffsetMode mode = DsaOffsetMode::kFull;
  int64_t groups = 1;  // G ≤ heads; head i uses group ⌊i·G/heads⌋
  // Shot tables (T), inclusive, or both nullptr: device memory that outlives the call.
  const int32_t* t_lo = nullptr;
  const int32_t* t_hi = nullptr;
  // Of a batch of one: the frames whose queries are computed. Of the others out, lse and dq are not written, and nothing
  // comes into dk and dv; doffsets are 0. 0 frames: all.
  int64_t query_begin = 0, query_frames = 0;

  int64_t query_end() const { return query_frames == 0 ? frames : query_begin + query_frames; }
  int64_t tokens() const { return frames * height * width; }
  int64_t lse_row() const { return row_heads == 0 ? heads : row_heads; }  // elements from a token to the next
  int64_t row() const { return lse_row() * head_dim; }
  int64_t slots() const { return kernel[0] * kernel[1] * kernel[2]; }  // K
};

// Raw offsets a token has: 3GK, 2Gk_t or 3G.
inline int64_t dsa_offset_count(const DsaShape& s) {
  switch (s.mode) {
    case DsaOffsetMode::kFull: return 3 * s.groups * s.slots();
    case DsaOffsetMode::kSlice: return 2 * s.groups * s.kernel[0];
    case DsaOffsetMode::kRigid: return 3 * s.groups;
  }
  return 0;
}
// Elements from a token's raw offsets to the next one's.
inline int64_t dsa_offset_row(const DsaShape& s) { return s.row_offsets == 0 ? dsa_offset_count(s) : s.row_offsets; }

using DsaForward = void(Stream&, float* out /*(B,N,heads,d)*/, float* lse /*(B,N,heads)*/, const void* q, const void* k,
                        const void* v, const float* offsets /*(B,N,dsa_offset_count)*/, void* workspace, DsaShape shape,
                        DType dtype);
using DsaBackward = void(Stream&, float* dq, float* dk, float* dv, float* doffsets, const void* q, const void* k,
                         const void* v, const float* offsets, const float* out, const float* lse, const float* dout,
                         void* workspace, DsaShape shape, DType dtype);

// The CPU's two kernels (spec §3): A, gather, and B, halo tiles. Both take every shape; B multiplies whole tiles of
// queries and keys, on the tile unit in bf16 (kernels/tile/unit.h; dout and the softmax weights are then rounded to bf16
// as operands), else in fp32 vectors. It is taken where its padding and its halo cost less than they gain.
enum class DsaKernel { kAuto, kGather, kTile };
struct DsaKernelChoice {
  DsaKernel kernel;    // kGather or kTile
  const char* reason;  // why kGather
};
DsaKernelChoice dsa_kernel_of(const DsaShape& shape, DType dtype);
// From here on calls of this process take this kernel. kTile gives way only where its working memory would be absurd.
void limit_dsa_kernel(DsaKernel only);

// Bytes of `workspace` (64-byte aligned; nullptr where 0) for the kernel that a call would take now.
int64_t dsa_forward_workspace_bytes(const DsaShape& shape, DType dtype);
int64_t dsa_backward_workspace_bytes(const DsaShape& shape, DType dtype);

namespace cpu {
DsaForward dsa_forward;
DsaBackward dsa_backward;
}  // namespace cpu

namespace cuda {
MS_OPTIONAL DsaForward dsa_forward;
MS_OPTIONAL DsaBackward dsa_backward;
int64_t dsa_forward_workspace_bytes(const DsaShape& shape, DType dtype);  // none
// P and dS of every sample of a band of frames: at most 1 GiB, or one frame's.
int64_t dsa_backward_workspace_bytes(const DsaShape& shape, DType dtype);
}  // namespace cuda
inline constexpr WorkspaceSize dsa_forward_workspace{&dsa_forward_workspace_bytes, &cuda::dsa_forward_workspace_bytes};
inline constexpr WorkspaceSize dsa_backward_workspace{&dsa_backward_workspace_bytes, &cuda::dsa_backward_workspace_bytes};

// 4KC and 10KC flop a token; bytes of every tensor once.
Cost dsa_forward_cost(float*, float*, const void*, const void*, const void*, const float*, void*, DsaShape, DType);
Cost dsa_backward_cost(float*, float*, float*, float*, const void*, const void*, const void*, const float*,
                       const float*, const float*, const float*, void*, DsaShape, DType);

inline constexpr Kernel<DsaForward> dsa_forward{"dsa_forward", &cpu::dsa_forward, &cuda::dsa_forward, &dsa_forward_cost};
inline constexpr Kernel<DsaBackward> dsa_backward{"dsa_backward", &cpu::dsa_backward, &cuda::dsa_backward, &dsa_backward_cost};

}  // namespace megaslide
