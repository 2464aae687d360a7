// The CUDA products of gemm.h: cuBLASLt, with device kernels before and after it for what its epilogues lack.
//
// Packed weights are plain copies. bf16 operands are summed in fp32, fp32 operands in fp32 (no TF32). Algorithms are chosen
// once a shape, by cuBLASLt's heuristic, among those without atomics or sums in a rounded type: each run of one build on one
// device gives the same bits. The library's handle is made by the first product, for the device that is current then.
#pragma once
#include <cstddef>

#include "kernels/kernel.h"

namespace megaslide::cuda {

// Device memory that products may use, all of them on one stream: what is queued there later overwrites it. 256-byte
// aligned. A part is cuBLASLt's; the rest holds biases in fp32, and, for a run of rows at a time, results on their way to
// a rounded sum. Without enough of it these throw Error: linear_forward of bf16 with a bias (4·n bytes), linear_gated_add
// without `kept` (64·n elements), linear_gelu_gradient of bf16 (256·k bytes). Until set there is none.
MS_OPTIONAL void set_gemm_workspace(void* device_memory, size_t bytes);
// For Wan's widths: runs of 1,200 rows of 13,824 columns, and cuBLASLt's full share.
inline constexpr size_t kGemmWorkspaceBytes = size_t{96} << 20;

// Destroys the handle and forgets algorithms and workspace. No product may be running.
MS_OPTIONAL void release_gemm();

}  // namespace megaslide::cuda
