// What the CUDA entries of dsa.h take besides: heads of up to 256 channels, fewer than 2³¹ queries times heads a call, and
// workspaces of their own; forward needs none. Kernel B (dsa_tile_cuda.h) runs where it fits, and rounds
// its operands to bf16; elsewhere A.
#pragma once
#include "kernels/dsa/dsa.h"

namespace megaslide::cuda {

// Whether calls from here on may take kernel B.
void allow_dsa_tiles(bool allowed);
// Frames of queries of which backward's workspace holds P and dS at a time.
int64_t dsa_band_frames(const DsaShape& shape);
// Bands of at most so many bytes from here on. Changes no result.
void limit_dsa_band(int64_t bytes);

}  // namespace megaslide::cuda
