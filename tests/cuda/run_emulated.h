// The CUDA kernels under the emulator on a stored case, as tested_kernels() runs those of the CPU.
#pragma once
#include <vector>

#include "attention_check/check.h"
#include "attention_check/run_kernels.h"

namespace megaslide::testing_support {

// Empty for kinds without CUDA kernels.
const std::vector<TestedKernel>& emulated_kernels(CaseKind kind);

// The rule of spec dsa.md §7 for these kernels: against the stored results, fp32 and bf16.
std::vector<KernelCheck> check_emulated(const StoredCase& c, Stream& stream);

}  // namespace megaslide::testing_support
