// The vocabulary of kernels/device.h on a device. Included by it alone.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "base/error.h"

// Before a loop whose unrolling only costs registers.
#define MS_NO_UNROLL _Pragma("unroll 1")
// Before a loop that indexes registers, where the compiler does not see by itself that it must unroll.
#define MS_UNROLL _Pragma("unroll")

namespace megaslide::prim {

__device__ __forceinline__ float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t float_to_bits(float x) { return __float_as_uint(x); }

// Two floats as a register of bf16: `lo` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

// 16 or 8 bytes of any type, aligned; two neighbouring bf16.
__device__ __forceinline__ uint4 load_16(const void* p) { return *static_cast<const uint4*>(p); }
__device__ __forceinline__ uint2 load_8(const void* p) { return *static_cast<const uint2*>(p); }
__device__ __forceinline__ void store_16(void* p, const uint4& v) { *static_cast<uint4*>(p) = v; }
__device__ __forceinline__ void store_8(void* p, const uint2& v) { *static_cast<uint2*>(p) = v; }
__device__ __forceinline__ void store_bf16(bf16* p, float lo, float hi) {
  *reinterpret_cast<uint32_t*>(p) = pack_bf16(lo, hi);
}

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void cp_async_16(void* dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(shared_address(dst)), "l"(src) : "memory");
}
__device__ __forceinline__ void cp_async_8(void* dst, const void* src) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],8;" ::"r"(shared_address(dst)), "l"(src) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char raw[];
  return reinterpret_cast<T*>(raw);
}

// Queues the kernel. Throws Error when the device refuses it.
template <class... P>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, Stream& stream,
            std::type_identity_t<P>... arguments) {
  if (shared_bytes > 48 * 1024)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(stream.native())>>>(arguments...);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess)
    throw Error(fmt::format("kernel launch: {}", cudaGetErrorString(status)));
}

}  // namespace megaslide::prim
