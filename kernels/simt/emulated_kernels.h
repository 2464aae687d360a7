// The CUDA kernels as operators of the CPU: the same calls as those without the namespace, run by the emulator.
// Far slower; for checks. Link ms_cuda_emulated.
#pragma once
#include "kernels/attention/attention_cuda.h"
#include "kernels/dsa/dsa_cuda.h"
#include "kernels/dsa/motion_cuda.h"
#include "kernels/dsa/offset_net_cuda.h"
#include "kernels/dsa/pooled_cuda.h"

namespace megaslide::emulated {

inline constexpr Kernel<DsaForward> dsa_forward{"dsa_forward", &cuda::dsa_forward, nullptr, &dsa_forward_cost};
inline constexpr Kernel<DsaBackward> dsa_backward{"dsa_backward", &cuda::dsa_backward, nullptr, &dsa_backward_cost};
inline constexpr Kernel<AttentionForward> dense_attention_forward{"dense_attention_forward", &cuda::dense_attention_forward, nullptr,
                                                                  &dense_attention_forward_cost};
inline constexpr Kernel<AttentionBackward> dense_attention_backward{"dense_attention_backward", &cuda::dense_attention_backward,
                                                                    nullptr, &dense_attention_backward_cost};
inline constexpr Kernel<WindowForward> window_attention_forward{"window_attention_forward", &cuda::window_attention_forward, nullptr,
                                                                &window_attention_forward_cost};
inline constexpr Kernel<WindowBackward> window_attention_backward{"window_attention_backward", &cuda::window_attention_backward,
                                                                  nullptr, &window_attention_backward_cost};
inline constexpr Kernel<OffsetNetForward> offset_net_forward{"offset_net_forward", &cuda::offset_net_forward, nullptr,
                                                             &offset_net_forward_cost};
inline constexpr Kernel<OffsetNetBackward> offset_net_backward{"offset_net_backward", &cuda::offset_net_backward, nullptr,
                                                               &offset_net_backward_cost};
inline constexpr Kernel<PooledForward> pooled_forward{"pooled_forward", &cuda::pooled_forward, nullptr, &pooled_forward_cost};
inline constexpr Kernel<PooledBackward> pooled_backward{"pooled_backward", &cuda::pooled_backward, nullptr, &pooled_backward_cost};
inline constexpr Kernel<MotionForward> motion_forward{"motion_forward", &cuda::motion_forward, nullptr, &motion_forward_cost};
inline constexpr Kernel<MotionBackward> motion_backward{"motion_backward", &cuda::motion_backward, nullptr, &motion_backward_cost};

// All of them with their workspaces, as attention_check/run_kernels-inl.h takes them.
struct Kernels {
  static constexpr auto& dsa_forward = emulated::dsa_forward;
  static constexpr auto& dsa_backward = emulated::dsa_backward;
  static constexpr auto& dense_attention_forward = emulated::dense_attention_forward;
  static constexpr auto& dense_attention_backward = emulated::dense_attention_backward;
  static constexpr auto& window_attention_forward = emulated::window_attention_forward;
  static constexpr auto& window_attention_backward = emulated::window_attention_backward;
  static constexpr auto& pooled_forward = emulated::pooled_forward;
  static constexpr auto& pooled_backward = emulated::pooled_backward;
  static constexpr auto& offset_net_forward = emulated::offset_net_forward;
  static constexpr auto& offset_net_backward = emulated::offset_net_backward;
  static constexpr auto& motion_forward = emulated::motion_forward;
  static constexpr auto& motion_backward = emulated::motion_backward;
  static constexpr auto dsa_forward_workspace_bytes = &cuda::dsa_forward_workspace_bytes;
  static constexpr auto dsa_backward_workspace_bytes = &cuda::dsa_backward_workspace_bytes;
  static constexpr auto dense_attention_forward_workspace_bytes = &cuda::dense_attention_forward_workspace_bytes;
  static constexpr auto dense_attention_backward_workspace_bytes = &cuda::dense_attention_backward_workspace_bytes;
  static constexpr auto window_attention_forward_workspace_bytes = &cuda::window_attention_forward_workspace_bytes;
  static constexpr auto window_attention_backward_workspace_bytes = &cuda::window_attention_backward_workspace_bytes;
  static constexpr auto pooled_workspace_bytes = &cuda::pooled_workspace_bytes;
  static constexpr auto offset_net_backward_workspace_bytes = &cuda::offset_net_backward_workspace_bytes;
  static constexpr auto motion_forward_workspace_bytes = &cuda::motion_forward_workspace_bytes;
  static constexpr auto motion_backward_workspace_bytes = &cuda::motion_backward_workspace_bytes;
};

}  // namespace megaslide::emulated
