// Element types and their conversions.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/host_device.h"

namespace megaslide {

// The safetensors names, in the format's ascending order (its writer sorts descending; spec wan.md F.3).
enum class DType : uint8_t {
  kBOOL, kF4, kF6_E2M3, kF6_E3M2, kU8, kI8, kF8_E5M2, kF8_E4M3, kF8_E8M0, kF8_E4M3FNUZ, kF8_E5M2FNUZ,
  kI16, kU16, kF16, kBF16, kI32, kU32, kF32, kC64, kF64, kI64, kU64,
};

int dtype_bits(DType t);
std::string_view dtype_name(DType t);                       // "BF16"
std::optional<DType> parse_dtype(std::string_view name);    // exact safetensors names
inline int64_t dtype_bytes(DType t) { return dtype_bits(t) / 8; }  // for whole-byte types

// A bfloat16 as stored. Conversion from float rounds to nearest, ties to even; NaN stays a quiet NaN.
struct bf16 {
  uint16_t bits;
  friend bool operator==(bf16, bf16) = default;
};
MS_HOST_DEVICE inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
MS_HOST_DEVICE inline float to_float(float x) { return x; }
MS_HOST_DEVICE inline bf16 to_bf16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>((u >> 16) | 0x40)};
  return {static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
float f16_to_float(uint16_t h);
uint16_t float_to_f16(float x);          // round to nearest even, overflow to infinity
float f8_e4m3_to_float(uint8_t x);       // E4M3FN: bias 7, no infinity, 0x7f and 0xff are NaN
float f8_e5m2_to_float(uint8_t x);

// n elements of `src` (type `from`, any alignment) to fp32. Types: F8_E4M3, F8_E5M2, F16, BF16, F32, F64.
void convert_to_f32(float* dst, const void* src, DType from, int64_t n);
// n floats to `to` (BF16, F16, F32).
void convert_from_f32(void* dst, DType to, const float* src, int64_t n);

}  // namespace megaslide
