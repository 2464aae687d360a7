// Kernel B on CUDA, behind cuda::dsa_forward.
#pragma once
#include "kernels/dsa/dsa.h"

namespace megaslide {

// Shared memory of a block that every architecture built for has: 163 KiB on sm_80.
constexpr size_t kTileSharedBytes = 163 * 1024;

// bf16, heads of up to 128 channels, a line of the halo of up to 192 keys, and samples' scores that fit beside it.
bool dsa_tile_forward_fits(const DsaShape& shape, DType dtype);
void dsa_tile_forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v,
                      const float* offsets, const DsaShape& shape);

}  // namespace megaslide
