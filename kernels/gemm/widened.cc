#include "kernels/gemm/widened.h"

#include <algorithm>

#include "kernels/gemm/onednn.h"
#include "kernels/gemm/operand.h"
#include "kernels/gemm/pieces.h"

namespace megaslide::gemm {
namespace {
using onednn::ScratchSlot;

constexpr int64_t kPanel = 256;  // rows of the weight, or of x and dy, widened at a time

// (rows, columns) of a matrix with rows `stride` apart, as dense fp32.
const float* widen(ScratchSlot slot, const bf16* p, int64_t rows, int64_t columns, int64_t stride) {
  auto* out = static_cast<float*>(onednn::thread_scratch(slot, static_cast<size_t>(rows * columns) * sizeof(float)));
  for (int64_t r = 0; r < rows; ++r) widen_bf16(out + r * columns, p + r * stride, columns);
  return out;
}
}  // namespace

void widened_forward(float* y, const bf16* x, const bf16* w, const bf16* bias, int64_t rows, int64_t n, int64_t k) {
  const int64_t depth = depth_step(k);
  for (int64_t d0 = 0; d0 < k; d0 += depth) {
    const int64_t d = std::min(depth, k - d0);
    const float* a = widen(ScratchSlot::kA, x + d0, rows, d, k);
    for (int64_t n0 = 0; n0 < n; n0 += kPanel) {
      const int64_t pn = std::min(kPanel, n - n0);
      const float* panel = widen(ScratchSlot::kB, w + n0 * k + d0, pn, d, k);
      onednn::sgemm(false, true, rows, pn, d, a, d, panel, d, d0 > 0 ? 1.0F : 0.0F, y + n0, n);
    }
  }
  if (!bias) return;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < n; ++j) y[i * n + j] += to_float(bias[j]);
}

void widened_input_gradient(float* dx, const bf16* dy, const bf16* w, int64_t rows, int64_t n, int64_t k,
                            bool accumulate) {
  for (int64_t n0 = 0; n0 < n; n0 += kPanel) {
    const int64_t pn = std::min(kPanel, n - n0);
    const float* a = widen(ScratchSlot::kA, dy + n0, rows, pn, n);
    const float* panel = widen(ScratchSlot::kB, w + n0 * k, pn, k, k);
    onednn::sgemm(false, false, rows, k, pn, a, pn, panel, k, accumulate || n0 > 0 ? 1.0F : 0.0F, dx, k);
  }
}

void widened_weight_gradient(float* dw, const bf16* dy, const bf16* x, int64_t m, int64_t n, int64_t k, int64_t pn,
                             int64_t pk) {
  for (int64_t m0 = 0; m0 < m; m0 += kPanel) {
    const int64_t rows = std::min(kPanel, m - m0);
    const float* a = widen(ScratchSlot::kA, dy + m0 * n, rows, pn, n);
    const float* b = widen(ScratchSlot::kB, x + m0 * k, rows, pk, k);
    onednn::sgemm(true, false, pn, pk, rows, a, pn, b, pk, 1.0F, dw, k);
  }
}

}  // namespace megaslide::gemm
