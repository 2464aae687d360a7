#include "kernels/gemm/gemm.h"

#include <cstring>

#include "kernels/gemm/onednn.h"
#include "kernels/gemm/pieces.h"
#include "kernels/gemm/widened.h"

namespace megaslide {
namespace {
using namespace gemm;

const std::byte* at(const void* p, int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(p) + elements * dtype_bytes(dtype);
}

void check_dtype(DType dtype) { MS_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "{}", dtype_name(dtype)); }

bool widened(DType dtype) { return dtype == DType::kBF16 && !onednn::native_bf16(); }

// Rows [0, rows) of an operand's columns [d0, d0+depth), made dense where they are not: oneDNN's fast products take
// dense operands only, and a copy costs 1 part in `columns` of the product.
const void* dense_columns(const void* a, int64_t rows, int64_t width, int64_t d0, int64_t depth, DType dtype) {
  if (depth == width) return a;
  const auto bytes = static_cast<size_t>(depth * dtype_bytes(dtype));
  auto* out =
      static_cast<std::byte*>(onednn::thread_scratch(onednn::ScratchSlot::kA, bytes * static_cast<size_t>(rows)));
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(out + static_cast<size_t>(r) * bytes, at(a, r * width + d0, dtype), bytes);
  return out;
}

// c (m, columns) = a (m, width) · packed [+ bias], or += where `accumulate`.
void packed_product(Stream& stream, float* c, const void* a, const void* packed, const void* bias, int64_t m,
                    int64_t columns, int64_t width, DType dtype, bool accumulate) {
  const int64_t rows = row_step(m, columns, width), depth = depth_step(width);
  stream.parallel_for(m, rows, [&](int64_t begin, int64_t end) {
    const void* b = packed;
    for (int64_t d0 = 0; d0 < width; d0 += depth) {
      const int64_t d = std::min(depth, width - d0);
      const bool first = d0 == 0;
      const auto product = onednn::find_matmul({.m = end - begin,
                                                .n = columns,
                                                .k = d,
                                                .a_row = d,
                                                .a_column = 1,
                                                .b_row = 0,
                                                .b_column = 0,
                                                .c_row = columns,
                                                .dtype = dtype,
                                                .bias = first && bias != nullptr,
                                                .accumulate = accumulate || !first});
      product.run(c + begin * columns, dense_columns(at(a, begin * width, dtype), end - begin, width, d0, d, dtype), b,
                  first ? bias : nullptr);
      b = static_cast<const std::byte*>(b) + packed_step_bytes(columns, d, dtype_bytes(dtype));
    }
  });
}
}  // namespace

int64_t linear_packed_bytes(int64_t n, int64_t k, DType dtype, PackFor pack_for) {
  check_dtype(dtype);
  const int64_t width = pack_for == PackFor::kForward ? k : n, columns = pack_for == PackFor::kForward ? n : k;
  const int64_t depth = depth_step(width);
  int64_t bytes = 0;
  for (int64_t d0 = 0; d0 < width; d0 += depth)
    bytes += packed_step_bytes(columns, std::min(depth, width - d0), dtype_bytes(dtype));
  return round_up(bytes, 256);
}

namespace cpu {

void linear_pack(Stream& stream, void* packed, const void* w, int64_t n, int64_t k, DType dtype, PackFor pack_for) {
  check_dtype(dtype);
  if (widened(dtype)) {
    std::memcpy(packed, w, static_cast<size_t>(n * k * dtype_bytes(dtype)));
    return;
  }
  // B of the product: Wᵀ (K,N) or W (N,K).
  const bool forward = pack_for == PackFor::kForward;
  const int64_t width = forward ? k : n, columns = forward ? n : k, depth = depth_step(width);
  const int64_t b_row = forward ? 1 : k, b_column = forward ? k : 1;
  for (int64_t d0 = 0; d0 < width; d0 += depth) {
    const int64_t d = std::min(depth, width - d0), reserved = packed_step_bytes(columns, d, dtype_bytes(dtype));
    const auto packing = onednn::find_packing(d, columns, b_row, b_column, dtype);
    MS_CHECK(packing.bytes() <= reserved, "{} > {}", packing.bytes(), reserved);
    const void* b = at(w, d0 * b_row, dtype);
    stream.parallel_for(packing.pieces(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) packing.run_piece(packed, b, i);
    });
    packed = static_cast<std::byte*>(packed) + reserved;
  }
}

void linear_forward(Stream& stream, float* y, const void* x, const void* packed, const void* bias, int64_t m, int64_t n,
                    int64_t k, DType dtype) {
  check_dtype(dtype);
  if (widened(dtype)) return widened_forward(stream, y, x, packed, bias, m, n, k);
  packed_product(stream, y, x, packed, bias, m, n, k, dtype, false);
}

void linear_input_gradient(Stream& stream, float* dx, const void* dy, const void* packed, int64_t m, int64_t n,
                           int64_t k, DType dtype, bool accumulate) {
  check_dtype(dtype);
  if (widened(dtype)) return widened_input_gradient(stream, dx, dy, packed, m, n, k, accumulate);
  packed_product(stream, dx, dy, packed, nullptr, m, k, n, dtype, accumulate);
}

void linear_weight_gradient(Stream& stream, float* dw, const void* dy, const void* x, int64_t m, int64_t n, int64_t k,
                            DType dtype) {
  check_dtype(dtype);
  if (m == 0) return;
  const auto [rows, columns] = weight_piece(m, n, k);
  const int64_t across = (k + columns - 1) / columns, down = (n + rows - 1) / rows;
  stream.parallel_for(across * down, 1, [&, r = rows, c = columns](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n0 = i / across * r, k0 = i % across * c, pn = std::min(r, n - n0), pk = std::min(c, k - k0);
      float* out = dw + n0 * k + k0;
      const void *a = at(dy, n0, dtype), *b = at(x, k0, dtype);
      if (dtype == DType::kF32) {
        onednn::sgemm(true, false, pn, pk, m, static_cast<const float*>(a), n, static_cast<const float*>(b), k, 1, out,
                      k);
      } else if (widened(dtype)) {
        widened_weight_gradient(out, static_cast<const bf16*>(a), static_cast<const bf16*>(b), m, n, k, pn, pk);
      } else {
        // Plain strided operands: at 320 rows and more oneDNN packs them itself at no more than what a transposed copy
        // costs.
        onednn::find_matmul({.m = pn,
                             .n = pk,
                             .k = m,
                             .a_row = 1,
                             .a_column = n,
                             .b_row = k,
                             .b_column = 1,
                             .c_row = k,
                             .dtype = dtype,
                             .bias = false,
                             .accumulate = true})
            .run(out, a, b);
      }
    }
  });
}

}  // namespace cpu
}  // namespace megaslide
