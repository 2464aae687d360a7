// The CUDA entries of dsa.h, with their own workspaces. Heads of up to 256 channels, fewer than 2³¹ tokens a call.
#pragma once
#include "kernels/dsa/dsa.h"

namespace megaslide::cuda {

// No workspace. Kernel B (dsa_tile_cuda.h), which rounds the softmax weights to bf16 as operands, where it fits; else A.
DsaForward dsa_forward;
// Whether calls from here on may take kernel B.
void allow_dsa_tiles(bool allowed);
DsaBackward dsa_backward;
// P and dS of every sample of a band of frames: at most 1 GiB, or one frame's.
int64_t dsa_backward_workspace_bytes(const DsaShape& shape, DType dtype);
// Bands of at most so many bytes from here on. Changes no result.
void limit_dsa_band(int64_t bytes);

}  // namespace megaslide::cuda
