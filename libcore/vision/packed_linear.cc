#include "vision/packed_linear.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/split_linear.h"

namespace megaslide {
namespace {

HostTensor in_dtype(Stream& stream, const HostTensor& t, DType dtype) {
  HostTensor out(dtype, t.shape());
  cast_operand(stream, out.data(), t.f32(), t.elements(), dtype);
  return out;
}

}  // namespace

Products products_for(const Stream& stream, DType compute) {
  MS_CHECK(compute == DType::kF32 || compute == DType::kBF16, "{}", dtype_name(compute));
  if (compute == DType::kBF16) return Products::kBf16;
  return split_linear_serves(stream) ? Products::kSplit : Products::kFloat;
}

int64_t parts_bytes(Products p, int64_t rows, int64_t width) { return p == Products::kSplit ? split_operand_bytes(rows, width) : 0; }

const void* operand_of(Stream& stream, Products p, const void* rows_in, int64_t rows, int64_t width, void* parts) {
  if (p != Products::kSplit) return rows_in;
  split_operand(stream, parts, static_cast<const float*>(rows_in), rows, width);
  return parts;
}

PackedLinear::PackedLinear(Stream& stream, const HostTensor& w, const HostTensor& bias, Products products) : products_(products) {
  MS_CHECK(w.shape().size() == 2 && (bias.empty() || bias.elements() == w.shape()[0]), "{} and {}", to_string(w.shape()), to_string(bias.shape()));
  n_ = w.shape()[0];
  k_ = w.shape()[1];
  const DType dtype = dtype_of(products);
  packed_ = HostTensor(DType::kU8, {products == Products::kSplit ? split_linear_packed_bytes(n_, k_) : linear_packed_bytes(n_, k_, dtype, PackFor::kForward)});
  if (products == Products::kSplit) {
    split_linear_pack(stream, packed_.data(), w.f32(), n_, k_);
  } else {
    const HostTensor narrow = dtype == DType::kF32 ? HostTensor() : in_dtype(stream, w, dtype);
    linear_pack(stream, packed_.data(), narrow.empty() ? w.data() : narrow.data(), n_, k_, dtype, PackFor::kForward);
  }
  if (!bias.empty()) bias_ = in_dtype(stream, bias, dtype);
}

void PackedLinear::forward(Stream& stream, float* y, const void* x, int64_t rows) const {
  if (products_ == Products::kSplit)
    split_linear_forward(stream, y, x, packed_.data(), static_cast<const float*>(bias()), rows, n_, k_, false);
  else
    linear_forward(stream, y, x, packed_.data(), bias(), rows, n_, k_, dtype_of(products_));
}

void PackedLinear::narrow_forward(Stream& stream, void* y, const void* x, int64_t rows) const {
  if (products_ == Products::kBf16)
    linear_operand(stream, y, x, packed_.data(), bias(), rows, n_, k_, DType::kBF16);
  else
    forward(stream, static_cast<float*>(y), x, rows);
}

void PackedLinear::activated_parts(Stream& stream, void* y_parts, const void* x, int64_t rows, MlpActivation f) const {
  MS_CHECK(products_ == Products::kSplit, "of products by parts alone");
  split_linear_activation(stream, y_parts, x, packed_.data(), static_cast<const float*>(bias()), rows, n_, k_, f);
}

void PackedLinear::add(Stream& stream, float* y, const void* x, int64_t rows) const {
  if (products_ == Products::kSplit)
    split_linear_forward(stream, y, x, packed_.data(), static_cast<const float*>(bias()), rows, n_, k_, true);
  else
    linear_gated_add(stream, y, nullptr, y, nullptr, x, packed_.data(), bias(), rows, n_, k_, 0, rows, 0, dtype_of(products_));
}

HostTensor transposed(const HostTensor& matrix) {
  const int64_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  HostTensor out(DType::kF32, {columns, rows});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) out.f32()[c * rows + r] = matrix.f32()[r * columns + c];
  return out;
}

HostTensor rows_of(const HostTensor& matrix, int64_t begin, int64_t end) {
  Shape shape = matrix.shape();
  const int64_t row = matrix.elements() / shape[0];
  shape[0] = end - begin;
  HostTensor out(DType::kF32, shape);
  std::copy_n(matrix.f32() + begin * row, (end - begin) * row, out.f32());
  return out;
}

}  // namespace megaslide
