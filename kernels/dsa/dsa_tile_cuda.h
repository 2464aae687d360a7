// Kernel B on CUDA, behind cuda::dsa_forward and cuda::dsa_backward.
#pragma once
#include "kernels/device.h"
#include "kernels/dsa/dsa.h"

namespace megaslide {

// Shared memory of a block that every architecture built for has: 163 KiB on sm_80.
constexpr size_t kTileSharedBytes = 163 * 1024;

// bf16, heads of up to 128 channels, a line of the halo of up to 192 keys, and samples' scores that fit beside it.
bool dsa_tile_forward_fits(const DsaShape& shape, DType dtype);
void dsa_tile_forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v,
                      const float* offsets, const DsaShape& shape);

// The queries' part of backward, for the query frames [frame0, frame1): as the query kernel of dsa_backward.cu, which says
// what `pairs` is. dout, and dS over the keys, are rounded to bf16 as operands. doffsets is accumulated.
struct DsaTileBackward {
  float *dq, *doffsets;
  const void *q, *k, *v;
  const float *offsets, *out, *lse, *dout;
  float2* pairs;
  int frame0, frame1;
};
// bf16, heads of up to 128 channels, a line of the halo of up to 128 keys.
bool dsa_tile_backward_fits(const DsaShape& shape, DType dtype);
void dsa_tile_backward_queries(Stream& stream, const DsaTileBackward& x, const DsaShape& shape);

// The keys' part: dk and dv are accumulated. q and dout, and P and dS over the keys, are rounded to bf16 as operands; where
// one of q or dout is not finite, neither is what the keys of a tile within reach get.
struct DsaTileKeys {
  float *dk, *dv;
  const void* q;
  const float *offsets, *dout;
  float2* pairs;
  int frame0, frame1;
};
void dsa_tile_backward_keys(Stream& stream, const DsaTileKeys& x, const DsaShape& shape);

// Whether calls may take kernel B (cuda::allow_dsa_tiles).
bool dsa_tiles_allowed();

}  // namespace megaslide
