#include "vision/packed_linear.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/split_linear.h"

namespace megaslide {
namespace {

// Values of the processor's at a place, rounded to `dtype`.
PlacedTensor in_dtype(const Place& place, const HostTensor& t, DType dtype) {
  const PlacedInput values(place, t);
  PlacedTensor out(place, dtype, t.shape());
  cast_operand(place.stream(), out.data(), values.f32(), t.elements(), dtype);
  return out;
}

}  // namespace

Products products_for(const Place& place, DType compute) {
  MS_CHECK(compute == DType::kF32 || compute == DType::kBF16, "{}", dtype_name(compute));
  if (compute == DType::kBF16) return Products::kBf16;
  return split_linear_serves(place.stream()) ? Products::kSplit : Products::kFloat;
}

int64_t parts_bytes(Products p, int64_t rows, int64_t width) { return p == Products::kSplit ? split_operand_bytes(rows, width) : 0; }

const void* operand_of(const Place& place, Products p, const void* rows_in, int64_t rows, int64_t width, void* parts) {
  if (p != Products::kSplit) return rows_in;
  split_operand(place.stream(), parts, static_cast<const float*>(rows_in), rows, width);
  return parts;
}

PackedLinear::PackedLinear(const Place& place, const HostTensor& w, const HostTensor& bias, Products products) : products_(products) {
  MS_CHECK(w.shape().size() == 2 && (bias.empty() || bias.elements() == w.shape()[0]), "{} and {}", to_string(w.shape()), to_string(bias.shape()));
  n_ = w.shape()[0];
  k_ = w.shape()[1];
  const DType dtype = dtype_of(products);
  packed_ = PlacedTensor(place, DType::kU8, {products == Products::kSplit ? split_linear_packed_bytes(n_, k_) : linear_packed_bytes(n_, k_, dtype, PackFor::kForward)});
  if (products == Products::kSplit) {
    split_linear_pack(place.stream(), packed_.data(), w.f32(), n_, k_);
  } else if (dtype == DType::kF32) {
    linear_pack(place.stream(), packed_.data(), PlacedInput(place, w).f32(), n_, k_, dtype, PackFor::kForward);
  } else {
    linear_pack(place.stream(), packed_.data(), in_dtype(place, w, dtype).data(), n_, k_, dtype, PackFor::kForward);
  }
  if (!bias.empty()) bias_ = in_dtype(place, bias, dtype);
  place.finish();  // the weights may go
}

void PackedLinear::forward(const Place& place, float* y, const void* x, int64_t rows) const {
  if (products_ == Products::kSplit)
    split_linear_forward(place.stream(), y, x, packed_.data(), static_cast<const float*>(bias()), rows, n_, k_, false);
  else
    linear_forward(place.stream(), y, x, packed_.data(), bias(), rows, n_, k_, dtype_of(products_));
}

void PackedLinear::narrow_forward(const Place& place, void* y, const void* x, int64_t rows) const {
  if (products_ == Products::kBf16)
    linear_operand(place.stream(), y, x, packed_.data(), bias(), rows, n_, k_, DType::kBF16);
  else
    forward(place, static_cast<float*>(y), x, rows);
}

void PackedLinear::activated_parts(const Place& place, void* y_parts, const void* x, int64_t rows, MlpActivation f) const {
  MS_CHECK(products_ == Products::kSplit, "of products by parts alone");
  split_linear_activation(place.stream(), y_parts, x, packed_.data(), static_cast<const float*>(bias()), rows, n_, k_, f);
}

void PackedLinear::add(const Place& place, float* y, const void* x, int64_t rows) const {
  if (products_ == Products::kSplit)
    split_linear_forward(place.stream(), y, x, packed_.data(), static_cast<const float*>(bias()), rows, n_, k_, true);
  else
    linear_gated_add(place.stream(), y, nullptr, y, nullptr, x, packed_.data(), bias(), rows, n_, k_, 0, rows, 0, dtype_of(products_));
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
