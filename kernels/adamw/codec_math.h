// One element, and one block, of the state codecs: what every instruction set must reproduce. Formulas are in adamw.h.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/philox.h"
#include "kernels/adamw/adamw.h"

namespace megaslide::adamw {

MS_HOST_DEVICE inline float canonical(float x) { return x == x ? x : std::bit_cast<float>(0x7fc00000U); }
MS_HOST_DEVICE inline uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffU; }

// Element e's sixteen random bits: half e mod 2 of word e mod 8 / 2 of draw e / 8.
MS_HOST_DEVICE inline uint16_t rounding_bits(const AdamWStep& step, RandomPurpose purpose, uint64_t e) {
  const auto words = Random(step.seed, purpose).bits(static_cast<uint64_t>(step.step), e / 8);
  return static_cast<uint16_t>(words[e % 8 / 2] >> (16 * (e % 2)));
}

// Up with the probability of the part cut off. A finite value beyond the largest bf16 may become infinite, as with
// rounding to nearest.
MS_HOST_DEVICE inline bf16 round_stochastic(float x, uint16_t random) {
  const auto u = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((magnitude_bits(x) < 0x7f800000U ? u + random : u) >> 16)};
}

// int8. The level of a value is √z, z = 127²·|m|/scale or 255²·√v/scale. For v it is IEEE's root: v is encoded again in
// every step, and an error of its level, four times over, adds up to 1/(1−β2) times itself. m forgets faster; its root
// is made of additions and multiplications alone, which run beside the divider: y ≈ 1/√z within 3.5% from the exponent,
// then √z = z·y·P(z·y·y), P the quadratic minimax polynomial of u^(−1/2) over the u that occur: relative error below
// 2.6e-5.
inline constexpr float kLevelRoot[3] = {1.8766221590567473F, -1.2521481820640348F, 0.3755262081791989F};
inline constexpr uint32_t kLevelRootBits = 0x5f3759dfU;
// z of the block's largest value: 127² with what makes that root come out as 127, and 255².
inline constexpr float kMTop = 16129.65F, kVTop = 65025;
// Not below these, so that every level of m and the square of every level of √v is a normal number, and that the
// reciprocals are finite.
inline constexpr float kSmallestMScale = 0x1p-100F, kSmallestVScale = 0x1p-46F;
// Added to a level, 2^(23−k) leaves it in the lower bits in units of 2^−k, and one and a half times that a negative one
// too. Random bits are added to k = 8 bits of fraction of m's levels, 12 of v's: of a level q of v the 2^−12 part must
// follow what a step takes from it, q·(1−β2)/4. 0 is for rounding to nearest.
inline constexpr int kMFraction = 8, kVFraction = 12;
constexpr float grid(int fraction, bool is_signed) {
  return static_cast<float>(1 << (23 - fraction)) * (is_signed ? 1.5F : 1.0F);
}

// sqrt(|z|) with z's sign, plus `on` with one rounding.
MS_HOST_DEVICE inline uint32_t m_level_on(float on, float z) {
  const float size = std::abs(z);
  const float y = std::bit_cast<float>(kLevelRootBits - (std::bit_cast<uint32_t>(size) >> 1));
  const float root = size * y, u = root * y;
  const float polynomial = std::fma(std::fma(kLevelRoot[2], u, kLevelRoot[1]), u, kLevelRoot[0]);
  return std::bit_cast<uint32_t>(std::fma(std::copysign(root, z), polynomial, on));
}
MS_HOST_DEVICE inline uint32_t v_level_on(float on, float z) { return std::bit_cast<uint32_t>(std::sqrt(z) + on); }

// The scale of a block, from the largest magnitude_bits() of its values; NaN if one of them is not finite.
MS_HOST_DEVICE inline float scale_of(uint32_t largest, float smallest) {
  if (largest >= 0x7f800000U) return std::bit_cast<float>(0x7fc00000U);
  return largest == 0 ? 0 : std::max(std::bit_cast<float>(largest), smallest);
}
// z of a value of 1; 0 for blocks of zeros, and where the scale is NaN and nothing is asked of the levels.
MS_HOST_DEVICE inline float level_factor(float scale, float top) { return scale > 0 ? top / scale : 0; }

MS_HOST_DEVICE inline int8_t m_level(float m, float factor) {
  return static_cast<int8_t>(m_level_on(grid(0, true), m * factor) & 0xffU);
}
MS_HOST_DEVICE inline int8_t m_level(float m, float factor, uint16_t random) {
  const uint32_t lower = random & 0xffU;
  return static_cast<int8_t>((m_level_on(grid(kMFraction, true), m * factor) + lower) >> kMFraction & 0xffU);
}
// `root` = sqrt(v); at least 1 unless that is 0.
MS_HOST_DEVICE inline uint8_t v_level(float root, float factor) {
  const uint32_t q = v_level_on(grid(0, false), root * factor) & 0xffU;
  return static_cast<uint8_t>(root > 0 && q == 0 ? 1 : q);
}
MS_HOST_DEVICE inline uint8_t v_level(float root, float factor, uint16_t random) {
  const uint32_t upper = random >> (16 - kVFraction);
  const uint32_t q = (v_level_on(grid(kVFraction, false), root * factor) + upper) >> kVFraction & 0xffU;
  return static_cast<uint8_t>(root > 0 && q == 0 ? 1 : q);
}

}  // namespace megaslide::adamw
