#include "kernels/memory/memory.h"

#include "kernels/quads.cuh"

namespace megaslide {
namespace {

constexpr int64_t kUnit = 16;  // bytes of a thread

// Bytes of this thread: 16 from `at` on, fewer at the end.
struct ByteUnit {
  int64_t at;
  int left;
  __device__ explicit ByteUnit(int64_t bytes) : at(kUnit * (int64_t{blockIdx.x} * kFlatThreads + threadIdx.x)) {
    left = static_cast<int>(bytes - at < kUnit ? bytes - at : kUnit);
  }
};

__global__ void __launch_bounds__(kFlatThreads) fill_zero_kernel(unsigned char* out, int64_t bytes, bool aligned) {
  const ByteUnit u(bytes);
  if (aligned && u.left == kUnit)
    prim::store_16(out + u.at, {0, 0, 0, 0});
  else
    for (int i = 0; i < u.left; ++i) out[u.at + i] = 0;
}

__global__ void __launch_bounds__(kFlatThreads) copy_memory_kernel(unsigned char* out, const unsigned char* in, int64_t bytes, bool aligned) {
  const ByteUnit u(bytes);
  if (aligned && u.left == kUnit)
    prim::store_16(out + u.at, prim::load_16(in + u.at));
  else
    for (int i = 0; i < u.left; ++i) out[u.at + i] = in[u.at + i];
}

__global__ void __launch_bounds__(kFlatThreads) add_in_place_kernel(float* out, const float* in, int64_t n, bool aligned) {
  const FlatQuad u(n);
  Quad sum = load_quad(out + u.at, u.left, aligned);
  const Quad x = load_quad(in + u.at, u.left, aligned);
  MS_UNROLL
  for (int i = 0; i < 4; ++i) sum.v[i] += x.v[i];
  store_quad(out + u.at, sum, u.left, aligned);
}

template <class T>
__global__ void __launch_bounds__(kFlatThreads) widen_float_kernel(float* y, const T* x, int64_t n, bool aligned) {
  const FlatQuad u(n);
  store_quad(y + u.at, load_quad(x + u.at, u.left, aligned), u.left, aligned);
}

dim3 byte_grid(int64_t bytes) { return flat_grid((bytes + kUnit - 1) / kUnit * 4); }
bool aligned_bytes(const void* p) { return reinterpret_cast<uintptr_t>(p) % kUnit == 0; }

}  // namespace

namespace cuda {

void fill_zero(Stream& stream, void* out, int64_t bytes) {
  if (bytes == 0) return;
  prim::launch(fill_zero_kernel, byte_grid(bytes), dim3(kFlatThreads), 0, stream, static_cast<unsigned char*>(out), bytes, aligned_bytes(out));
}

void copy_memory(Stream& stream, void* out, const void* in, int64_t bytes) {
  if (bytes == 0) return;
  prim::launch(copy_memory_kernel, byte_grid(bytes), dim3(kFlatThreads), 0, stream, static_cast<unsigned char*>(out),
               static_cast<const unsigned char*>(in), bytes, aligned_bytes(out) && aligned_bytes(in));
}

void add_in_place(Stream& stream, float* out, const float* in, int64_t n) {
  if (n == 0) return;
  prim::launch(add_in_place_kernel, flat_grid(n), dim3(kFlatThreads), 0, stream, out, in, n, quads_aligned(4, out, in));
}

void widen_float(Stream& stream, float* y, const void* x, int64_t n, DType dtype) {
  if (n == 0) return;
  by_type(dtype, [&]<class T>(T*) {
    const auto* in = static_cast<const T*>(x);
    prim::launch(widen_float_kernel<T>, flat_grid(n), dim3(kFlatThreads), 0, stream, y, in, n, quads_aligned(4, y, in));
  });
}

}  // namespace cuda
}  // namespace megaslide
