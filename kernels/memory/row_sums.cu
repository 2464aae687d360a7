#include "kernels/elements.cuh"
#include "kernels/memory/row_sums_cuda.h"

namespace megaslide {
namespace {

constexpr unsigned kColumns = 32, kLanes = 8;

// 32 columns a block and 8 threads a column: each adds every eighth piece up in order, a tree adds the eight.
__global__ void __launch_bounds__(kColumns* kLanes) row_sums_kernel(float* out, int64_t out_stride, const float* scratch, unsigned pieces,
                                                                   int64_t width, int64_t columns) {
  double* part = prim::dynamic_shared<double>();
  const unsigned lane = threadIdx.x / kColumns, group = blockIdx.y;
  const int64_t c = int64_t{blockIdx.x} * kColumns + threadIdx.x % kColumns;
  double sum = 0;
  if (c < columns) {
    const float* from = scratch + int64_t{group} * pieces * width + c;
    for (unsigned p = lane; p < pieces; p += kLanes) sum += static_cast<double>(from[p * width]);
  }
  part[threadIdx.x] = sum;
  for (unsigned half = kLanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) part[threadIdx.x] += part[threadIdx.x + half * kColumns];
  }
  if (lane == 0 && c < columns) out[group * out_stride + c] += static_cast<float>(part[threadIdx.x]);
}

}  // namespace

namespace cuda {

void add_piece_sums(Stream& stream, float* out, int64_t out_stride, int64_t rows, int64_t group_rows, int64_t width, int64_t first,
                    int64_t columns, const float* scratch) {
  const int64_t groups = rows / group_rows, pieces = (group_rows + kPieceRows - 1) / kPieceRows;
  constexpr int64_t kGroups = 65535;  // of a launch
  for (int64_t g = 0; g < groups; g += kGroups)
    prim::launch(row_sums_kernel, dim3(static_cast<unsigned>((columns + kColumns - 1) / kColumns),
                                       static_cast<unsigned>(std::min(kGroups, groups - g))),
                 dim3(kColumns * kLanes), kColumns * kLanes * sizeof(double), stream, out + g * out_stride, out_stride,
                 scratch + g * pieces * width + first, count32(pieces, "pieces of rows"), width, columns);
}

}  // namespace cuda
}  // namespace megaslide
