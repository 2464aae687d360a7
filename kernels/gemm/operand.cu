// Operands of the products: re-laying, conversion and the sum of columns.
#include "kernels/elements.cuh"
#include "kernels/gemm/gemm.h"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

// `words` of 16 bytes, a thread each, then the bytes that are left.
__global__ void __launch_bounds__(kFlatThreads) operand_copy_kernel(unsigned char* out, const unsigned char* in, int64_t words, int64_t bytes) {
  const int64_t i = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x, byte = words * 16 + (i - words);
  if (i < words)
    prim::store_16(out + i * 16, prim::load_16(in + i * 16));
  else if (byte < bytes)
    out[byte] = in[byte];
}

void copy(Stream& stream, void* out, const void* in, int64_t bytes) {
  auto* to = static_cast<unsigned char*>(out);
  const auto* from = static_cast<const unsigned char*>(in);
  const bool aligned = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 == 0;
  const int64_t words = aligned ? bytes / 16 : 0, threads = words + (bytes - words * 16);
  if (threads > 0) prim::launch(operand_copy_kernel, element_grid(threads), dim3(kFlatThreads), 0, stream, to, from, words, bytes);
}

__global__ void __launch_bounds__(kFlatThreads) operand_narrow_kernel(bf16* out, const float* in, int64_t n, bool aligned) {
  const FlatQuad u(n);
  store_quad(out + u.at, load_quad(in + u.at, u.left, aligned), u.left, aligned);
}

constexpr int kSumRows = 64, kSumColumns = 32, kSumLanes = 32;

// 32 columns a block. Each of a column's 32 threads sums a block of 64 rows in order; one of them adds the 32 sums to
// the result in order; then come the next 2,048 rows.
__global__ void __launch_bounds__(kSumColumns* kSumLanes) bias_gradient_kernel(float* db, const float* dy, int64_t m, int64_t n) {
  float* part = prim::dynamic_shared<float>();
  const int column = static_cast<int>(threadIdx.x) % kSumColumns, lane = static_cast<int>(threadIdx.x) / kSumColumns;
  const int64_t c = int64_t{blockIdx.x} * kSumColumns + column;
  float total = lane == 0 && c < n ? db[c] : 0.0f;
  for (int64_t m0 = 0; m0 < m; m0 += int64_t{kSumRows} * kSumLanes) {
    const int64_t first = m0 + int64_t{lane} * kSumRows, rows = m - first < kSumRows ? m - first : kSumRows;
    if (rows > 0 && c < n) {
      const float* from = dy + first * n + c;
      float sum = *from;
      int64_t r = 1;
      for (; r + 8 <= rows; r += 8) {
        float x[8];
        MS_UNROLL
        for (int i = 0; i < 8; ++i) x[i] = from[(r + i) * n];
        MS_UNROLL
        for (int i = 0; i < 8; ++i) sum += x[i];
      }
      for (; r < rows; ++r) sum += from[r * n];
      part[threadIdx.x] = sum;
    }
    __syncthreads();
    if (lane == 0 && c < n) {
      const int64_t blocks = (m - m0 + kSumRows - 1) / kSumRows;
      for (int i = 0; i < kSumLanes && i < blocks; ++i) total += part[i * kSumColumns + column];
    }
    __syncthreads();
  }
  if (lane == 0 && c < n) db[c] = total;
}

}  // namespace

namespace cuda {

// The products read plain weights.
void linear_pack(Stream& stream, void* packed, const void* w, int64_t n, int64_t k, DType dtype, PackFor) {
  copy(stream, packed, w, n * k * dtype_bytes(dtype));
}

void bias_gradient(Stream& stream, float* db, const float* dy, int64_t m, int64_t n) {
  if (m == 0 || n == 0) return;
  prim::launch(bias_gradient_kernel, dim3(count32((n + kSumColumns - 1) / kSumColumns, "columns")), dim3(kSumColumns * kSumLanes),
               kSumColumns * kSumLanes * sizeof(float), stream, db, dy, m, n);
}

void cast_operand(Stream& stream, void* out, const float* in, int64_t n, DType dtype) {
  MS_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "{}", dtype_name(dtype));
  if (n == 0) return;
  if (dtype == DType::kF32) return copy(stream, out, in, n * 4);
  auto* to = static_cast<bf16*>(out);
  prim::launch(operand_narrow_kernel, flat_grid(n), dim3(kFlatThreads), 0, stream, to, in, n, quads_aligned(4, to, in));
}

}  // namespace cuda
}  // namespace megaslide
