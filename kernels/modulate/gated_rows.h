// Gated additions of rows at hand, on the calling thread: for kernels that make the rows themselves.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace megaslide {

// Rows [begin, end) as gated_add_forward (modulate.h) makes them; a holds these rows alone, the others all rows. Row r reads
// the gate of group (first_row + r) / group_rows.
void gated_add_rows(float* y, void* a_kept, const float* x, const float* a, const float* gate, int64_t begin,
                    int64_t end, int64_t width, int64_t first_row, int64_t group_rows, int64_t group_stride, DType dtype);

}  // namespace megaslide
