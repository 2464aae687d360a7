// A linear layer of a network at hand: y = x·Wᵀ + b with the weights in the layout that products want.
#pragma once
#include <cstdint>

#include "kernels/activation/mlp_activation.h"
#include "tensor/tensor.h"
#include "vision/place.h"

namespace megaslide {

// How products are made: fp32, fp32 on the tile unit by parts (kernels/gemm/split_linear.h), or bf16 operands.
enum class Products { kFloat, kSplit, kBf16 };
// The faster of the two where compute is kF32. compute: kF32 or kBF16.
Products products_for(const Place& place, DType compute);
inline DType dtype_of(Products p) { return p == Products::kBf16 ? DType::kBF16 : DType::kF32; }

// What products read, of rows in dtype_of(p): the rows themselves, or their parts, written to `parts` of parts_bytes, which are 0 where
// there are none.
int64_t parts_bytes(Products p, int64_t rows, int64_t width);
const void* operand_of(const Place& place, Products p, const void* rows_in, int64_t rows, int64_t width, void* parts);

class PackedLinear {
 public:
  PackedLinear() = default;
  // w: F32 (N,K); bias: F32 (N), empty for none; both are rounded to bf16 for kBf16.
  PackedLinear(const Place& place, const HostTensor& w, const HostTensor& bias, Products products);

  int64_t outputs() const { return n_; }
  int64_t inputs() const { return k_; }
  // x: what operand_of gave for (rows,K). y: fp32, or in dtype_of the products.
  void forward(const Place& place, float* y, const void* x, int64_t rows) const;
  void narrow_forward(const Place& place, void* y, const void* x, int64_t rows) const;
  // kSplit: the parts of f of the result, the operand of the product that follows.
  void activated_parts(const Place& place, void* y_parts, const void* x, int64_t rows, MlpActivation f) const;
  // y (rows,N) fp32 += x·Wᵀ + b.
  void add(const Place& place, float* y, const void* x, int64_t rows) const;

 private:
  const void* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
  int64_t n_ = 0, k_ = 0;
  Products products_ = Products::kFloat;
  PlacedTensor packed_, bias_;
};

// The transpose of an F32 matrix: for weights that are published for a product from the right.
HostTensor transposed(const HostTensor& matrix);
// Rows [begin, end) of an F32 matrix, or elements of a vector.
HostTensor rows_of(const HostTensor& matrix, int64_t begin, int64_t end);

}  // namespace megaslide
