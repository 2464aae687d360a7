#include "kernels/gemm/gemm.h"

#include <algorithm>

#include "kernels/activation/activation.h"
#include "kernels/activation/gelu.cuh"
#include "kernels/elements.cuh"
#include "kernels/gemm/cublaslt.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/pieces.h"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

__global__ void __launch_bounds__(kFlatThreads) linear_bias_kernel(float* out, const bf16* in, int64_t n, bool aligned) {
  const FlatQuad u(n);
  store_quad(out + u.at, load_quad(in + u.at, u.left, aligned), u.left, aligned);
}

// y may be x.
template <class T>
__global__ void __launch_bounds__(kFlatThreads) linear_gelu_kernel(T* y, const T* x, int64_t n, bool aligned) {
  const FlatQuad u(n);
  Quad v = load_quad(x + u.at, u.left, aligned);
  MS_UNROLL
  for (int i = 0; i < 4; ++i) v.v[i] *= gelu_sigmoid(v.v[i]);
  store_quad(y + u.at, v, u.left, aligned);
}

constexpr int kGateThreads = 128, kGateRows = 4;

struct GatedAdd {
  float* y;
  const float *residual, *gate;
  int64_t rows, width, first_row, group_rows, group_stride;
  bool aligned;
};
// Four rows, a thread four of their columns. y may be the residual.
template <class T>
__global__ void __launch_bounds__(kGateThreads) linear_gated_add_kernel(GatedAdd g, const T* a) {
  const int64_t c = 4 * (int64_t{blockIdx.y} * kGateThreads + threadIdx.x), first = int64_t{blockIdx.x} * kGateRows;
  if (c >= g.width) return;
  const int left = static_cast<int>(g.width - c < 4 ? g.width - c : 4);
  MS_UNROLL
  for (int k = 0; k < kGateRows; ++k) {
    const int64_t row = first + k, at = row * g.width + c;
    if (row >= g.rows) return;
    const Quad x = load_quad(a + at, left, g.aligned);
    Quad y = load_quad(g.residual + at, left, g.aligned);
    Quad gate{{1, 1, 1, 1}};
    if (g.gate != nullptr) gate = load_quad(g.gate + (g.first_row + row) / g.group_rows * g.group_stride + c, left, g.aligned);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) y.v[i] = fmaf(gate.v[i], x.v[i], y.v[i]);
    store_quad(g.y + at, y, left, g.aligned);
  }
}

void check_dtype(DType dtype) { MS_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "{}", dtype_name(dtype)); }

std::byte* at(void* p, int64_t elements, DType dtype) { return static_cast<std::byte*>(p) + elements * dtype_bytes(dtype); }
const std::byte* at(const void* p, int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(p) + elements * dtype_bytes(dtype);
}

// Row-major y (m,n) = x·Wᵀ + b in `out`; the bias has that type.
void forward(Stream& stream, void* y, const void* x, const void* w, const void* bias, int64_t m, int64_t n, int64_t k, DType dtype,
             DType out) {
  cublaslt::multiply(stream, {n, m, k, true, false, dtype, out, bias != nullptr}, y, w, x, bias);
}
// Row-major dx (m,k) = dy·W.
void input_gradient(Stream& stream, float* dx, const void* dy, const void* w, int64_t m, int64_t n, int64_t k, DType dtype,
                    bool accumulate) {
  cublaslt::multiply(stream, {k, m, n, false, false, dtype, DType::kF32, false, accumulate}, dx, w, dy);
}

Error too_little(const char* product, int64_t bytes, int64_t needed) {
  return Error(fmt::format("{}: {} bytes of the workspace for products are free, at least {} are needed", product, bytes, needed),
               "give set_gemm_workspace kGemmWorkspaceBytes");
}
// Runs of m rows of `row_bytes` in the workspace, of about equal length and a multiple of 64 rows but for the last:
// body(begin, rows, where).
template <class F>
void in_workspace(const char* product, int64_t m, int64_t row_bytes, F body) {
  const cublaslt::Space space = cublaslt::own_space();
  const int64_t most = space.bytes / row_bytes, unit = most >= 512 ? 128 : 64;
  if (most < std::min<int64_t>(m, 64)) throw too_little(product, space.bytes, std::min<int64_t>(m, 64) * row_bytes);
  const int64_t limit = most >= m ? m : most / unit * unit, runs = (m + limit - 1) / limit;
  const int64_t step = std::min(limit, gemm::round_up((m + runs - 1) / runs, unit));
  for (int64_t begin = 0; begin < m; begin += step) body(begin, std::min(step, m - begin), space.data);
}

}  // namespace

namespace cuda {

void linear_forward(Stream& stream, float* y, const void* x, const void* packed, const void* bias, int64_t m, int64_t n, int64_t k,
                    DType dtype) {
  check_dtype(dtype);
  if (m == 0 || n == 0) return;
  if (bias != nullptr && dtype == DType::kBF16) {
    const cublaslt::Space space = cublaslt::own_space();
    if (space.bytes < 4 * n) throw too_little("linear_forward", space.bytes, 4 * n);
    auto* wide = reinterpret_cast<float*>(space.data);
    const auto* b = static_cast<const bf16*>(bias);
    prim::launch(linear_bias_kernel, flat_grid(n), dim3(kFlatThreads), 0, stream, wide, b, n, quads_aligned(4, wide, b));
    bias = wide;
  }
  forward(stream, y, x, packed, bias, m, n, k, dtype, DType::kF32);
}

void linear_operand(Stream& stream, void* y, const void* x, const void* packed, const void* bias, int64_t m, int64_t n, int64_t k,
                    DType dtype) {
  check_dtype(dtype);
  if (m == 0 || n == 0) return;
  forward(stream, y, x, packed, bias, m, n, k, dtype, dtype);
}

void linear_gelu(Stream& stream, void* y, void* kept, const void* x, const void* packed, const void* bias, int64_t m, int64_t n,
                 int64_t k, DType dtype) {
  if (m == 0 || n == 0) return;
  const void* product = kept != nullptr ? kept : y;
  linear_operand(stream, kept != nullptr ? kept : y, x, packed, bias, m, n, k, dtype);
  by_type(dtype, [&]<class T>(T*) {
    auto* out = static_cast<T*>(y);
    const auto* in = static_cast<const T*>(product);
    prim::launch(linear_gelu_kernel<T>, flat_grid(m * n), dim3(kFlatThreads), 0, stream, out, in, m * n, quads_aligned(4, out, in));
  });
}

void linear_gated_add(Stream& stream, float* y, void* kept, const float* residual, const float* gate, const void* x,
                      const void* packed, const void* bias, int64_t m, int64_t n, int64_t k, int64_t first_row, int64_t group_rows,
                      int64_t group_stride, DType dtype) {
  check_dtype(dtype);
  if (m == 0 || n == 0) return;
  const auto run = [&](int64_t begin, int64_t rows, void* product) {
    linear_operand(stream, product, at(x, begin * k, dtype), packed, bias, rows, n, k, dtype);
    GatedAdd g{y + begin * n, residual + begin * n, gate, rows, n, first_row + begin, group_rows, group_stride, false};
    const dim3 grid(count32((rows + kGateRows - 1) / kGateRows, "rows"),
                    static_cast<unsigned>((n + 4 * kGateThreads - 1) / (4 * kGateThreads)));
    by_type(dtype, [&]<class T>(T*) {
      const auto* a = static_cast<const T*>(product);
      g.aligned = quads_aligned(n, g.y, g.residual, g.gate, a) && (gate == nullptr || group_stride % 4 == 0);
      prim::launch(linear_gated_add_kernel<T>, grid, dim3(kGateThreads), 0, stream, g, a);
    });
  };
  if (kept != nullptr)
    run(0, m, kept);
  else
    in_workspace("linear_gated_add", m, n * dtype_bytes(dtype), run);
}

void linear_input_gradient(Stream& stream, float* dx, const void* dy, const void* packed, int64_t m, int64_t n, int64_t k, DType dtype,
                           bool accumulate) {
  check_dtype(dtype);
  if (m == 0 || k == 0) return;
  input_gradient(stream, dx, dy, packed, m, n, k, dtype, accumulate);
}

// The product in fp32, then one pass that reads it and `kept` and writes dx, y and the sums of pieces of rows.
void linear_gelu_gradient(Stream& stream, void* dx, void* y, float* dbias, float* scratch, const void* dy, const void* packed,
                          const void* kept, int64_t m, int64_t n, int64_t k, DType dtype) {
  check_dtype(dtype);
  if (m == 0 || k == 0) return;
  const auto run = [&](int64_t begin, int64_t rows, void* product) {
    auto* g = static_cast<float*>(product);
    input_gradient(stream, g, at(dy, begin * n, dtype), packed, rows, n, k, dtype, false);
    gelu_backward(stream, at(dx, begin * k, dtype), at(y, begin * k, dtype), dbias, scratch, g, at(kept, begin * k, dtype), rows, k, dtype);
  };
  if (dtype == DType::kF32)
    run(0, m, dx);
  else
    in_workspace("linear_gelu_gradient", m, k * 4, run);
}

void linear_weight_gradient(Stream& stream, float* dw, void*, const void* dy, const void* x, int64_t m, int64_t n, int64_t k,
                            DType dtype) {
  check_dtype(dtype);
  if (m == 0 || n == 0 || k == 0) return;
  cublaslt::multiply(stream, {k, n, m, false, true, dtype, DType::kF32, false, true}, dw, x, dy);
}

}  // namespace cuda
}  // namespace megaslide
