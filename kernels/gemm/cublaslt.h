// All that this project asks of cuBLASLt: matrix products queued on a stream.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/stream.h"
#include "tensor/dtype.h"

namespace megaslide::cublaslt {

// Column-major: D (m,n) = op(A) (m,k) · op(B) (k,n), plus a bias for each of D's rows, plus D. Matrices are dense. `in`
// and `out` are kBF16 or kF32; bf16 results need bf16 operands. The bias has the results' type. `in` may be kF8_E4M3, of A
// transposed and B as it is: then m and k are multiples of 16, all pointers of 16 bytes, and the bias is bf16.
struct Shape {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  DType in, out;
  bool bias = false, accumulate = false;
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

// Of operands in 8 bits, in device memory: A stands for a·A, B for b·B.
struct Scales {
  const float *a = nullptr, *b = nullptr;
};

// Throws Error that names the call, the shape and cuBLASLt's status.
void multiply(Stream& stream, const Shape& shape, void* d, const void* a, const void* b, const void* bias = nullptr,
              const Scales& scales = {});

// The part of the workspace that is not cuBLASLt's.
struct Space {
  std::byte* data;
  int64_t bytes;
};
Space own_space();

}  // namespace megaslide::cublaslt
