// The CUDA kernels as operators of the CPU: the same calls as those without the namespace, run by the emulator.
// Far slower; for checks. Link ms_cuda_emulated.
#pragma once
#include "kernels/dsa/dsa_cuda.h"

namespace megaslide::emulated {

inline constexpr Kernel<DsaForward> dsa_forward{"dsa_forward", &cuda::dsa_forward, nullptr, &dsa_forward_cost};
inline constexpr Kernel<DsaBackward> dsa_backward{"dsa_backward", &cuda::dsa_backward, nullptr, &dsa_backward_cost};

}  // namespace megaslide::emulated
