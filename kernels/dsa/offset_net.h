// The part of the offset net (spec dsa.md §1) in front of its last linear layer:
//
//   y = depthwise conv3d 3×3×3 (zero pad, bias) of x on the grid (T, H, W)
//   z = (y − mean(y)) / sqrt(var(y) + eps) · norm_weight + norm_bias,  over the C channels of a token
//   g = GELU(z), tanh form
//
// The raw offsets are linear(g); that is kernels/gemm. The convolution sees the whole grid, shots or not.
// x is (B, N, C) of x_dtype, g (B, N, C) of out_dtype, the parameters of weight_dtype (each kF32 or kBF16);
// arithmetic and saved tensors are fp32. Results do not depend on the number of threads.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

struct OffsetNetShape {
  int64_t batch = 1;
  int64_t frames = 1, height = 1, width = 1;  // T, H, W
  int64_t channels = 0;                       // C
  float eps = 1e-6f;
  DType x_dtype = DType::kF32;
  DType weight_dtype = DType::kF32;
  DType out_dtype = DType::kF32;
  int64_t tokens() const { return frames * height * width; }
};

// Saves conv_out for backward; it may be nullptr when there will be none.
using OffsetNetForward = void(Stream&, void* g /*(B,N,C)*/, float* conv_out /*(B,N,C)*/, const void* x /*(B,N,C)*/,
                              const void* conv_weight /*(C,1,3,3,3)*/, const void* conv_bias /*(C)*/,
                              const void* norm_weight /*(C)*/, const void* norm_bias /*(C)*/, OffsetNetShape shape);
// dg is fp32. dx and the four parameter gradients (fp32) are accumulated.
using OffsetNetBackward = void(Stream&, float* dx /*(B,N,C)*/, float* dconv_weight /*(C,1,3,3,3)*/,
                               float* dconv_bias /*(C)*/, float* dnorm_weight /*(C)*/, float* dnorm_bias /*(C)*/,
                               const float* dg /*(B,N,C)*/, const float* conv_out, const void* x,
                               const void* conv_weight, const void* norm_weight, const void* norm_bias,
                               void* workspace, OffsetNetShape shape);
int64_t offset_net_backward_workspace_bytes(const OffsetNetShape& shape);

namespace cpu {
OffsetNetForward offset_net_forward;
OffsetNetBackward offset_net_backward;
}  // namespace cpu

namespace cuda {
MS_OPTIONAL OffsetNetForward offset_net_forward;
MS_OPTIONAL OffsetNetBackward offset_net_backward;
int64_t offset_net_backward_workspace_bytes(const OffsetNetShape& shape);
}  // namespace cuda
inline constexpr WorkspaceSize offset_net_backward_workspace{&offset_net_backward_workspace_bytes,
                                                             &cuda::offset_net_backward_workspace_bytes};

Cost offset_net_forward_cost(void*, float*, const void*, const void*, const void*, const void*, const void*,
                             OffsetNetShape);
Cost offset_net_backward_cost(float*, float*, float*, float*, float*, const float*, const float*, const void*,
                              const void*, const void*, const void*, void*, OffsetNetShape);

inline constexpr Kernel<OffsetNetForward> offset_net_forward{"offset_net_forward", &cpu::offset_net_forward, &cuda::offset_net_forward,
                                                             &offset_net_forward_cost};
inline constexpr Kernel<OffsetNetBackward> offset_net_backward{"offset_net_backward", &cpu::offset_net_backward,
                                                               &cuda::offset_net_backward, &offset_net_backward_cost};

}  // namespace megaslide
