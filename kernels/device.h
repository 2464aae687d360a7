// All that device code needs, with two faces: under nvcc the CUDA instructions, elsewhere the host emulator of
// kernels/simt that runs the same source on the CPU. Neither needs the other's headers.
//
// Device code is written in the vocabulary below and plain C++: no inline assembly, no launch chevrons, no static
// __shared__ arrays, no atomics. Shared memory is one struct (or array) through dynamic_shared, so that the emulator
// knows its exact bounds. Warp-wide calls take whole warps.
//
//   threadIdx blockIdx blockDim gridDim        uint3, dim3
//   __syncthreads() __syncwarp()               barriers of the block and of the warp
//   __shfl_sync __shfl_xor_sync __ballot_sync  with a full mask
//   prim::mma_m16n8k16_bf16(d, a, b)           d += a·b: a 16×16 row-major, b 16×8 column-major, fragments as in PTX
//   prim::ldmatrix_x4, prim::ldmatrix_x4_trans four 8×8 matrices of 16-bit elements from shared memory
//   prim::cp_async_16(dst, src)                16 bytes from global to shared memory; there only after the wait
//   prim::cp_async_8(dst, src)                 the same of 8
//   prim::cp_async_commit(), prim::cp_async_wait<N>()
//   prim::dynamic_shared<T>()                  the block's shared memory
//   prim::launch(kernel, grid, block, bytes, stream, argument...)
//   prim::pack_bf16(lo, hi), prim::widen(bf16) conversions, to nearest even
//   prim::bits_to_float, prim::float_to_bits
//   prim::load_16(p), prim::load_8(p)          16 or 8 bytes, aligned
//   prim::store_16(p, v), prim::store_8(p, v)
//   prim::store_bf16(p, lo, hi)                two neighbours
//   MS_UNROLL, MS_NO_UNROLL                    before a loop
#pragma once
#include "kernels/stream.h"
#include "tensor/dtype.h"

#ifdef __CUDACC__
#include "kernels/simt/prim_cuda.h"
#else
#include "kernels/simt/prim_emulated.h"
#endif

namespace megaslide::prim {

constexpr unsigned kFullMask = 0xffffffffu;

__device__ __forceinline__ float widen(bf16 x) { return bits_to_float(uint32_t{x.bits} << 16); }
__device__ __forceinline__ float widen(float x) { return x; }

// Sums and maxima over a warp, the same bits in every lane. A NaN stays in a sum, and is ignored by a maximum.
__device__ __forceinline__ float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullMask, x, offset);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kFullMask, x, offset));
  return x;
}

}  // namespace megaslide::prim
