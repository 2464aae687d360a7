#include "base/checksum.h"

#include <bit>
#include <cstring>

namespace megaslide {
namespace {

// The fractional parts of √2, √3, √5 and √7, made odd.
constexpr uint64_t kFactors[4] = {0x6A09E667F3BCC909, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1};

constexpr uint64_t kWordFactor = 0x510E527FADE682D1;  // the same of √11

uint64_t step(uint64_t lane, uint64_t word, uint64_t factor) {
  const uint64_t x = word * kWordFactor;
  return std::rotl(lane ^ x ^ (x >> 32), 29) * factor;
}

uint64_t word_at(const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

}  // namespace

uint64_t checksum64(std::span<const std::byte> bytes) {
  uint64_t lane[4] = {kFactors[0], kFactors[1], kFactors[2], kFactors[3]};
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  for (; left >= 32; p += 32, left -= 32)
    for (size_t k = 0; k < 4; ++k) lane[k] = step(lane[k], word_at(p + 8 * k), kFactors[k]);
  for (size_t k = 0; left > 0; ++k) {
    std::byte last[8] = {};
    const size_t n = left < 8 ? left : 8;
    std::memcpy(last, p, n);
    lane[k] = step(lane[k], word_at(last), kFactors[k]);
    p += n, left -= n;
  }
  uint64_t sum = static_cast<uint64_t>(bytes.size());
  for (size_t k = 0; k < 4; ++k) {
    sum = step(sum, lane[k], kFactors[k]);
    sum ^= sum >> 32;
  }
  return sum;
}

}  // namespace megaslide
