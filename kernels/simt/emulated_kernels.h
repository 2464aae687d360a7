// The CUDA kernels as operators of the CPU: the same calls as those without the namespace, run by the emulator.
// Far slower; for checks. Link ms_cuda_emulated.
#pragma once
#include "kernels/attention/attention_cuda.h"
#include "kernels/dsa/dsa_cuda.h"
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

}  // namespace megaslide::emulated
