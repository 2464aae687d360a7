#include "kernels/vector_linear/vector_linear.h"

#include "kernels/elements.cuh"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

constexpr int kInputs = 4;  // rows of x or dy at a time: a weight that was read serves them all

// A warp an output.
template <class T>
__global__ void __launch_bounds__(32 * kWarpsPerBlock) vector_linear_forward_kernel(float* y, const float* x, const T* w, const T* bias,
                                                                                    int64_t m, int64_t n, int64_t k, bool aligned) {
  const int64_t j = warp_unit();
  if (j >= n) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t first = 0; first < m; first += kInputs) {
    float sum[kInputs] = {};
    for (int64_t c = 4 * lane; c < k; c += 128) {
      const int left = static_cast<int>(k - c < 4 ? k - c : 4);
      const Quad a = load_quad(w + j * k + c, left, aligned);
      MS_UNROLL
      for (int r = 0; r < kInputs; ++r) {
        if (first + r >= m) continue;
        const Quad b = load_quad(x + (first + r) * k + c, left, aligned);
        MS_UNROLL
        for (int i = 0; i < 4; ++i) sum[r] = fmaf(b.v[i], a.v[i], sum[r]);
      }
    }
    MS_UNROLL
    for (int r = 0; r < kInputs; ++r) {
      const float total = prim::warp_sum(sum[r]);
      if (lane == 0 && first + r < m) y[(first + r) * n + j] = total + prim::widen(bias[j]);
    }
  }
}

constexpr int kColumnThreads = 128;

// A row of dw, a thread four columns.
__global__ void __launch_bounds__(kColumnThreads) vector_linear_weight_kernel(float* dw, float* db, const float* dy, const float* x, int64_t m,
                                                                              int64_t n, int64_t k, bool aligned) {
  const int64_t j = blockIdx.x, c = 4 * (int64_t{blockIdx.y} * kColumnThreads + threadIdx.x);
  if (c == 0) {
    float sum = db[j];
    for (int64_t i = 0; i < m; ++i) sum += dy[i * n + j];
    db[j] = sum;
  }
  if (c >= k) return;
  const int left = static_cast<int>(k - c < 4 ? k - c : 4);
  Quad sum = load_quad(dw + j * k + c, left, aligned);
  for (int64_t i = 0; i < m; ++i) {
    const float g = dy[i * n + j];
    const Quad v = load_quad(x + i * k + c, left, aligned);
    MS_UNROLL
    for (int e = 0; e < 4; ++e) sum.v[e] = fmaf(g, v.v[e], sum.v[e]);
  }
  store_quad(dw + j * k + c, sum, left, aligned);
}

constexpr unsigned kStripQuads = 8, kStripLanes = 64;  // a block 32 columns of W, each eight threads a row
constexpr unsigned kStripThreads = kStripQuads * kStripLanes;

// Sums over all rows of W: each lane every 64th, then a tree.
template <class T>
__global__ void __launch_bounds__(kStripThreads) vector_linear_input_kernel(float* dx, const float* dy, const T* w, int64_t m, int64_t n,
                                                                            int64_t k, bool aligned) {
  float* part = prim::dynamic_shared<float>();  // (kInputs · 4, threads)
  const unsigned lane = threadIdx.x / kStripQuads;
  const int64_t c = 4 * (int64_t{blockIdx.x} * kStripQuads + threadIdx.x % kStripQuads);
  const int left = static_cast<int>(k - c < 4 ? k - c : 4);
  for (int64_t first = 0; first < m; first += kInputs) {
    Quad sum[kInputs];
    for (int64_t j = lane; left > 0 && j < n; j += kStripLanes) {
      const Quad a = load_quad(w + j * k + c, left, aligned);
      MS_UNROLL
      for (int r = 0; r < kInputs; ++r) {
        const float g = first + r < m ? dy[(first + r) * n + j] : 0.0f;
        MS_UNROLL
        for (int e = 0; e < 4; ++e) sum[r].v[e] = fmaf(g, a.v[e], sum[r].v[e]);
      }
    }
    MS_UNROLL
    for (int r = 0; r < kInputs; ++r)
      MS_UNROLL
      for (int e = 0; e < 4; ++e) part[static_cast<unsigned>(4 * r + e) * kStripThreads + threadIdx.x] = sum[r].v[e];
    for (unsigned half = kStripLanes / 2; half > 0; half /= 2) {
      __syncthreads();
      if (lane >= half) continue;
      for (unsigned i = threadIdx.x; i < 4 * kInputs * kStripThreads; i += kStripThreads) part[i] += part[i + half * kStripQuads];
    }
    if (lane == 0)
      for (int r = 0; r < kInputs && first + r < m; ++r)
        for (int e = 0; e < left; ++e) dx[(first + r) * k + c + e] = part[static_cast<unsigned>(4 * r + e) * kStripThreads + threadIdx.x];
    __syncthreads();
  }
}

}  // namespace

namespace cuda {

void vector_linear_forward(Stream& stream, float* y, const float* x, const void* w, const void* bias, int64_t m, int64_t n, int64_t k,
                           DType dtype) {
  if (m == 0 || n == 0) return;
  by_type(dtype, [&]<class T>(T*) {
    const auto *weights = static_cast<const T*>(w), *b = static_cast<const T*>(bias);
    prim::launch(vector_linear_forward_kernel<T>, warp_grid(n), warp_block(), 0, stream, y, x, weights, b, m, n, k, quads_aligned(k, x, weights));
  });
}

void vector_linear_weight_gradient(Stream& stream, float* dw, float* db, const float* dy, const float* x, int64_t m, int64_t n, int64_t k) {
  if (m == 0 || n == 0) return;
  const dim3 grid(count32(n, "outputs"), static_cast<unsigned>(std::max<int64_t>(1, (k + 4 * kColumnThreads - 1) / (4 * kColumnThreads))));
  prim::launch(vector_linear_weight_kernel, grid, dim3(kColumnThreads), 0, stream, dw, db, dy, x, m, n, k, quads_aligned(k, dw, x));
}

void vector_linear_input_gradient(Stream& stream, float* dx, const float* dy, const void* w, int64_t m, int64_t n, int64_t k, DType dtype) {
  if (m == 0 || k == 0) return;
  by_type(dtype, [&]<class T>(T*) {
    const auto* weights = static_cast<const T*>(w);
    prim::launch(vector_linear_input_kernel<T>, dim3(static_cast<unsigned>((k + 4 * kStripQuads - 1) / (4 * kStripQuads))), dim3(kStripThreads),
                 4 * kInputs * kStripThreads * sizeof(float), stream, dx, dy, weights, m, n, k, quads_aligned(k, weights));
  });
}

}  // namespace cuda
}  // namespace megaslide
