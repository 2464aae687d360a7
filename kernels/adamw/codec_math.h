// One element, and one block, of the state codecs: what every instruction set must reproduce. Formulas are in adamw.h.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/philox.h"
#include "kernels/adamw/adamw.h"

namespace megaslide::adamw {

inline float canonical(float x) { return x == x ? x : std::bit_cast<float>(0x7fc00000U); }
inline uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffU; }

// Element e's sixteen random bits: half e mod 2 of word e mod 8 / 2 of draw e / 8.
inline uint16_t rounding_bits(const AdamWStep& step, RandomPurpose purpose, uint64_t e) {
  const auto words = Random(step.seed, purpose).bits(static_cast<uint64_t>(step.step), e / 8);
  return static_cast<uint16_t>(words[e % 8 / 2] >> (16 * (e % 2)));
}

// Of int8: byte e mod 16 of draw e / 16, for m as it is and for v with its halves exchanged.
inline uint8_t rounding_byte(const AdamWStep& step, RandomPurpose purpose, uint64_t e) {
  const auto words = Random(step.seed, purpose).bits(static_cast<uint64_t>(step.step), e / 16);
  return static_cast<uint8_t>(words[e % 16 / 4] >> (8 * (e % 4)));
}
inline uint8_t exchange_halves(uint8_t x) { return static_cast<uint8_t>(x << 4 | x >> 4); }

// Up with the probability of the part cut off. A finite value beyond the largest bf16 may become infinite, as with
// rounding to nearest.
inline bf16 round_stochastic(float x, uint16_t random) {
  const auto u = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((magnitude_bits(x) < 0x7f800000U ? u + random : u) >> 16)};
}

// int8. The level of a value is √z, z = 127²·|m|/scale or 255²·√v/scale. It is made of additions and multiplications
// alone, so that all instruction sets agree and none waits for the divider: y ≈ 1/√z within 3.5% from the exponent, then
// √z = z·y·P(z·y·y), P the cubic minimax polynomial of u^(−1/2) over the u that occur: relative error below 7.6e-7. z = 0
// gives 0.
inline constexpr float kLevelRoot[4] = {2.189360533155384F, -2.1918042734033345F, 1.3155250665924394F,
                                        -0.31308207250733444F};
inline constexpr uint32_t kLevelRootBits = 0x5f3759dfU;
// Not below these, so that every level of m and the square of every level of √v is a normal number, and that the
// reciprocals are finite.
inline constexpr float kSmallestMScale = 0x1p-100F, kSmallestVScale = 0x1p-46F;
// In [2^15, 2^16) fp32 counts in 256ths, in [2^23, 2^24) in whole numbers: added to a level, their low bits are the
// level's. With the half again, levels may be negative.
inline constexpr float kByteGrid = 0x1p15F, kWholeGrid = 0x1p23F, kSignedByteGrid = 0x1.8p15F, kSignedWholeGrid = 0x1.8p23F;

// sqrt(|z|) with z's sign, plus `grid` with one rounding.
inline uint32_t level_on_grid(float z, float grid) {
  const float size = std::abs(z);
  const float y = std::bit_cast<float>(kLevelRootBits - (std::bit_cast<uint32_t>(size) >> 1));
  const float root = size * y, u = root * y;
  float polynomial = std::fma(kLevelRoot[3], u, kLevelRoot[2]);
  polynomial = std::fma(polynomial, u, kLevelRoot[1]);
  polynomial = std::fma(polynomial, u, kLevelRoot[0]);
  return std::bit_cast<uint32_t>(std::fma(std::copysign(root, z), polynomial, grid));
}

// The scale of a block, from the largest magnitude_bits() of its values; NaN if one of them is not finite.
inline float scale_of(uint32_t largest, float smallest) {
  if (largest >= 0x7f800000U) return std::bit_cast<float>(0x7fc00000U);
  return largest == 0 ? 0 : std::fmax(std::bit_cast<float>(largest), smallest);
}
// z of a value of 1; 0 for blocks of zeros, and where the scale is NaN and nothing is asked of the levels.
inline float level_factor(float scale, float levels) { return scale > 0 ? levels * levels / scale : 0; }

inline int8_t m_level(float m, float factor) {
  return static_cast<int8_t>(level_on_grid(m * factor, kSignedWholeGrid) & 0xffU);
}
inline int8_t m_level(float m, float factor, uint8_t random) {
  return static_cast<int8_t>((level_on_grid(m * factor, kSignedByteGrid) + random) >> 8 & 0xffU);
}
// `root` = sqrt(v); at least 1 unless that is 0.
inline uint8_t v_level(float root, float factor) {
  const uint32_t q = level_on_grid(root * factor, kWholeGrid) & 0xffU;
  return static_cast<uint8_t>(root > 0 && q == 0 ? 1 : q);
}
inline uint8_t v_level(float root, float factor, uint8_t random) {
  const uint32_t q = (level_on_grid(root * factor, kByteGrid) + random) >> 8 & 0xffU;
  return static_cast<uint8_t>(root > 0 && q == 0 ? 1 : q);
}

}  // namespace megaslide::adamw
