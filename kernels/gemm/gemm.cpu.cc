#include "kernels/gemm/gemm.h"

#include <cstring>

#include "kernels/activation/activation.h"
#include "kernels/activation/gelu_rows.h"
#include "kernels/gemm/onednn.h"
#include "kernels/gemm/operand.h"
#include "kernels/gemm/pieces.h"
#include "kernels/gemm/tile_gemm.h"
#include "kernels/gemm/widened.h"
#include "kernels/instructions_in_use.h"
#include "kernels/modulate/gated_rows.h"
#include "kernels/vector_set.h"

namespace megaslide {
namespace {
using namespace gemm;

const std::byte* at(const void* p, int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(p) + elements * dtype_bytes(dtype);
}
std::byte* at(void* p, int64_t elements, DType dtype) {
  return static_cast<std::byte*>(p) + elements * dtype_bytes(dtype);
}
const uint16_t* bits(const void* p) { return static_cast<const uint16_t*>(p); }
uint16_t* bits(void* p) { return static_cast<uint16_t*>(p); }

void check_dtype(DType dtype) { MS_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "{}", dtype_name(dtype)); }

// Three ways to multiply: bf16 on a tile unit; bf16 without one, on oneDNN or widened; fp32 on oneDNN.
bool on_tiles(DType dtype) { return dtype == DType::kBF16 && tile_unit() != TileUnit::kNone; }
bool widened(DType dtype) { return dtype == DType::kBF16 && !onednn::native_bf16(); }

void run_tiles(Stream& stream, const TileProblem& t) {
  const TilePieces pieces(t.a.rows, t.columns, t.a.width);
  const TileUnit unit = tile_unit();
  stream.parallel_for(pieces.count(), 1, [&](int64_t begin, int64_t end) {
    void* scratch = onednn::thread_scratch(onednn::ScratchSlot::kTile, tile_scratch_bytes());
    for (int64_t i = begin; i < end; ++i) {
      const int64_t m0 = i / pieces.across() * pieces.rows, n0 = i % pieces.across() * pieces.columns;
      tile_piece(unit, t, m0, std::min(m0 + pieces.rows, pieces.m), n0, std::min(n0 + pieces.columns, pieces.n), scratch);
    }
  });
}

// x·Wᵀ or dy·W on tiles.
void tiles(Stream& stream, const void* a, const void* packed, int64_t m, int64_t columns, int64_t width,
           const TileOutput& output) {
  run_tiles(stream, {.a = {.data = bits(a), .stride = width, .rows = m, .width = width},
                     .b = packed,
                     .columns = columns,
                     .output = output});
}

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

// c (rows, columns) = a (rows, width) · packed [+ bias], or += where `accumulate`, on the calling thread.
void packed_product(float* c, const void* a, const void* packed, const void* bias, int64_t rows, int64_t columns,
                    int64_t width, DType dtype, bool accumulate) {
  const int64_t depth = depth_step(width);
  for (int64_t d0 = 0; d0 < width; d0 += depth) {
    const int64_t d = std::min(depth, width - d0);
    const bool first = d0 == 0;
    const auto product = onednn::find_matmul({.m = rows,
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
    product.run(c, dense_columns(a, rows, width, d0, d, dtype), packed, first ? bias : nullptr);
    packed = static_cast<const std::byte*>(packed) + packed_step_bytes(columns, d, dtype_bytes(dtype));
  }
}

// Rows of the two products on the calling thread, without tiles.
void forward_rows(float* y, const void* x, const void* packed, const void* bias, int64_t rows, int64_t n, int64_t k,
                  DType dtype) {
  if (widened(dtype))
    widened_forward(y, static_cast<const bf16*>(x), static_cast<const bf16*>(packed), static_cast<const bf16*>(bias),
                    rows, n, k);
  else
    packed_product(y, x, packed, bias, rows, n, k, dtype, false);
}
void gradient_rows(float* dx, const void* dy, const void* packed, int64_t rows, int64_t n, int64_t k, DType dtype,
                   bool accumulate) {
  if (widened(dtype))
    widened_input_gradient(dx, static_cast<const bf16*>(dy), static_cast<const bf16*>(packed), rows, n, k, accumulate);
  else
    packed_product(dx, dy, packed, nullptr, rows, k, n, dtype, accumulate);
}

// body(begin, rows, the rows of x·Wᵀ + b in the thread's scratch) for pieces of the rows, without tiles.
void each_forward_piece(Stream& stream, const void* x, const void* packed, const void* bias, int64_t m, int64_t n,
                        int64_t k, DType dtype, FunctionRef<void(int64_t begin, int64_t rows, const float* y)> body) {
  stream.parallel_for(m, row_step(m, n, k), [&](int64_t begin, int64_t end) {
    auto* y = static_cast<float*>(onednn::thread_scratch(onednn::ScratchSlot::kResult,
                                                         static_cast<size_t>((end - begin) * n) * sizeof(float)));
    forward_rows(y, at(x, begin * k, dtype), packed, bias, end - begin, n, k, dtype);
    body(begin, end - begin, y);
  });
}

// Both operands are laid out for the tile unit first: dyᵀ as panels, x as B.
void weight_gradient_tiles(Stream& stream, float* dw, void* scratch, const void* dy, const void* x, int64_t m,
                           int64_t n, int64_t k) {
  constexpr int64_t kColumns = 128;  // of dy or x an item: reads 256 bytes of a row at once
  uint16_t *panels = bits(scratch), *b = panels + tile_packed_elements(m, n);
  const int64_t across = (n + kColumns - 1) / kColumns, both = across + (k + kColumns - 1) / kColumns;
  stream.parallel_for(both, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i < across)
        tile_pack_panels(panels, bits(dy), n, n, m, i * (kColumns / 32),
                         std::min((i + 1) * (kColumns / 32), (n + 31) / 32));
      else
        tile_pack(b, bits(x), k, false, m, k, (i - across) * (kColumns / 16),
                  std::min((i - across + 1) * (kColumns / 16), round_up(k, 32) / 16));
    }
  });
  run_tiles(stream, {.a = {.data = panels, .stride = round_up(m, 32), .rows = n, .width = m, .panels = true},
                     .b = b,
                     .columns = k,
                     .output = {.kind = TileResult::kAddFloat, .out = dw, .stride = k}});
}
}  // namespace

bool linear_rows_independent(DType dtype) { return on_tiles(dtype); }

int64_t linear_packed_bytes(int64_t n, int64_t k, DType dtype, PackFor pack_for) {
  check_dtype(dtype);
  const int64_t width = pack_for == PackFor::kForward ? k : n, columns = pack_for == PackFor::kForward ? n : k;
  const int64_t depth = depth_step(width);
  int64_t bytes = 0;
  for (int64_t d0 = 0; d0 < width; d0 += depth)
    bytes += packed_step_bytes(columns, std::min(depth, width - d0), dtype_bytes(dtype));
  return round_up(bytes, 256);
}

int64_t linear_weight_gradient_scratch(int64_t m, int64_t n, int64_t k, DType dtype) {
  if (dtype != DType::kBF16) return 0;
  return 2 * (tile_packed_elements(m, n) + tile_packed_elements(m, k));
}

namespace cpu {

void linear_pack(Stream& stream, void* packed, const void* w, int64_t n, int64_t k, DType dtype, PackFor pack_for) {
  check_dtype(dtype);
  // B of the product: Wᵀ (K,N) or W (N,K).
  const bool forward = pack_for == PackFor::kForward;
  const int64_t width = forward ? k : n, columns = forward ? n : k, depth = depth_step(width);
  if (on_tiles(dtype)) {
    stream.parallel_for(round_up(columns, 32) / 16, 8, [&](int64_t begin, int64_t end) {
      tile_pack(bits(packed), bits(w), k, forward, width, columns, begin, end);
    });
    return;
  }
  if (widened(dtype)) {
    std::memcpy(packed, w, static_cast<size_t>(n * k * dtype_bytes(dtype)));
    return;
  }
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
  if (on_tiles(dtype))
    return tiles(stream, x, packed, m, n, k,
                 {.kind = TileResult::kFloat, .out = y, .stride = n, .bias = bits(bias)});
  stream.parallel_for(m, row_step(m, n, k), [&](int64_t begin, int64_t end) {
    forward_rows(y + begin * n, at(x, begin * k, dtype), packed, bias, end - begin, n, k, dtype);
  });
}

void linear_operand(Stream& stream, void* y, const void* x, const void* packed, const void* bias, int64_t m, int64_t n,
                    int64_t k, DType dtype) {
  check_dtype(dtype);
  if (dtype == DType::kF32) return linear_forward(stream, static_cast<float*>(y), x, packed, bias, m, n, k, dtype);
  if (on_tiles(dtype))
    return tiles(stream, x, packed, m, n, k,
                 {.kind = TileResult::kOperand, .out = y, .stride = n, .bias = bits(bias)});
  each_forward_piece(stream, x, packed, bias, m, n, k, dtype, [&](int64_t begin, int64_t rows, const float* a) {
    narrow_bf16(static_cast<bf16*>(y) + begin * n, a, rows * n);
  });
}

void linear_gelu(Stream& stream, void* y, void* kept, const void* x, const void* packed, const void* bias, int64_t m,
                 int64_t n, int64_t k, DType dtype) {
  check_dtype(dtype);
  if (on_tiles(dtype))
    return tiles(stream, x, packed, m, n, k,
                 {.kind = TileResult::kGelu, .out = y, .stride = n, .bias = bits(bias), .kept = bits(kept)});
  each_forward_piece(stream, x, packed, bias, m, n, k, dtype, [&](int64_t begin, int64_t rows, const float* a) {
    gelu_forward_rows(at(y, begin * n, dtype), kept ? at(kept, begin * n, dtype) : nullptr, a, rows * n, dtype);
  });
}

void linear_gated_add(Stream& stream, float* y, void* kept, const float* residual, const float* gate, const void* x,
                      const void* packed, const void* bias, int64_t m, int64_t n, int64_t k, int64_t first_row,
                      int64_t group_rows, int64_t group_stride, DType dtype) {
  check_dtype(dtype);
  if (on_tiles(dtype))
    return tiles(stream, x, packed, m, n, k,
                 {.kind = TileResult::kGatedAdd,
                  .out = y,
                  .stride = n,
                  .bias = bits(bias),
                  .kept = bits(kept),
                  .residual = residual,
                  .gate = gate,
                  .first_row = first_row,
                  .group_rows = group_rows,
                  .group_stride = group_stride});
  each_forward_piece(stream, x, packed, bias, m, n, k, dtype, [&](int64_t begin, int64_t rows, const float* a) {
    gated_add_rows(y, kept, residual, a, gate, begin, begin + rows, n, first_row, group_rows, group_stride, dtype);
  });
}

void linear_input_gradient(Stream& stream, float* dx, const void* dy, const void* packed, int64_t m, int64_t n,
                           int64_t k, DType dtype, bool accumulate) {
  check_dtype(dtype);
  if (on_tiles(dtype))
    return tiles(stream, dy, packed, m, k, n,
                 {.kind = accumulate ? TileResult::kAddFloat : TileResult::kFloat, .out = dx, .stride = k});
  stream.parallel_for(m, row_step(m, k, n), [&](int64_t begin, int64_t end) {
    gradient_rows(dx + begin * k, at(dy, begin * n, dtype), packed, end - begin, n, k, dtype, accumulate);
  });
}

void linear_gelu_gradient(Stream& stream, void* dx, void* y, float* dbias, float* scratch, const void* dy,
                          const void* packed, const void* kept, int64_t m, int64_t n, int64_t k, DType dtype) {
  check_dtype(dtype);
  if (m == 0) return;
  if (on_tiles(dtype)) {
    tiles(stream, dy, packed, m, k, n,
          {.kind = TileResult::kGeluGradient,
           .out = dx,
           .stride = k,
           .kept = const_cast<uint16_t*>(bits(kept)),
           .out2 = bits(y),
           .sums = scratch});
  } else {
    for_row_pieces(stream, m, m, k, scratch, [&](int64_t, int64_t begin, int64_t end, float* sums) {
      const int64_t rows = end - begin, start = begin * k;
      auto* g = static_cast<float*>(
          onednn::thread_scratch(onednn::ScratchSlot::kResult, static_cast<size_t>(rows * k) * sizeof(float)));
      gradient_rows(g, at(dy, begin * n, dtype), packed, rows, n, k, dtype, false);
      gelu_backward_rows(at(dx, start, dtype), at(y, start, dtype), sums, g, at(kept, start, dtype), rows, k, dtype);
    });
  }
  add_row_pieces(stream, dbias, 0, m, m, k, 0, k, scratch);
}

void linear_weight_gradient(Stream& stream, float* dw, void* scratch, const void* dy, const void* x, int64_t m,
                            int64_t n, int64_t k, DType dtype) {
  check_dtype(dtype);
  if (m == 0) return;
  if (on_tiles(dtype)) return weight_gradient_tiles(stream, dw, scratch, dy, x, m, n, k);
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

std::string instructions_in_use() {
  const TileUnit unit = tile_unit();
  return fmt::format("{} vectors, {} tiles, oneDNN {}", vector_sets().front(),
                     unit == TileUnit::kAmx ? "amx" : unit == TileUnit::kAvx512 ? "avx512_bf16" : "no", onednn::instruction_set());
}

}  // namespace megaslide
