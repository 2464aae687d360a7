// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a counter-based generator.
// A random number is a pure function of (seed, purpose, counter), whatever the thread or the order.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace megaslide {

MS_HOST_DEVICE inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Streams of random numbers that never meet.
enum class RandomPurpose : uint32_t { kInit = 1, kNoise, kSigma, kDropout, kShuffle, kRounding, kSample, kTest, kMomentRounding, kVarianceRounding };

__extension__ typedef unsigned __int128 Uint128;

class Random {
 public:
  MS_HOST_DEVICE Random(uint64_t seed, RandomPurpose purpose) : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, purpose_(purpose) {}

  // Four 32-bit words for draw number `index` of series `series` (a step, a parameter tensor, a sample …).
  MS_HOST_DEVICE std::array<uint32_t, 4> bits(uint64_t series, uint64_t index) const {
    return philox4x32(key_, {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32) ^ (static_cast<uint32_t>(purpose_) << 24),
                             static_cast<uint32_t>(series), static_cast<uint32_t>(series >> 32)});
  }
  // Uniform in (0, 1), never 0 or 1.
  static double to_unit(uint32_t word) { return (word + 0.5) * 0x1p-32; }
  double uniform(uint64_t series, uint64_t index) const { return to_unit(bits(series, index)[0]); }
  // Standard normal by Box-Muller; one value a draw.
  double normal(uint64_t series, uint64_t index) const {
    const auto w = bits(series, index);
    return std::sqrt(-2 * std::log(to_unit(w[0]))) * std::cos(6.283185307179586 * to_unit(w[1]));
  }
  // Uniform integer in [0, n).
  uint64_t below(uint64_t series, uint64_t index, uint64_t n) const {
    const auto w = bits(series, index);
    return static_cast<uint64_t>((static_cast<Uint128>(uint64_t{w[0]} << 32 | w[1]) * n) >> 64);
  }

 private:
  std::array<uint32_t, 2> key_;
  RandomPurpose purpose_;
};

}  // namespace megaslide
