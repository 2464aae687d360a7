// Small moves of device memory, queued like any other kernel.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

using FillZero = void(Stream&, void* out, int64_t bytes);
using CopyMemory = void(Stream&, void* out, const void* in, int64_t bytes);  // not overlapping
// out += in; y = x as fp32 (x bf16 or fp32).
using AddInPlace = void(Stream&, float* out /*(n)*/, const float* in /*(n)*/, int64_t n);
using WidenFloat = void(Stream&, float* y /*(n)*/, const void* x /*(n) dtype*/, int64_t n, DType dtype);

namespace cpu {
FillZero fill_zero;
CopyMemory copy_memory;
AddInPlace add_in_place;
WidenFloat widen_float;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL FillZero fill_zero;
MS_OPTIONAL CopyMemory copy_memory;
MS_OPTIONAL AddInPlace add_in_place;
MS_OPTIONAL WidenFloat widen_float;
}  // namespace cuda

inline Cost fill_zero_cost(void*, int64_t bytes) { return {KernelClass::kVector, 0, static_cast<double>(bytes)}; }
inline Cost copy_memory_cost(void*, const void*, int64_t bytes) {
  return {KernelClass::kVector, 0, 2.0 * static_cast<double>(bytes)};
}
inline Cost add_in_place_cost(float*, const float*, int64_t n) {
  return {KernelClass::kVector, static_cast<double>(n), 12.0 * static_cast<double>(n)};
}
inline Cost widen_float_cost(float*, const void*, int64_t n, DType dtype) {
  return {KernelClass::kVector, 0, static_cast<double>(n * (4 + dtype_bytes(dtype)))};
}

inline constexpr Kernel<FillZero> fill_zero{"fill_zero", &cpu::fill_zero, &cuda::fill_zero, &fill_zero_cost};
inline constexpr Kernel<CopyMemory> copy_memory{"copy_memory", &cpu::copy_memory, &cuda::copy_memory,
                                                &copy_memory_cost};
inline constexpr Kernel<AddInPlace> add_in_place{"add_in_place", &cpu::add_in_place, &cuda::add_in_place,
                                                 &add_in_place_cost};
inline constexpr Kernel<WidenFloat> widen_float{"widen_float", &cpu::widen_float, &cuda::widen_float,
                                                &widen_float_cost};

}  // namespace megaslide
