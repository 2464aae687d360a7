// The bf16 sums of a piece by AVX512-BF16: as the fp32 path of conv3d.cpu.cc, two input channels at a time. Weights lie
// as for AMX: pairs of channels of a panel are 64 bytes.
#include "kernels/conv3d/pieces.h"

#if MEGASLIDE_TILE
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#define MS_DOT __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace megaslide::conv3d {
namespace {

constexpr int kCells = 14;      // times two panels: 28 of the 32 registers
constexpr int64_t kRun = 2304;  // elements whose weights stay in the second-level cache
constexpr int64_t kPair = 2 * kConvPanel;

template <int kM, int kP>
MS_DOT void product(const bf16* a, int64_t cell, const bf16* b, int64_t panel, int64_t pairs, float* sums, bool first) {
  __m512 acc[kM][kP];
#pragma GCC unroll 16
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < kP; ++n) acc[m][n] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + m * kBlock + n * 16);
  for (int64_t k = 0; k < pairs; ++k, a += 2, b += kPair) {
    __m512i w[kP];
#pragma GCC unroll 16
    for (int n = 0; n < kP; ++n) w[n] = _mm512_loadu_si512(b + n * panel);
#pragma GCC unroll 16
    for (int m = 0; m < kM; ++m) {
      int pair;
      std::memcpy(&pair, a + m * cell, sizeof pair);
      const __m512i x = _mm512_set1_epi32(pair);
#pragma GCC unroll 16
      for (int n = 0; n < kP; ++n)
        acc[m][n] = _mm512_dpbf16_ps(acc[m][n], reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w[n]));
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < kP; ++n) _mm512_storeu_ps(sums + m * kBlock + n * 16, acc[m][n]);
}

using Product = void (*)(const bf16*, int64_t, const bf16*, int64_t, int64_t, float*, bool);
template <int kP, size_t... kI>
constexpr std::array<Product, sizeof...(kI)> table(std::index_sequence<kI...>) {
  return {&product<static_cast<int>(kI) + 1, kP>...};
}
constexpr auto kOnePanel = table<1>(std::make_index_sequence<kCells>());
constexpr auto kTwoPanels = table<2>(std::make_index_sequence<kCells>());

}  // namespace

void dot_piece(const Piece<bf16>& p) {
  const auto* weights = static_cast<const bf16*>(p.packed);
  const int64_t panel = p.run * kConvPanel, parts = (p.columns + kCells - 1) / kCells;
  for (int64_t n = 0; n < p.panels; n += 2) {
    const Product* products = n + 1 < p.panels ? kTwoPanels.data() : kOnePanel.data();
    bool first = true;
    for (int64_t r = 0; r < p.kt * p.kh; ++r) {
      if (!p.frames[r / p.kh]) continue;
      for (int64_t k = 0; k < p.run; k += kRun, first = false) {
        const bf16* b = weights + (r * p.panels + n) * panel + k * kConvPanel;
        const int64_t pairs = std::min(kRun, p.run - k) / 2;
        for (int64_t i = 0; i < p.rows * parts; ++i) {
          const int64_t y = i / parts, begin = p.columns * (i % parts) / parts,
                        end = p.columns * (i % parts + 1) / parts;
          products[end - begin - 1](
              p.frames[r / p.kh] + r % p.kh * p.row + k + y * p.result_row + begin * p.result_cell, p.result_cell, b,
              panel, pairs, p.sums + n / 2 * p.block_elements() + (y * p.pitch + begin) * kBlock, first);
        }
      }
    }
  }
}

}  // namespace megaslide::conv3d

#else
#include "base/error.h"
namespace megaslide::conv3d {
void dot_piece(const Piece<bf16>&) { MS_CHECK(false, "no AVX512-BF16 in this build"); }
}  // namespace megaslide::conv3d
#endif
