// Reading rows of q, k, v and friends in device code: bf16 or fp32, one element or 16 bytes at a time.
#pragma once
#include <cstdint>

#include "base/error.h"
#include "kernels/device.h"

namespace megaslide {

template <class T>
inline constexpr int kVectorElements = 16 / static_cast<int>(sizeof(T));

// V consecutive elements as floats; 16-byte aligned where V > 1.
template <int V>
__device__ __forceinline__ void load_floats(float (&x)[V], const float* p) {
  if constexpr (V == 1) {
    x[0] = *p;
  } else {
    for (int i = 0; i < V; i += 4) {
      const uint4 v = prim::load_16(p + i);
      x[i] = prim::bits_to_float(v.x), x[i + 1] = prim::bits_to_float(v.y);
      x[i + 2] = prim::bits_to_float(v.z), x[i + 3] = prim::bits_to_float(v.w);
    }
  }
}
template <int V>
__device__ __forceinline__ void load_floats(float (&x)[V], const bf16* p) {
  if constexpr (V == 1) {
    x[0] = prim::widen(*p);
  } else {
    static_assert(V == 8);
    const uint4 v = prim::load_16(p);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = prim::bits_to_float(words[i] << 16);
      x[2 * i + 1] = prim::bits_to_float(words[i] & 0xffff0000u);
    }
  }
}

// A tensor whose type is known at run time, for kernels that memory bounds.
struct AnyElements {
  const void* data;
  bool is_bf16;
  AnyElements(const void* p, DType t) : data(p), is_bf16(t == DType::kBF16) {}
  __device__ float at(int64_t i) const {
    return is_bf16 ? prim::widen(static_cast<const bf16*>(data)[i]) : static_cast<const float*>(data)[i];
  }
};

// A thread an element, 256 a block.
inline dim3 element_grid(int64_t n) { return dim3(static_cast<unsigned>((n + 255) / 256)); }
inline dim3 element_block() { return dim3(256); }
__device__ __forceinline__ int64_t element_index() { return int64_t{blockIdx.x} * 256 + threadIdx.x; }

// The sum over a block of four warps, in every thread; `part` is four floats of shared memory.
__device__ __forceinline__ float block_sum(float* part, float x) {
  x = prim::warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  return part[0] + part[1] + part[2] + part[3];
}

// Whether all of these can be read 16 bytes at a time in rows of `d` elements.
template <class... P>
bool aligned_rows(int64_t d, int64_t unit, const P*... pointers) {
  return d % unit == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// A warp a unit of work, four warps a block. Units are counted in 32 bits: division of 64 bits is slow on a device.
constexpr unsigned kWarpsPerBlock = 4;
inline dim3 warp_grid(int64_t units) { return dim3(static_cast<unsigned>((units + kWarpsPerBlock - 1) / kWarpsPerBlock)); }
inline dim3 warp_block() { return dim3(32 * kWarpsPerBlock); }
__device__ __forceinline__ unsigned warp_unit() { return blockIdx.x * kWarpsPerBlock + threadIdx.x / 32; }

// Throws Error where a count that kernels keep in 32 bits does not fit.
inline unsigned count32(int64_t n, const char* what) {
  if (n >= int64_t{1} << 31) throw Error(fmt::format("{} {}: CUDA kernels count up to 2147483647", n, what));
  return static_cast<unsigned>(n);
}
// Throws Error where heads have more channels than the kernels' registers hold.
constexpr int kMaxHeadDim = 256;
inline void check_head_dim(int64_t d) {
  if (d > kMaxHeadDim) throw Error(fmt::format("heads of {} channels: CUDA kernels take up to {}", d, kMaxHeadDim));
}

}  // namespace megaslide
