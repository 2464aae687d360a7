// The motion term of the raw offsets (spec dsa.md §1): where a token's surroundings went in the other frames of its window.
//
//   z(t,h,w) = the 3×3 patch of c about (h, w), zero outside the grid: 144 values;  f = z/‖z‖, 0 where ‖z‖ < 1e-12
//   m(p, τ) = Σ_δ softmax_δ(β · f(p, t)·f(p + δ, τ)) · δ,  β = 20·s, over the |δ|∞ ≤ 4 with p + δ inside the grid
//   o(h, w) of each slot of frame τ += gain[group] · m(p, τ)
//
// c = W_c·x_norm, (B, N, 16), is a linear layer of the caller's (kernels/gemm, no bias). Slot j_t of a token stands for
// frame τ = (start of its base window along t) + j_t, inside its shot where there are tables; m is 0 at τ = t and where
// j_t ≥ k_eff,t. The temporal component of `full` gets nothing. `rigid` has no slots of their own frame: not allowed.
//
// Where the motion is known, m(p, τ) is read instead of found: motion_given_*.
//
// Everything is fp32, but for s and gain, which are of weight_dtype (kF32 or kBF16). Of the shape the grid, the kernel,
// mode, groups, row_offsets and shot tables are read. z(p)·z(p + δ) is the 3×3 box sum of the products c(p)·c(p + δ) at that δ, so no
// patch is ever formed and nothing of size N·81 stored. Bit-identical on repeat and for any number of threads.
#pragma once
#include <cstdint>

#include "kernels/dsa/dsa.h"
#include "kernels/kernel.h"

namespace megaslide {

inline constexpr int64_t kMotionChannels = 16;
inline constexpr int64_t kMotionSearch = 4;       // tokens along h and w
inline constexpr float kMotionBetaBase = 20;      // β of s = 1
inline constexpr float kMotionUnitEps = 1e-12f;   // shorter patches are 0

// offsets (B,N,dsa_offset_count) is accumulated; m, lse and norm are overwritten and saved for backward. lse is the
// natural logarithm over the scores; 0 where m is 0 by definition.
using MotionForward = void(Stream&, float* offsets, float* m /*(B,N,k_t,2): h, w*/, float* lse /*(B,N,k_t)*/,
                           float* norm /*(B,N): ‖z‖*/, const float* c /*(B,N,16)*/, const void* s /*(1)*/,
                           const void* gain /*(G)*/, void* workspace, DsaShape shape, DType weight_dtype);
// doffsets (0 at slots that do not exist) is also the gradient at what the term was added to. dc is overwritten, ds and
// dgain are accumulated.
using MotionBackward = void(Stream&, float* dc /*(B,N,16)*/, float* ds /*(1)*/, float* dgain /*(G)*/,
                            const float* doffsets, const float* m, const float* lse, const float* norm, const float* c,
                            const void* s, const void* gain, void* workspace, DsaShape shape, DType weight_dtype);

// displacement: where each token goes until each frame, (h, w) in tokens. offsets is accumulated, m overwritten.
using MotionGivenForward = void(Stream&, float* offsets, float* m /*(B,N,k_t,2)*/, const float* displacement /*(B,N,T,2)*/,
                                const void* gain /*(G)*/, DsaShape shape, DType weight_dtype);
// dgain is accumulated.
using MotionGivenBackward = void(Stream&, float* dgain /*(G)*/, const float* doffsets, const float* m, DsaShape shape);

// Bytes of `workspace` (64-byte aligned).
int64_t motion_forward_workspace_bytes(const DsaShape& shape);
int64_t motion_backward_workspace_bytes(const DsaShape& shape);

namespace cpu {
MotionForward motion_forward;
MotionBackward motion_backward;
MotionGivenForward motion_given_forward;
MotionGivenBackward motion_given_backward;
}  // namespace cpu

namespace cuda {
MS_OPTIONAL MotionForward motion_forward;
MS_OPTIONAL MotionBackward motion_backward;
MS_OPTIONAL MotionGivenForward motion_given_forward;
MS_OPTIONAL MotionGivenBackward motion_given_backward;
int64_t motion_forward_workspace_bytes(const DsaShape& shape);  // none
int64_t motion_backward_workspace_bytes(const DsaShape& shape);
}  // namespace cuda
inline constexpr WorkspaceSize motion_forward_workspace{&motion_forward_workspace_bytes, &cuda::motion_forward_workspace_bytes};
inline constexpr WorkspaceSize motion_backward_workspace{&motion_backward_workspace_bytes, &cuda::motion_backward_workspace_bytes};

// 3.7k·(k_t − 1) flop a token, backward three times that; bytes of every tensor once.
Cost motion_forward_cost(float*, float*, float*, float*, const float*, const void*, const void*, void*, DsaShape, DType);
Cost motion_backward_cost(float*, float*, float*, const float*, const float*, const float*, const float*, const float*,
                          const void*, const void*, void*, DsaShape, DType);

Cost motion_given_forward_cost(float*, float*, const float*, const void*, DsaShape, DType);
Cost motion_given_backward_cost(float*, const float*, const float*, DsaShape);

inline constexpr Kernel<MotionForward> motion_forward{"motion_forward", &cpu::motion_forward, &cuda::motion_forward,
                                                      &motion_forward_cost};
inline constexpr Kernel<MotionBackward> motion_backward{"motion_backward", &cpu::motion_backward, &cuda::motion_backward,
                                                        &motion_backward_cost};

inline constexpr Kernel<MotionGivenForward> motion_given_forward{"motion_given_forward", &cpu::motion_given_forward,
                                                                 &cuda::motion_given_forward, &motion_given_forward_cost};
inline constexpr Kernel<MotionGivenBackward> motion_given_backward{"motion_given_backward", &cpu::motion_given_backward,
                                                                   &cuda::motion_given_backward, &motion_given_backward_cost};

}  // namespace megaslide
