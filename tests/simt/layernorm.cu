#include "kernels/device.h"
#include "tests/simt/kernels.h"

namespace megaslide::simt_test {
namespace {

struct Smem {
  float part[32];
  float total;
};

// The sum over the block, in every thread.
__device__ float block_sum(Smem& s, float x) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = prim::warp_sum(x);
  if (lane == 0) s.part[warp] = x;
  __syncthreads();
  if (warp == 0) {
    x = prim::warp_sum(lane < blockDim.x / 32 ? s.part[lane] : 0.0f);
    if (lane == 0) s.total = x;
  }
  __syncthreads();
  return s.total;
}

__global__ void layernorm_kernel(float* out, const float* in, int c) {
  Smem& s = *prim::dynamic_shared<Smem>();
  const float* x = in + blockIdx.x * static_cast<unsigned>(c);
  const int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  float sum = 0, square = 0;
  for (int i = first; i < c; i += step) sum += x[i];
  const float mean = block_sum(s, sum) / static_cast<float>(c);
  for (int i = first; i < c; i += step) square += (x[i] - mean) * (x[i] - mean);
  const float scale = rsqrtf(block_sum(s, square) / static_cast<float>(c) + 1e-5f);
  for (int i = first; i < c; i += step) out[blockIdx.x * static_cast<unsigned>(c) + static_cast<unsigned>(i)] = (x[i] - mean) * scale;
}

__global__ void write_kernel(int index) {
  float* s = prim::dynamic_shared<float>();
  if (threadIdx.x == 0) s[index] = 1;
}

}  // namespace

void layernorm(Stream& stream, float* out, const float* in, int rows, int c, int threads) {
  prim::launch(layernorm_kernel, dim3(static_cast<unsigned>(rows)), dim3(static_cast<unsigned>(threads)), sizeof(Smem), stream,
               out, in, c);
}

void write_shared(Stream& stream, int index) {
  prim::launch(write_kernel, dim3(1), dim3(32), 64 * sizeof(float), stream, index);
}

}  // namespace megaslide::simt_test
