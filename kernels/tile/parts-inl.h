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
// Numbers 0 … 15 of 32 in fp32, or 16 … 31: their bits above zeros.
inline __m512 widen_first(__m512i bf16) {
  const __m512i places = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, places, bf16));
}
inline __m512 widen_second(__m512i bf16) {
  const __m512i places =
      _mm512_set_epi16(31, 0, 30, 0, 29, 0, 28, 0, 27, 0, 26, 0, 25, 0, 24, 0, 23, 0, 22, 0, 21, 0, 20, 0, 19, 0, 18, 0, 17, 0, 16, 0);
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, places, bf16));
}
inline Parts parts_of(__m512 first, __m512 second) {
  Parts p;
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) {
    p.part[i] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    first = _mm512_sub_ps(first, widen_first(p.part[i]));
    second = _mm512_sub_ps(second, widen_second(p.part[i]));
  }
  return p;
}

// The first `count` numbers, zeros behind.
inline __m512 load_floats(const float* p, int64_t count) {
  return count >= 16 ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(count <= 0 ? 0 : static_cast<__mmask16>(0xffff >> (16 - count)), p);
}
inline Parts load_parts(const float* p, int64_t count) { return parts_of(load_floats(p, count), load_floats(p + 16, count - 16)); }

// Sums in tiles 0 to 3, rows of A in 4 and 5, of B in 6 and 7: the products of all, or without kLower of 4 alone.
template <bool kLower>
inline void multiply() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kLower) {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

}  // namespace
}  // namespace megaslide
