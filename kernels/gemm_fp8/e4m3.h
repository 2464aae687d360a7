// E4M3 (bias 7, no infinity, NaN 0x7f and 0xff) in host and device code.
#pragma once
#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace megaslide {

constexpr float kE4m3Max = 448;

// To nearest, ties to even; what is larger becomes ±448, an infinity too.
MS_HOST_DEVICE inline uint8_t to_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 24 & 0x80, u = bits & 0x7fffffff;
  uint32_t code;
  if (u > 0x7f800000)
    code = 0x7f;
  else if (u >= std::bit_cast<uint32_t>(kE4m3Max))
    code = 0x7e;
  else if (u < std::bit_cast<uint32_t>(0x1p-6f))  // a multiple of 2^-9: the sum's last bits are the code
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(u) * 512.0f + 0x1p23f) & 0xf;
  else
    code = ((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3);
  return static_cast<uint8_t>(sign | code);
}

MS_HOST_DEVICE inline float from_e4m3(uint8_t code) {
  const uint32_t sign = uint32_t{code} >> 7 << 31, exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000);
  const uint32_t magnitude =
      exponent == 0 ? std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-9f) : (exponent + 120) << 23 | mantissa << 20;
  return std::bit_cast<float>(sign | magnitude);
}

// Of a tensor whose largest magnitude is `amax`: codes are those of x·inverse, and stand for code·scale. Zeros have scale
// 1. Never below the least normal number, whose inverse is finite; that of an infinite amax is 0, which makes the infinity
// itself a NaN.
struct Fp8Scale {
  float scale, inverse;
};
MS_HOST_DEVICE inline Fp8Scale fp8_scale(float amax) {
  float scale = amax / kE4m3Max;
  if (amax == 0) scale = 1;
  if (scale < 0x1p-126f) scale = 0x1p-126f;
  return {scale, 1.0f / scale};
}

}  // namespace megaslide
