#include "vision/packed_linear.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/gemm/gemm.h"

namespace megaslide {
namespace {

HostTensor in_dtype(Stream& stream, const HostTensor& t, DType dtype) {
  HostTensor out(dtype, t.shape());
  cast_operand(stream, out.data(), t.f32(), t.elements(), dtype);
  return out;
}

}  // namespace

PackedLinear::PackedLinear(Stream& stream, const HostTensor& w, const HostTensor& bias, DType compute) : compute_(compute) {
  MS_CHECK(w.shape().size() == 2 && (bias.empty() || bias.elements() == w.shape()[0]), "{} and {}", to_string(w.shape()), to_string(bias.shape()));
  n_ = w.shape()[0];
  k_ = w.shape()[1];
  packed_ = HostTensor(DType::kU8, {linear_packed_bytes(n_, k_, compute, PackFor::kForward)});
  if (compute == DType::kF32) {
    linear_pack(stream, packed_.data(), w.data(), n_, k_, compute, PackFor::kForward);
  } else {
    const HostTensor narrow = in_dtype(stream, w, compute);
    linear_pack(stream, packed_.data(), narrow.data(), n_, k_, compute, PackFor::kForward);
  }
  if (!bias.empty()) bias_ = in_dtype(stream, bias, compute);
}

void PackedLinear::forward(Stream& stream, float* y, const void* x, int64_t rows) const {
  linear_forward(stream, y, x, packed_.data(), bias(), rows, n_, k_, compute_);
}

void PackedLinear::operand(Stream& stream, void* y, const void* x, int64_t rows) const {
  linear_operand(stream, y, x, packed_.data(), bias(), rows, n_, k_, compute_);
}

void PackedLinear::add(Stream& stream, float* y, const void* x, int64_t rows) const {
  linear_gated_add(stream, y, nullptr, y, nullptr, x, packed_.data(), bias(), rows, n_, k_, 0, rows, 0, compute_);
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
