// Tiles of bf16 in shared memory and the fragments that mma takes from them. A warp has 16 rows of a product.
#pragma once
#include <cstdint>

#include "kernels/device.h"

namespace megaslide {

// Rows of D channels. They lie 16 bytes more than D apart, so that ldmatrix meets no bank twice.
template <int R, int D>
struct MmaTile {
  static constexpr int kRows = R, kChannels = D, kStride = D + 8;
  bf16 at[R][kStride];
};

// Queues copies of R rows by kMmaThreads threads, of which this is number `thread`. at(r) is where row r starts in `from`,
// or −1; such rows, and channels from `channels` on, become 0. kVector: rows can be copied 16 bytes at a time.
constexpr int kMmaThreads = 128;
template <bool kVector, int R, int D, class At>
__device__ __forceinline__ void load_rows(MmaTile<R, D>& to, const void* from, int channels, const At& at,
                                          int thread = static_cast<int>(threadIdx.x)) {
  for (int i = thread; i < R * D / 8; i += kMmaThreads) {
    const int r = i / (D / 8), c = i % (D / 8) * 8;
    const int64_t start = at(r);
    const bf16* p = static_cast<const bf16*>(from) + (start < 0 ? 0 : start) + c;
    if (kVector && start >= 0 && c < channels) {
      prim::cp_async_16(&to.at[r][c], p);
      continue;
    }
    for (int j = 0; j < 8; ++j) to.at[r][c + j] = start >= 0 && c + j < channels ? p[j] : bf16{0};
  }
}

// Rows [row0, row0 + 16) and channels [c0, c0 + 16) of a tile as the left operand.
template <int R, int D>
__device__ __forceinline__ void left_fragment(uint32_t (&a)[4], const MmaTile<R, D>& t, int row0, int c0) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  prim::ldmatrix_x4(a, &t.at[row0 + lane % 16][c0 + lane / 16 * 8]);
}

// The right operands of two neighbouring products: out columns are the tile's rows [row0, row0 + 16), summed over its
// channels [c0, c0 + 16).
template <int R, int D>
__device__ __forceinline__ void right_by_rows(uint32_t (&b0)[2], uint32_t (&b1)[2], const MmaTile<R, D>& t, int row0, int c0) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t b[4];
  prim::ldmatrix_x4(b, &t.at[row0 + lane % 8 + lane / 16 * 8][c0 + lane / 8 % 2 * 8]);
  b0[0] = b[0], b0[1] = b[1], b1[0] = b[2], b1[1] = b[3];
}

// The same with out columns the tile's channels [c0, c0 + 16), summed over its rows [row0, row0 + 16).
template <int R, int D>
__device__ __forceinline__ void right_by_channels(uint32_t (&b0)[2], uint32_t (&b1)[2], const MmaTile<R, D>& t, int row0, int c0) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t b[4];
  prim::ldmatrix_x4_trans(b, &t.at[row0 + lane % 16][c0 + lane / 16 * 8]);
  b0[0] = b[0], b0[1] = b[1], b1[0] = b[2], b1[1] = b[3];
}

// s += rows [row0, row0 + 16) of `left` · rows of `right`, over all channels. s[n] covers 8 rows of `right`.
template <int NT, int R1, int R2, int D>
__device__ __forceinline__ void multiply_rows(float (&s)[NT][4], const MmaTile<R1, D>& left, int row0, const MmaTile<R2, D>& right) {
  for (int c = 0; c < D; c += 16) {
    uint32_t a[4];
    left_fragment(a, left, row0, c);
    for (int n = 0; n < NT; n += 2) {
      uint32_t b0[2], b1[2];
      right_by_rows(b0, b1, right, n * 8, c);
      prim::mma_m16n8k16_bf16(s[n], a, b0);
      prim::mma_m16n8k16_bf16(s[n + 1], a, b1);
    }
  }
}

// o += w · rows of `right`, w (16 × 8·NT) a product of before, rounded to bf16.
template <int NT, int CT, int R, int D>
__device__ __forceinline__ void multiply_weights(float (&o)[CT][4], const float (&w)[NT][4], const MmaTile<R, D>& right) {
  static_assert(CT * 8 == D && NT * 8 == R);
  for (int n = 0; n < NT; n += 2) {
    const uint32_t a[4] = {prim::pack_bf16(w[n][0], w[n][1]), prim::pack_bf16(w[n][2], w[n][3]),
                           prim::pack_bf16(w[n + 1][0], w[n + 1][1]), prim::pack_bf16(w[n + 1][2], w[n + 1][3])};
    for (int c = 0; c < CT; c += 2) {
      uint32_t b0[2], b1[2];
      right_by_channels(b0, b1, right, n * 8, c * 8);
      prim::mma_m16n8k16_bf16(o[c], a, b0);
      prim::mma_m16n8k16_bf16(o[c + 1], a, b1);
    }
  }
}

// Element i of a product's fragment n lies in row fragment_row(i) of the warp's 16 and column n·8 + fragment_column(i).
__device__ __forceinline__ int fragment_row(int i) { return static_cast<int>(threadIdx.x % 32) / 4 + i / 2 * 8; }
__device__ __forceinline__ int fragment_column(int i) { return static_cast<int>(threadIdx.x % 4) * 2 + i % 2; }

// Over the four lanes that share a row of a product.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(prim::kFullMask, x, 1));
  return fmaxf(x, __shfl_xor_sync(prim::kFullMask, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(prim::kFullMask, x, 1);
  return x + __shfl_xor_sync(prim::kFullMask, x, 2);
}

}  // namespace megaslide
