// GELU of rows at hand, on the calling thread: for kernels that make the rows themselves.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace megaslide {

// As gelu_forward and gelu_backward (activation.h); sums (width) += Σ_rows of the unrounded dx.
void gelu_forward_rows(void* y, void* x_kept, const float* x, int64_t n, DType dtype);
void gelu_backward_rows(void* dx, void* y, float* sums, const float* dy, const void* x_kept, int64_t rows,
                        int64_t width, DType dtype);

}  // namespace megaslide
