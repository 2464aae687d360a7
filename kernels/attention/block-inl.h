// The three products of attention on a block of 16 queries. Scores are kept transposed, [key][query], so that softmax
// runs down the keys with one query a lane, and every product reads one operand by broadcast and needs no shuffles.
// Included once a target, like kernels/simd-inl.h.
#if defined(MEGASLIDE_ATTENTION_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGASLIDE_ATTENTION_BLOCK_INL_H_
#undef MEGASLIDE_ATTENTION_BLOCK_INL_H_
#else
#define MEGASLIDE_ATTENTION_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {

constexpr int64_t kBlock = 16;  // queries of a block, whatever the vector length
using BlockTag = hn::CappedTag<float, kBlock>;
using BlockVec = hn::Vec<BlockTag>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(BlockTag()));
constexpr int kVecs = static_cast<int>(kBlock) / kLanes;  // vectors of a block
// Rows of a register tile: 16 accumulators with 32 registers, 8 with 16.
constexpr int kTileRows = std::max((kLanes == 16 ? 16 : 8) / kVecs, 1);

// out[i][16] = Σ_c rows[i·ld + c] · cols[c][16] for kRows rows; added to what is there when kAdd.
template <int kRows>
HWY_INLINE void DotTile(float* HWY_RESTRICT out, const float* HWY_RESTRICT rows, int64_t ld,
                        const float* HWY_RESTRICT cols, int64_t n) {
  const BlockTag d;
  BlockVec acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) acc[i][v] = hn::Zero(d);
  for (int64_t c = 0; c < n; ++c) {
    BlockVec col[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) col[v] = hn::Load(d, cols + c * kBlock + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto r = hn::Set(d, rows[i * ld + c]);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) acc[i][v] = hn::MulAdd(r, col[v], acc[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) hn::Store(acc[i][v], d, out + i * kBlock + v * kLanes);
}

// st[m][16] = Σ_c k[m·ld + c] · qt[c][16]: scores of `keys` keys against the block.
inline HWY_NOINLINE void DotKeys(float* HWY_RESTRICT st, const float* HWY_RESTRICT k, int64_t ld, int64_t keys,
                        const float* HWY_RESTRICT qt, int64_t d) {
  int64_t m = 0;
  for (; m + kTileRows <= keys; m += kTileRows) DotTile<kTileRows>(st + m * kBlock, k + m * ld, ld, qt, d);
  for (; m + 2 <= keys; m += 2) DotTile<2>(st + m * kBlock, k + m * ld, ld, qt, d);
  for (; m < keys; ++m) DotTile<1>(st + m * kBlock, k + m * ld, ld, qt, d);
}

template <int kRows>
HWY_INLINE void WeighTile(float* HWY_RESTRICT ot, const float* HWY_RESTRICT v, int64_t ld, int64_t keys,
                          const float* HWY_RESTRICT pt) {
  const BlockTag d;
  BlockVec acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) acc[i][j] = hn::Load(d, ot + i * kBlock + j * kLanes);
  for (int64_t m = 0; m < keys; ++m) {
    BlockVec p[kVecs];
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) p[j] = hn::Load(d, pt + m * kBlock + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto r = hn::Set(d, v[m * ld + i]);
#pragma GCC unroll 16
      for (int j = 0; j < kVecs; ++j) acc[i][j] = hn::MulAdd(r, p[j], acc[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) hn::Store(acc[i][j], d, ot + i * kBlock + j * kLanes);
}

// ot[c][16] += Σ_m v[m·ld + c] · pt[m][16]: weighted sum of the keys' rows.
inline HWY_NOINLINE void WeighRows(float* HWY_RESTRICT ot, const float* HWY_RESTRICT v, int64_t ld, int64_t keys,
                          const float* HWY_RESTRICT pt, int64_t d) {
  int64_t c = 0;
  for (; c + kTileRows <= d; c += kTileRows) WeighTile<kTileRows>(ot + c * kBlock, v + c, ld, keys, pt);
  for (; c + 2 <= d; c += 2) WeighTile<2>(ot + c * kBlock, v + c, ld, keys, pt);
  for (; c < d; ++c) WeighTile<1>(ot + c * kBlock, v + c, ld, keys, pt);
}

template <int kKeys, class D>
HWY_INLINE void OuterTile(D d, float* HWY_RESTRICT dk, int64_t ld, const float* HWY_RESTRICT gt,
                          const float* HWY_RESTRICT q, int64_t ldq) {
  hn::Vec<D> acc[kKeys];
#pragma GCC unroll 16
  for (int i = 0; i < kKeys; ++i) acc[i] = hn::LoadU(d, dk + i * ld);
#pragma GCC unroll 4
  for (int64_t j = 0; j < kBlock; ++j) {
    const auto row = hn::LoadU(d, q + j * ldq);
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) acc[i] = hn::MulAdd(hn::Set(d, gt[i * kBlock + j]), row, acc[i]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kKeys; ++i) hn::StoreU(acc[i], d, dk + i * ld);
}

template <class D>
HWY_INLINE void OuterColumn(D d, float* HWY_RESTRICT dk, int64_t ld, int64_t keys, const float* HWY_RESTRICT gt,
                            const float* HWY_RESTRICT q, int64_t ldq) {
  constexpr int kKeys = 8;
  int64_t m = 0;
  for (; m + kKeys <= keys; m += kKeys) OuterTile<kKeys>(d, dk + m * ld, ld, gt + m * kBlock, q, ldq);
  for (; m < keys; ++m) OuterTile<1>(d, dk + m * ld, ld, gt + m * kBlock, q, ldq);
}

// dk[m·ld + c] += Σ_q gt[m][q] · q[q·ldq + c]: what the block's queries give to the keys.
inline HWY_NOINLINE void AddOuter(float* HWY_RESTRICT dk, int64_t ld, int64_t keys, const float* HWY_RESTRICT gt,
                         const float* HWY_RESTRICT q, int64_t ldq, int64_t n) {
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) OuterColumn(BlockTag(), dk + c, ld, keys, gt, q + c, ldq);
  for (; c + 4 <= n; c += 4) OuterColumn(hn::CappedTag<float, 4>(), dk + c, ld, keys, gt, q + c, ldq);
  for (; c < n; ++c) OuterColumn(TailTag(), dk + c, ld, keys, gt, q + c, ldq);
}

// n fp32 values from either element type.
template <class T>
HWY_INLINE void Widen(float* HWY_RESTRICT dst, const T* HWY_RESTRICT src, int64_t n) {
  ForEach(n, [&](auto d, int64_t i) { hn::StoreU(LoadFloat(d, src + i), d, dst + i); });
}

HWY_INLINE void Fill0(float* p, int64_t n) { std::fill(p, p + n, 0.0f); }

// exp(x), and NaN where x is NaN (Highway's answers 0).
template <class D>
HWY_INLINE hn::Vec<D> ExpKeepNan(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();
#endif  // MEGASLIDE_ATTENTION_BLOCK_INL_H_
