#include "kernels/gemm_fp8/gemm_fp8.h"

#include <algorithm>

#include "kernels/elements.cuh"
#include "kernels/gemm/cublaslt.h"
#include "kernels/gemm_fp8/e4m3.h"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kOctet = 8;

// The largest over the block, in every thread.
__device__ __forceinline__ float block_max(float x) {
  float* part = prim::dynamic_shared<float>();
  x = prim::warp_max(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  float most = 0;
  MS_UNROLL
  for (int i = 0; i < kWarps; ++i) most = fmaxf(most, part[i]);
  return most;
}

// Eight numbers a thread at a time, the last of them one by one.
__device__ __forceinline__ void load_octet(float (&v)[kOctet], const bf16* x, int64_t at, int64_t n, bool aligned) {
  if (aligned && n - at >= kOctet) {
    load_floats<kOctet>(v, x + at);
    return;
  }
  MS_UNROLL
  for (int i = 0; i < kOctet; ++i) v[i] = at + i < n ? prim::widen(x[at + i]) : 0.0f;
}

__global__ void __launch_bounds__(kThreads) fp8_maxima_kernel(float* maxima, const bf16* x, int64_t n, bool aligned) {
  const int64_t step = int64_t{gridDim.x} * kThreads * kOctet;
  float most = 0;
  MS_NO_UNROLL
  for (int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kOctet; at < n; at += step) {
    float v[kOctet];
    load_octet(v, x, at, n, aligned);
    MS_UNROLL
    for (int i = 0; i < kOctet; ++i) most = fmaxf(most, fabsf(v[i]));
  }
  most = block_max(most);
  if (threadIdx.x == 0) maxima[blockIdx.x] = most;
}

// One block.
__global__ void __launch_bounds__(kThreads) fp8_scale_kernel(Fp8Header* header, int count) {
  float most = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) most = fmaxf(most, header->maxima[i]);
  most = block_max(most);
  if (threadIdx.x != 0) return;
  const Fp8Scale s = fp8_scale(most);
  header->scale = s.scale;
  header->inverse = s.inverse;
}

__global__ void __launch_bounds__(kThreads) fp8_codes_kernel(Fp8Header* header, const bf16* x, int64_t n, bool aligned) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kOctet;
  if (at >= n) return;
  auto* codes = reinterpret_cast<uint8_t*>(header + 1) + at;
  const float inverse = header->inverse;
  float v[kOctet];
  load_octet(v, x, at, n, aligned);
  uint32_t word[2] = {};
  MS_UNROLL
  for (int i = 0; i < kOctet; ++i) word[i / 4] |= uint32_t{to_e4m3(v[i] * inverse)} << (8 * (i % 4));
  if (n - at >= kOctet) {
    prim::store_8(codes, {word[0], word[1]});
    return;
  }
  MS_UNROLL
  for (int i = 0; i < kOctet; ++i)
    if (at + i < n) codes[i] = static_cast<uint8_t>(word[i / 4] >> (8 * (i % 4)));
}

// ---- products of sizes that cuBLASLt does not take: a block 16×16 results, a thread one ----

constexpr int kTile = 16;
struct Tiles {
  float x[kTile][kTile + 1], w[kTile][kTile + 1];
};

template <class T>
__global__ void __launch_bounds__(kTile* kTile)
    fp8_product_kernel(T* y, const Fp8Header* x, const Fp8Header* w, const bf16* bias, int64_t first_row, int64_t m, int64_t n, int64_t k) {
  Tiles& t = *prim::dynamic_shared<Tiles>();
  const int column = static_cast<int>(threadIdx.x) % kTile, row = static_cast<int>(threadIdx.x) / kTile;
  const int64_t i = int64_t{blockIdx.x} * kTile + row, n0 = int64_t{blockIdx.y} * kTile, j = n0 + column;
  const auto *left = reinterpret_cast<const uint8_t*>(x + 1) + (first_row + i) * k, *right = reinterpret_cast<const uint8_t*>(w + 1) + (n0 + row) * k;
  float sum = 0;
  MS_NO_UNROLL
  for (int64_t k0 = 0; k0 < k; k0 += kTile) {
    const bool inside = k0 + column < k;
    t.x[row][column] = inside && i < m ? from_e4m3(left[k0 + column]) : 0.0f;
    t.w[row][column] = inside && n0 + row < n ? from_e4m3(right[k0 + column]) : 0.0f;
    __syncthreads();
    MS_UNROLL
    for (int d = 0; d < kTile; ++d) sum = fmaf(t.x[row][d], t.w[column][d], sum);
    __syncthreads();
  }
  if (i >= m || j >= n) return;
  const float scaled = x->scale * w->scale * sum;
  store_one(y + i * n + j, bias != nullptr ? scaled + prim::widen(bias[j]) : scaled);
}

}  // namespace

namespace cuda {

void fp8_quantize(Stream& stream, void* q, const bf16* x, int64_t n) {
  auto* header = static_cast<Fp8Header*>(q);
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  const int64_t blocks = (n + kThreads * kOctet - 1) / (kThreads * kOctet), partials = std::min(blocks, kFp8Partials);
  constexpr size_t kShared = kWarps * sizeof(float);
  if (n > 0)
    prim::launch(fp8_maxima_kernel, dim3(static_cast<unsigned>(partials)), dim3(kThreads), kShared, stream, header->maxima, x, n, aligned);
  prim::launch(fp8_scale_kernel, dim3(1), dim3(kThreads), kShared, stream, header, static_cast<int>(partials));
  if (n > 0) prim::launch(fp8_codes_kernel, dim3(count32(blocks, "blocks")), dim3(kThreads), 0, stream, header, x, n, aligned);
}

void fp8_pack(Stream& stream, void* packed, const bf16* w, int64_t n, int64_t k) { cuda::fp8_quantize(stream, packed, w, n * k); }

void linear_forward_fp8(Stream& stream, void* y, const void* x, const void* packed, const bf16* bias, int64_t first_row, int64_t m,
                        int64_t n, int64_t k, DType out) {
  MS_CHECK(out == DType::kF32 || out == DType::kBF16, "{}", dtype_name(out));
  if (m == 0 || n == 0) return;
  const auto *left = static_cast<const Fp8Header*>(x), *right = static_cast<const Fp8Header*>(packed);
  if (k > 0 && n % 16 == 0 && k % 16 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0 && reinterpret_cast<uintptr_t>(bias) % 16 == 0) {
    const auto* rows = reinterpret_cast<const uint8_t*>(left + 1) + first_row * k;
    cublaslt::multiply(stream, {n, m, k, true, false, DType::kF8_E4M3, out, bias != nullptr}, y, right + 1, rows, bias,
                       {&right->scale, &left->scale});
    return;
  }
  const dim3 grid(count32((m + kTile - 1) / kTile, "rows"), static_cast<unsigned>((n + kTile - 1) / kTile));
  by_type(out, [&]<class T>(T*) {
    prim::launch(fp8_product_kernel<T>, grid, dim3(kTile * kTile), sizeof(Tiles), stream, static_cast<T*>(y), left, right, bias, first_row, m, n, k);
  });
}

}  // namespace cuda
}  // namespace megaslide
