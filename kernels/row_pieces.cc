#include "kernels/row_pieces.h"

#include <cstring>

namespace megaslide {

void for_row_pieces(Stream& stream, int64_t rows, int64_t group_rows, int64_t width, float* scratch,
                    FunctionRef<void(int64_t, int64_t, int64_t, float*)> body) {
  const int64_t pieces = (group_rows + kPieceRows - 1) / kPieceRows;  // a group
  stream.parallel_for(row_pieces(rows, group_rows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      float* sums = scratch + p * width;
      std::memset(sums, 0, static_cast<size_t>(width) * sizeof(float));
      const int64_t group = p / pieces, first = p % pieces * kPieceRows;
      const int64_t last = std::min(group_rows, first + kPieceRows);
      body(group, group * group_rows + first, group * group_rows + last, sums);
    }
  });
}

void add_row_pieces(Stream& stream, float* out, int64_t out_stride, int64_t rows, int64_t group_rows, int64_t width,
                    int64_t first, int64_t columns, const float* scratch) {
  constexpr int64_t kColumns = 256;
  const int64_t pieces = (group_rows + kPieceRows - 1) / kPieceRows, blocks = (columns + kColumns - 1) / kColumns;
  stream.parallel_for(rows / group_rows * blocks, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / blocks, c0 = i % blocks * kColumns, n = std::min(kColumns, columns - c0);
      double sum[kColumns] = {};
      for (int64_t p = 0; p < pieces; ++p) {
        const float* part = scratch + (group * pieces + p) * width + first + c0;
        for (int64_t c = 0; c < n; ++c) sum[c] += static_cast<double>(part[c]);
      }
      float* to = out + group * out_stride + c0;
      for (int64_t c = 0; c < n; ++c) to[c] += static_cast<float>(sum[c]);
    }
  });
}

}  // namespace megaslide
