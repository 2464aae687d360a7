// A linear layer of a network at hand: y = x·Wᵀ + b with the weights in the layout that products want.
#pragma once
#include <cstdint>

#include "kernels/stream.h"
#include "tensor/tensor.h"

namespace megaslide {

class PackedLinear {
 public:
  PackedLinear() = default;
  // w: F32 (N,K); bias: F32 (N), empty for none. compute: kF32, or kBF16, to which weights and bias are rounded.
  PackedLinear(Stream& stream, const HostTensor& w, const HostTensor& bias, DType compute);

  int64_t outputs() const { return n_; }
  int64_t inputs() const { return k_; }
  // x: (rows,K) of the compute type. y: fp32, or an operand of the compute type.
  void forward(Stream& stream, float* y, const void* x, int64_t rows) const;
  void operand(Stream& stream, void* y, const void* x, int64_t rows) const;
  // y (rows,N) fp32 += x·Wᵀ + b.
  void add(Stream& stream, float* y, const void* x, int64_t rows) const;

 private:
  const void* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
  int64_t n_ = 0, k_ = 0;
  DType compute_ = DType::kF32;
  HostTensor packed_, bias_;
};

// The transpose of an F32 matrix: for weights that are published for a product from the right.
HostTensor transposed(const HostTensor& matrix);
// Rows [begin, end) of an F32 matrix, or elements of a vector.
HostTensor rows_of(const HostTensor& matrix, int64_t begin, int64_t end);

}  // namespace megaslide
