// Operands of the products: conversions and the sum of columns, in SIMD.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace megaslide::gemm {

void widen_bf16(float* out, const bf16* in, int64_t n);  // on the calling thread
void narrow_bf16(bf16* out, const float* in, int64_t n);  // the same bits as to_bf16
// db (columns) += the sum over m rows, in blocks of 64 rows, of dy; rows `stride` apart.
void add_column_sums(float* db, const float* dy, int64_t m, int64_t columns, int64_t stride);

}  // namespace megaslide::gemm
