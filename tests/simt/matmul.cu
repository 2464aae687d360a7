// 64×64 tiles, steps of 32 along K, cp.async double buffer, ldmatrix and mma.
#include "kernels/device.h"
#include "tests/simt/kernels.h"

namespace megaslide::simt_test {
namespace {

constexpr int kTile = 64, kStep = 32, kRow = kStep + 8;  // rows 80 bytes apart: ldmatrix meets no bank twice
struct Smem {
  bf16 a[2][kTile][kRow];
  bf16 b[2][kTile][kRow];
};
struct Args {
  float* out;
  const bf16 *a, *b;
  int m, n, k;
};

template <MatmulFault kFault>
__global__ void __launch_bounds__(128) matmul_kernel(Args x) {
  Smem& s = *prim::dynamic_shared<Smem>();
  const int row0 = static_cast<int>(blockIdx.y) * kTile, column0 = static_cast<int>(blockIdx.x) * kTile;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const auto load = [&](int buffer, int k0) {
    for (int i = thread; i < kTile * kStep / 8; i += 128) {
      const int r = i / (kStep / 8), c = i % (kStep / 8) * 8;
      prim::cp_async_16(&s.a[buffer][r][c], x.a + (row0 + r) * x.k + k0 + c);
      prim::cp_async_16(&s.b[buffer][r][c], x.b + (column0 + r) * x.k + k0 + c);
    }
    prim::cp_async_commit();
  };
  float sum[8][4] = {};
  load(0, 0);
  const int steps = x.k / kStep;
  for (int i = 0; i < steps; ++i) {
    const int buffer = i % 2;
    if (i + 1 < steps) {
      load(buffer ^ 1, (i + 1) * kStep);
      prim::cp_async_wait<kFault == MatmulFault::kWaitOneTooFew ? 2 : 1>();
    } else {
      prim::cp_async_wait<0>();
    }
    if constexpr (kFault != MatmulFault::kNoBarrierAfterWait) __syncthreads();
    for (int kk = 0; kk < kStep; kk += 16) {
      uint32_t a[4];
      prim::ldmatrix_x4(a, &s.a[buffer][warp * 16 + lane % 16][kk + lane / 16 * 8]);
      for (int n = 0; n < 8; n += 2) {
        uint32_t b[4];
        prim::ldmatrix_x4(b, &s.b[buffer][n * 8 + lane % 8 + lane / 16 * 8][kk + lane / 8 % 2 * 8]);
        const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
        prim::mma_m16n8k16_bf16(sum[n], a, b0);
        prim::mma_m16n8k16_bf16(sum[n + 1], a, b1);
      }
    }
    if constexpr (kFault != MatmulFault::kNoBarrierBeforeRefill) __syncthreads();
    if constexpr (kFault == MatmulFault::kDivergentBarrier) {
      if (warp < 2) __syncthreads();
    }
  }
  for (int n = 0; n < 8; ++n)
    for (int i = 0; i < 4; ++i) {
      const int r = row0 + warp * 16 + lane / 4 + i / 2 * 8, c = column0 + n * 8 + lane % 4 * 2 + i % 2;
      x.out[r * x.n + c] = sum[n][i];
    }
}

template <MatmulFault kFault>
void launch_matmul(Stream& stream, const Args& x) {
  prim::launch(matmul_kernel<kFault>, dim3(static_cast<unsigned>(x.n / kTile), static_cast<unsigned>(x.m / kTile)),
               dim3(128), sizeof(Smem), stream, x);
}

}  // namespace

void matmul(Stream& stream, float* out, const bf16* a, const bf16* b, int m, int n, int k, MatmulFault fault) {
  const Args x{out, a, b, m, n, k};
  switch (fault) {
    case MatmulFault::kNone: return launch_matmul<MatmulFault::kNone>(stream, x);
    case MatmulFault::kWaitOneTooFew: return launch_matmul<MatmulFault::kWaitOneTooFew>(stream, x);
    case MatmulFault::kNoBarrierAfterWait: return launch_matmul<MatmulFault::kNoBarrierAfterWait>(stream, x);
    case MatmulFault::kNoBarrierBeforeRefill: return launch_matmul<MatmulFault::kNoBarrierBeforeRefill>(stream, x);
    case MatmulFault::kDivergentBarrier: return launch_matmul<MatmulFault::kDivergentBarrier>(stream, x);
  }
}

}  // namespace megaslide::simt_test
