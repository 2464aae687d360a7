// Passes over memory in device code, bf16 or fp32: a thread takes four consecutive elements (a quad) at a time, 8 or 16
// bytes at once where they lie so. Which way they are read changes no bit.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "kernels/device.h"

namespace megaslide {

struct Quad {
  float v[4] = {};
};

// x as the type behind the pointer keeps it.
__device__ __forceinline__ float rounded(float x, const float*) { return x; }
__device__ __forceinline__ float rounded(float x, const bf16*) { return prim::bits_to_float(prim::pack_bf16(x, 0) << 16); }

__device__ __forceinline__ void store_one(float* p, float x) { *p = x; }
__device__ __forceinline__ void store_one(bf16* p, float x) { p->bits = static_cast<uint16_t>(prim::pack_bf16(x, 0)); }

__device__ __forceinline__ Quad load_aligned_quad(const float* p) {
  const uint4 w = prim::load_16(p);
  return {{prim::bits_to_float(w.x), prim::bits_to_float(w.y), prim::bits_to_float(w.z), prim::bits_to_float(w.w)}};
}
__device__ __forceinline__ Quad load_aligned_quad(const bf16* p) {
  const uint2 w = prim::load_8(p);
  return {{prim::bits_to_float(w.x << 16), prim::bits_to_float(w.x & 0xffff0000u), prim::bits_to_float(w.y << 16),
           prim::bits_to_float(w.y & 0xffff0000u)}};
}
__device__ __forceinline__ void store_aligned_quad(float* p, const Quad& q) {
  prim::store_16(p, {prim::float_to_bits(q.v[0]), prim::float_to_bits(q.v[1]), prim::float_to_bits(q.v[2]), prim::float_to_bits(q.v[3])});
}
__device__ __forceinline__ void store_aligned_quad(bf16* p, const Quad& q) {
  prim::store_8(p, {prim::pack_bf16(q.v[0], q.v[1]), prim::pack_bf16(q.v[2], q.v[3])});
}

// The first `left` elements from p on, the rest 0. aligned: p is, where all four are there.
template <class T>
__device__ __forceinline__ Quad load_quad(const T* p, int left, bool aligned) {
  if (aligned && left >= 4) return load_aligned_quad(p);
  Quad q;
  MS_UNROLL
  for (int i = 0; i < 4; ++i)
    if (i < left) q.v[i] = prim::widen(p[i]);
  return q;
}
template <class T>
__device__ __forceinline__ void store_quad(T* p, const Quad& q, int left, bool aligned) {
  if (aligned && left >= 4) {
    store_aligned_quad(p, q);
    return;
  }
  MS_UNROLL
  for (int i = 0; i < 4; ++i)
    if (i < left) store_one(p + i, q.v[i]);
}

// Whether quads of every row of `width` elements (a flat array: 4) are aligned in all of these; nullptr is.
template <class... P>
bool quads_aligned(int64_t width, const P*... pointers) {
  return width % 4 == 0 && ((reinterpret_cast<uintptr_t>(pointers) % (4 * sizeof(P)) == 0) && ...);
}

// f(pointer of the type `dtype` names).
template <class F>
void by_type(DType dtype, F f) {
  if (dtype == DType::kBF16)
    f(static_cast<bf16*>(nullptr));
  else
    f(static_cast<float*>(nullptr));
}

// ---- flat arrays: a thread a quad ----

constexpr int kFlatThreads = 256;
inline dim3 flat_grid(int64_t n) { return dim3(static_cast<unsigned>((n + 4 * kFlatThreads - 1) / (4 * kFlatThreads))); }
// This thread's quad: it begins at `at` and has `left` elements, fewer than 1 beyond the end.
struct FlatQuad {
  int64_t at;
  int left;
  __device__ explicit FlatQuad(int64_t n) : at(4 * (int64_t{blockIdx.x} * kFlatThreads + threadIdx.x)) {
    left = static_cast<int>(n - at < 4 ? n - at : 4);
  }
};

// ---- rows: a block a row, its columns in registers ----

// Blocks of up to Threads threads that take K quads of a row each, K the least of those listed that reaches its end.
template <int Threads, int... K>
struct RowBlocks {
  static constexpr int kThreads = Threads;
  static constexpr int64_t kMaxWidth = int64_t{4} * Threads * std::max({K...});
  int quads;
  dim3 threads;
  // Throws Error where rows are too wide.
  explicit RowBlocks(int64_t width) {
    if (width > kMaxWidth) throw Error(fmt::format("rows of {} channels: CUDA kernels take up to {}", width, kMaxWidth));
    const int64_t all = (width + 3) / 4;
    quads = std::min({(K * Threads >= all ? K : std::max({K...}))...});
    threads = dim3(static_cast<unsigned>(std::max<int64_t>(128, ((all + quads - 1) / quads + 31) / 32 * 32)));
  }
  // f(integral constant of `quads`).
  template <class F>
  void with_quads(F f) const {
    ((quads == K ? f(std::integral_constant<int, K>()) : void()), ...);
  }
};
// Forward, few threads with many columns each: a row takes fewer registers so, and more rows are under way at once.
// Backward, whose sums take three times as many, its threads.
using ForwardRows = RowBlocks<256, 1, 2, 3, 5, 8>;
using BackwardRows = RowBlocks<512, 1, 2, 3, 4>;
constexpr int kMaxWarps = BackwardRows::kThreads / 32;

// The first column of this thread's quad k.
__device__ __forceinline__ int quad_column(int k) { return 4 * (k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)); }

// Sums over the block, the same bits in every thread. Each has one barrier: the one before it was read by all threads
// when they come to the next one's, whose partial results lie elsewhere.
class BlockSums {
 public:
  static constexpr size_t kShared = 4 * kMaxWarps * sizeof(float);
  __device__ explicit BlockSums(float* part) : part_(part) {}
  __device__ __forceinline__ float of(float x) {
    float none = 0;
    return of(x, none, false);
  }
  // Both at once.
  __device__ __forceinline__ void of(float& x, float& y) { x = of(x, y, true); }

 private:
  __device__ __forceinline__ float of(float x, float& y, bool both) {
    const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
    float* part = part_ + turn_ * 2 * kMaxWarps;
    turn_ ^= 1;
    x = prim::warp_sum(x);
    if (both) y = prim::warp_sum(y);
    if (lane == 0) part[threadIdx.x / 32] = x;
    if (lane == 0 && both) part[kMaxWarps + threadIdx.x / 32] = y;
    __syncthreads();
    x = prim::warp_sum(lane < warps ? part[lane] : 0.0f);
    if (both) y = prim::warp_sum(lane < warps ? part[kMaxWarps + lane] : 0.0f);
    return x;
  }
  float* part_;
  unsigned turn_ = 0;
};

// Of this block's row of x: its quads, and the sum of their squares over the row.
template <int K>
struct RowQuads {
  Quad v[K];
  float square = 0;
  template <class T>
  __device__ __forceinline__ RowQuads(BlockSums& block, const T* row, int width, bool aligned) {
    MS_UNROLL
    for (int k = 0; k < K; ++k) {
      v[k] = load_quad(row + quad_column(k), width - quad_column(k), aligned);
      MS_UNROLL
      for (int i = 0; i < 4; ++i) square = fmaf(v[k].v[i], v[k].v[i], square);
    }
    square = block.of(square);
  }
};

// A row on its way to shared memory while the block works on the one before it. A thread fetches its own quads and alone
// reads them, so it takes no barrier: only cp_async_commit and cp_async_wait of the caller's.
template <int K, class T>
class RowAhead {
 public:
  static size_t shared(const BackwardRows& block) { return K * block.threads.x * 4 * sizeof(T); }
  // Takes its part of the memory.
  __device__ explicit RowAhead(unsigned char*& memory) : slots_(reinterpret_cast<T*>(memory) + 4 * threadIdx.x) {
    memory += K * blockDim.x * 4 * sizeof(T);
  }
  __device__ __forceinline__ void fetch(const T* row, int width, bool aligned) const {
    MS_UNROLL
    for (int k = 0; k < K; ++k) {
      const int left = width - quad_column(k);
      if (!aligned || left < 4)
        store_aligned_quad(slot(k), load_quad(row + quad_column(k), left, false));
      else if constexpr (sizeof(T) == 4)
        prim::cp_async_16(slot(k), row + quad_column(k));
      else
        prim::cp_async_8(slot(k), row + quad_column(k));
    }
  }
  __device__ __forceinline__ Quad quad(int k) const { return load_aligned_quad(slot(k)); }
  __device__ __forceinline__ void put(int k, const Quad& q) const { store_aligned_quad(slot(k), q); }
  __device__ __forceinline__ void swap(RowAhead& other) {
    T* const own = slots_;
    slots_ = other.slots_;
    other.slots_ = own;
  }

 private:
  __device__ __forceinline__ T* slot(int k) const { return slots_ + 4 * k * static_cast<int>(blockDim.x); }
  T* slots_;
};

}  // namespace megaslide
