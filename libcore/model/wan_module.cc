#include "model/wan_module.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/activation/activation.h"
#include "kernels/gemm_fp8/gemm_fp8.h"
#include "kernels/modulate/modulate.h"

namespace megaslide {

// Results of 8-bit products that are fp32 at a time.
static constexpr int64_t kFp8Rows = 1024;

WanPacking::WanPacking(std::vector<WanMatrix> matrices, size_t fp8) : matrices_(std::move(matrices)), fp8_(fp8) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    std::vector<int64_t>& starts = dtype == DType::kBF16 ? bf16_ : f32_;
    int64_t at = 0;
    for (const PackFor pack_for : {PackFor::kForward, PackFor::kInputGradient}) {
      for (size_t i = 0; i < matrices_.size(); ++i) {
        const WanMatrix& m = matrices_[i];
        starts.push_back(at);
        at += pack_for == PackFor::kForward && in_fp8(i, dtype) ? fp8_packed_bytes(m.outputs, m.inputs)
                                                                : linear_packed_bytes(m.outputs, m.inputs, dtype, pack_for);
      }
    }
    starts.push_back(at);
  }
}

int64_t WanPacking::bytes(DType dtype, bool training) const {
  return table(dtype)[training ? 2 * matrices_.size() : matrices_.size()];
}

void WanPacking::pack(Stream& stream, DType dtype, bool training, const ParamLayout& layout, const void* weights,
                      void* packed) const {
  for (const PackFor pack_for : {PackFor::kForward, PackFor::kInputGradient}) {
    if (pack_for == PackFor::kInputGradient && !training) break;
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const WanMatrix& m = matrices_[i];
      std::byte* to = static_cast<std::byte*>(packed) + offset(i, dtype, pack_for);
      const void* from = static_cast<const std::byte*>(weights) + layout.offset[m.weight] * dtype_bytes(dtype);
      if (pack_for == PackFor::kForward && in_fp8(i, dtype))
        fp8_pack(stream, to, static_cast<const bf16*>(from), m.outputs, m.inputs);
      else
        linear_pack(stream, to, from, m.outputs, m.inputs, dtype, pack_for);
    }
  }
}

const void* WanCall::quantized(const void* x, int64_t n) const {
  void* q = workspace.take_bytes(fp8_operand_bytes(n));
  fp8_quantize(stream, q, static_cast<const bf16*>(x), n);
  return q;
}

template <class F>
void WanCall::fp8_runs(size_t matrix, const void* x, int64_t rows, int64_t first_row, int64_t group_rows, F body) const {
  const WanMatrix& m = packing_.matrix(matrix);
  const WorkspaceScope scope(workspace);
  const void* q = quantized(x, rows * m.inputs);
  float* y = workspace.take<float>(std::min(rows, kFp8Rows) * m.outputs);
  for (int64_t begin = 0, n = 0; begin < rows; begin += n) {
    n = std::min({rows - begin, kFp8Rows, group_rows - (first_row + begin) % group_rows});
    linear_forward_fp8(stream, y, q, packed(matrix, PackFor::kForward), static_cast<const bf16*>(weight(m.bias)), begin, n,
                       m.outputs, m.inputs, DType::kF32);
    body(begin, n, y);
  }
}

void WanCall::linear(size_t matrix, float* y, const void* x, int64_t rows) const {
  const WanMatrix& m = packing_.matrix(matrix);
  const void* bias = m.bias == kNoBias ? nullptr : weight(m.bias);
  MS_CHECK(!packing_.in_fp8(matrix, dtype), "{}", matrix);
  linear_forward(stream, y, x, packed(matrix, PackFor::kForward), bias, rows, m.outputs, m.inputs, dtype);
}

void WanCall::linear_operand(size_t matrix, void* y, const void* x, int64_t rows) const {
  const WanMatrix& m = packing_.matrix(matrix);
  if (packing_.in_fp8(matrix, dtype)) {
    const WorkspaceScope scope(workspace);
    linear_forward_fp8(stream, y, quantized(x, rows * m.inputs), packed(matrix, PackFor::kForward),
                       static_cast<const bf16*>(weight(m.bias)), 0, rows, m.outputs, m.inputs, dtype);
    return;
  }
  megaslide::linear_operand(stream, y, x, packed(matrix, PackFor::kForward), weight(m.bias), rows, m.outputs, m.inputs,
                            dtype);
}

void WanCall::linear_gelu(size_t matrix, void* activation, void* kept, const void* x, int64_t rows) const {
  const WanMatrix& m = packing_.matrix(matrix);
  if (packing_.in_fp8(matrix, dtype)) {
    fp8_runs(matrix, x, rows, 0, rows, [&](int64_t begin, int64_t n, const float* y) {
      gelu_forward(stream, at(activation, begin * m.outputs), kept ? at(kept, begin * m.outputs) : nullptr, y, n * m.outputs, dtype);
    });
    return;
  }
  megaslide::linear_gelu(stream, activation, kept, x, packed(matrix, PackFor::kForward), weight(m.bias), rows,
                         m.outputs, m.inputs, dtype);
}

void WanCall::linear_gated_add(size_t matrix, float* y, void* kept, const float* residual, const float* gate,
                               const void* x, int64_t rows, int64_t first_row, int64_t group_rows,
                               int64_t group_stride) const {
  const WanMatrix& m = packing_.matrix(matrix);
  if (packing_.in_fp8(matrix, dtype)) {
    fp8_runs(matrix, x, rows, first_row, group_rows, [&](int64_t begin, int64_t n, const float* product) {
      const int64_t from = begin * m.outputs;
      const float* factor = gate ? gate + (first_row + begin) / group_rows * group_stride : nullptr;
      gated_add_forward(stream, y + from, kept ? at(kept, from) : nullptr, residual + from, product, factor, n, m.outputs, n, 0, dtype);
    });
    return;
  }
  megaslide::linear_gated_add(stream, y, kept, residual, gate, x, packed(matrix, PackFor::kForward), weight(m.bias),
                              rows, m.outputs, m.inputs, first_row, group_rows, group_stride, dtype);
}

void WanCall::input_gradient(size_t matrix, float* dx, const void* dy, int64_t rows, bool accumulate) const {
  const WanMatrix& m = packing_.matrix(matrix);
  linear_input_gradient(stream, dx, dy, packed(matrix, PackFor::kInputGradient), rows, m.outputs, m.inputs, dtype,
                        accumulate);
}

void WanCall::gelu_gradient(size_t matrix, void* dx, void* activation, float* dbias, float* scratch, const void* dy,
                            const void* kept, int64_t rows) const {
  const WanMatrix& m = packing_.matrix(matrix);
  linear_gelu_gradient(stream, dx, activation, dbias, scratch, dy, packed(matrix, PackFor::kInputGradient), kept, rows,
                       m.outputs, m.inputs, dtype);
}

void WanCall::weight_gradient(size_t matrix, const void* dy, const void* x, int64_t rows) const {
  const WanMatrix& m = packing_.matrix(matrix);
  const WorkspaceScope scope(workspace);
  void* scratch = workspace.take_bytes(linear_weight_gradient_scratch(rows, m.outputs, m.inputs, dtype));
  linear_weight_gradient(stream, gradient(m.weight), scratch, dy, x, rows, m.outputs, m.inputs, dtype);
}

void WanCall::bias_sum(size_t matrix, const float* dy, int64_t rows) const {
  const WanMatrix& m = packing_.matrix(matrix);
  bias_gradient(stream, gradient(m.bias), dy, rows, m.outputs);
}

void WanCall::clear_beside_own(void* rows, int64_t row_bytes) const {
  const int64_t first = shape.own_first_row(), end = first + shape.own().rows();
  if (first > 0) fill_zero(stream, rows, first * row_bytes);
  if (end < shape.rows()) fill_zero(stream, static_cast<std::byte*>(rows) + end * row_bytes, (shape.rows() - end) * row_bytes);
}

const void* WanCall::operand(const float* x, int64_t n) const {
  if (dtype == DType::kF32) return x;
  void* copy = take_operand(n);
  cast_operand(stream, copy, x, n, dtype);
  return copy;
}

const float* WanCall::vectors(size_t first, size_t end) const {
  if (dtype == DType::kF32) return static_cast<const float*>(weight(first));
  const int64_t n = offset(end) - offset(first);
  float* copy = workspace.take<float>(n);
  widen_float(stream, copy, weight(first), n, dtype);
  return copy;
}

}  // namespace megaslide
