// The CUDA kernels on stored cases, run by the emulator of kernels/simt. Link ms_attention_check_emulated.
#pragma once
#include <vector>

#include "attention_check/check.h"
#include "attention_check/run_kernels.h"

namespace megaslide {

// "cuda_gather", "cuda_tile" (bf16 alone), "cuda_dense" …: those that run cases of this kind. simt::set_options() says
// in which order their threads run.
const std::vector<TestedKernel>& emulated_kernels(CaseKind kind);

// check_case() with these kernels alone.
inline std::vector<KernelCheck> check_emulated(const StoredCase& c, Stream& stream) {
  return check_kernels(c, stream, emulated_kernels(c.kind));
}

}  // namespace megaslide
