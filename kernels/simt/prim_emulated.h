// The vocabulary of kernels/device.h on the host. Included by it alone.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "kernels/simt/simt.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define MS_NO_UNROLL
#define MS_UNROLL

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline constinit thread_local uint3 threadIdx{}, blockIdx{};
inline constinit thread_local dim3 blockDim{}, gridDim{};

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

// Warp-wide calls work on whole values through the emulator.
template <class T>
T __shfl_sync(unsigned mask, T value, int from, megaslide::simt::Place place = megaslide::simt::Place::current()) {
  const unsigned char* all = megaslide::simt::exchange(mask, &value, sizeof value, "__shfl_sync", place);
  T r;
  std::memcpy(&r, all + (static_cast<size_t>(from) % 32) * megaslide::simt::kExchangeBytes, sizeof r);
  return r;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, megaslide::simt::Place place = megaslide::simt::Place::current()) {
  const unsigned char* all = megaslide::simt::exchange(mask, &value, sizeof value, "__shfl_xor_sync", place);
  T r;
  std::memcpy(&r, all + ((megaslide::simt::lane() ^ static_cast<unsigned>(bits)) % 32) * megaslide::simt::kExchangeBytes, sizeof r);
  return r;
}
inline unsigned __ballot_sync(unsigned mask, bool vote, megaslide::simt::Place place = megaslide::simt::Place::current()) {
  const unsigned char own = vote ? 1 : 0;
  const unsigned char* all = megaslide::simt::exchange(mask, &own, 1, "__ballot_sync", place);
  unsigned r = 0;
  for (unsigned i = 0; i < 32; ++i) r |= static_cast<unsigned>(all[i * megaslide::simt::kExchangeBytes]) << i;
  return r;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(unsigned x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline void __syncwarp(megaslide::simt::Place place = megaslide::simt::Place::current()) {
  megaslide::simt::exchange(~0u, nullptr, 0, "__syncwarp", place);
}
inline void __syncthreads(megaslide::simt::Place place = megaslide::simt::Place::current()) {
  megaslide::simt::sync_block(place);
}

namespace megaslide::prim {

inline float bits_to_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t float_to_bits(float x) { return std::bit_cast<uint32_t>(x); }
inline uint32_t pack_bf16(float lo, float hi) { return to_bf16(lo).bits | uint32_t{to_bf16(hi).bits} << 16; }

template <class T>
T load_aligned(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0) throw simt::Error("a load of " + std::to_string(sizeof(T)) + " bytes is not aligned");
  T r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
template <class T>
void store_aligned(void* p, const T& v) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0) throw simt::Error("a store of " + std::to_string(sizeof(T)) + " bytes is not aligned");
  std::memcpy(p, &v, sizeof v);
}
inline uint4 load_16(const void* p) { return load_aligned<uint4>(p); }
inline uint2 load_8(const void* p) { return load_aligned<uint2>(p); }
inline void store_16(void* p, const uint4& v) { store_aligned(p, v); }
inline void store_8(void* p, const uint2& v) { store_aligned(p, v); }
inline void store_bf16(bf16* p, float lo, float hi) {
  if (reinterpret_cast<uintptr_t>(p) % 4 != 0) throw simt::Error("a store of two bf16 is not aligned");
  p[0] = to_bf16(lo), p[1] = to_bf16(hi);
}

// Sums in fp32, term by term: the device's order within a product is not specified.
inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              simt::Place place = simt::Place::current()) {
  struct Fragments {
    uint32_t a[4], b[2];
  } own;
  std::memcpy(own.a, a, sizeof own.a);
  std::memcpy(own.b, b, sizeof own.b);
  const unsigned char* all = simt::exchange(~0u, &own, sizeof own, "mma_m16n8k16_bf16", place);
  const auto word = [all](unsigned lane, unsigned index) {
    uint32_t r;
    std::memcpy(&r, all + lane * simt::kExchangeBytes + 4 * index, 4);
    return r;
  };
  const unsigned group = simt::lane() / 4, quad = simt::lane() % 4;
  // Register i of lane 4r + q holds, of a: row r (+8 where i is odd), columns 2q, 2q+1 (+8 where i ≥ 2); of b (i = 4,
  // 5): column r, rows 2q, 2q+1 (+8 where i = 5).
  for (unsigned k = 0; k < 8; ++k) {
    const unsigned pair = k % 4, upper = k / 4;
    const uint32_t row[2] = {word(group * 4 + pair, 2 * upper), word(group * 4 + pair, 2 * upper + 1)};
    const uint32_t column[2] = {word(quad * 8 + pair, 4 + upper), word(quad * 8 + 4 + pair, 4 + upper)};
    for (unsigned i = 0; i < 4; ++i) {
      const uint32_t x = row[i / 2], y = column[i % 2];
      d[i] += bits_to_float(x << 16) * bits_to_float(y << 16);
      d[i] += bits_to_float(x & 0xffff0000u) * bits_to_float(y & 0xffff0000u);
    }
  }
}

struct MatrixRow {
  uint16_t element[8];
};
inline const unsigned char* exchange_rows(const void* row, const char* operation, const simt::Place& place) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) throw simt::Error("ldmatrix: a row is not 16-byte aligned");
  simt::touch_shared(row, sizeof(MatrixRow), false);
  return simt::exchange(~0u, row, sizeof(MatrixRow), operation, place);
}
inline uint32_t row_element(const unsigned char* all, unsigned row, unsigned element) {
  uint16_t r;
  std::memcpy(&r, all + row * simt::kExchangeBytes + 2 * element, 2);
  return r;
}
// Lane 8j + i gives the address of row i of matrix j; register j of lane 4r + q is elements 2q, 2q+1 of row r.
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, simt::Place place = simt::Place::current()) {
  const unsigned char* all = exchange_rows(row, "ldmatrix_x4", place);
  const unsigned at = simt::lane() / 4, pair = simt::lane() % 4 * 2;
  for (unsigned j = 0; j < 4; ++j) r[j] = row_element(all, j * 8 + at, pair) | row_element(all, j * 8 + at, pair + 1) << 16;
}
// The same of the transposed matrices.
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, simt::Place place = simt::Place::current()) {
  const unsigned char* all = exchange_rows(row, "ldmatrix_x4_trans", place);
  const unsigned at = simt::lane() / 4, pair = simt::lane() % 4 * 2;
  for (unsigned j = 0; j < 4; ++j) r[j] = row_element(all, j * 8 + pair, at) | row_element(all, j * 8 + pair + 1, at) << 16;
}

inline void cp_async_16(void* dst, const void* src, simt::Place place = simt::Place::current()) {
  simt::copy_async(dst, src, 16, place);
}
inline void cp_async_8(void* dst, const void* src, simt::Place place = simt::Place::current()) {
  simt::copy_async(dst, src, 8, place);
}
inline void cp_async_commit() { simt::commit_async(); }
template <int N>
void cp_async_wait() {
  simt::wait_async(N);
}
template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(simt::shared_memory());
}

// Runs the kernel to its end, or queues it on a stream that has a queue of its own (simt::set_queue). Throws simt::Error on
// a fault of the kernel.
template <class... P>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, Stream& stream,
            std::type_identity_t<P>... arguments) {
  simt::submit(stream.native(), [=] {
    gridDim = grid, blockDim = block;
    simt::run_grid({grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, [&] { kernel(arguments...); });
  });
}

}  // namespace megaslide::prim
