#include "io/nonfinite.h"

#include <algorithm>
#include <cstring>

namespace megaslide {

template <class Bits>
void NonFiniteScan::scan(std::span<const std::byte> piece, Bits exponent, Bits fraction) {
  constexpr size_t kBlock = 4096 / sizeof(Bits);
  Bits block[kBlock];
  const size_t n = piece.size() / sizeof(Bits);
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t count = std::min(kBlock, n - at);
    std::memcpy(block, piece.data() + at * sizeof(Bits), count * sizeof(Bits));
    unsigned any = 0;
    for (size_t i = 0; i < count; ++i) any |= (block[i] & exponent) == exponent;
    if (!any) continue;
    for (size_t i = 0; i < count; ++i) {
      if ((block[i] & exponent) != exponent) continue;
      (block[i] & fraction ? nans_ : infinities_) += 1;
      if (first_ < 0) first_ = seen_ + static_cast<int64_t>(at + i);
    }
  }
  seen_ += static_cast<int64_t>(n);
}

void NonFiniteScan::add(std::span<const std::byte> piece) {
  switch (dtype_) {
    case DType::kF64: return scan<uint64_t>(piece, 0x7ffull << 52, (uint64_t{1} << 52) - 1);
    case DType::kF32: return scan<uint32_t>(piece, 0x7f800000u, 0x7fffffu);
    case DType::kBF16: return scan<uint16_t>(piece, 0x7f80, 0x7f);
    case DType::kF16: return scan<uint16_t>(piece, 0x7c00, 0x3ff);
    case DType::kF8_E5M2: return scan<uint8_t>(piece, 0x7c, 0x03);
    case DType::kF8_E4M3: return scan<uint8_t>(piece, 0x7f, 0x7f);  // all ones: its only NaN
    default: return;
  }
}

}  // namespace megaslide
