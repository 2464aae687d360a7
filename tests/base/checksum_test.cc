#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace megaslide {
namespace {

std::vector<std::byte> some_bytes(size_t n) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 167 + (i >> 8) * 31 + 5);
  return bytes;
}

TEST(Checksum, EveryBitOfEveryPlaceCounts) {
  for (const size_t n : {1u, 7u, 8u, 9u, 31u, 32u, 33u, 100u}) {
    auto bytes = some_bytes(n);
    std::set<uint64_t> seen{checksum64(bytes)};
    for (size_t i = 0; i < n; ++i)
      for (int bit = 0; bit < 8; ++bit) {
        bytes[i] ^= static_cast<std::byte>(1 << bit);
        EXPECT_TRUE(seen.insert(checksum64(bytes)).second) << n << " bytes, bit " << bit << " of byte " << i;
        bytes[i] ^= static_cast<std::byte>(1 << bit);
      }
  }
}

TEST(Checksum, LengthAndOrderCount) {
  const std::vector<std::byte> zeros(4096);
  std::set<uint64_t> seen;
  for (size_t n = 0; n <= 100; ++n) EXPECT_TRUE(seen.insert(checksum64({zeros.data(), n})).second) << n;
  // Two blocks of a sector, exchanged: what a disk that puts data into the wrong place gives.
  auto bytes = some_bytes(1024);
  const uint64_t before = checksum64(bytes);
  std::swap_ranges(bytes.begin(), bytes.begin() + 512, bytes.begin() + 512);
  EXPECT_NE(checksum64(bytes), before);
}

}  // namespace
}  // namespace megaslide
