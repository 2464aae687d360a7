// fp32 numbers as sums of three bf16 ones: what products of fp32 operands on a tile unit are made of (gemm/split_linear.h has the error).
// Included by translation units for these units alone, as tile-inl.h is.
#pragma once
#include "kernels/tile/tile-inl.h"

namespace megaslide {
namespace {

inline constexpr int64_t kParts = 3;

// The parts of 32 numbers, each 32 bf16 numbers.
struct Parts {
  __m512i part[kParts];
};
inline Parts parts_of(__m512 low, __m512 high) {
  Parts p;
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) {
    const __m256i l = narrow16(low), h = narrow16(high);
    p.part[i] = _mm512_inserti64x4(_mm512_castsi256_si512(l), h, 1);
    low = _mm512_sub_ps(low, widen16(l));
    high = _mm512_sub_ps(high, widen16(h));
  }
  return p;
}

// The first `count` numbers, zeros behind.
inline __m512 load_floats(const float* p, int64_t count) {
  return count >= 16 ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(count <= 0 ? 0 : static_cast<__mmask16>(0xffff >> (16 - count)), p);
}
inline Parts load_parts(const float* p, int64_t count) { return parts_of(load_floats(p, count), load_floats(p + 16, count - 16)); }

}  // namespace
}  // namespace megaslide
