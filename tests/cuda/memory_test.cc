#include "kernels/memory/memory.h"

#include <cstring>

#include "kernels/memory/row_sums_cuda.h"
#include "tests/cuda/schedules.h"

namespace megaslide {
namespace {

using namespace testing_support;

constexpr int64_t kSizes[] = {0, 1, 3, 4, 31, 1024, 4099};

TEST(CudaMemory, ZerosAndCopiesExactlyTheBytesAskedFor) {
  for (const int64_t bytes : {0, 1, 15, 16, 17, 4096, 8207})
    for (const int64_t shift : {0, 4}) {
      const auto n = static_cast<int64_t>(bytes / 4 + 8);
      const std::vector<float> before = normals(n, 1), source = normals(n, 2);
      const Results r = in_every_schedule([&](Stream& stream) {
        Array zeroed(DType::kF32, before), copied(DType::kF32, before), in(DType::kF32, source);
        cuda::fill_zero(stream, static_cast<std::byte*>(zeroed.data()) + shift, bytes);
        cuda::copy_memory(stream, static_cast<std::byte*>(copied.data()) + shift, static_cast<std::byte*>(in.data()) + shift, bytes);
        return Results{zeroed.values(), copied.values()};
      });
      std::vector<float> expected_zeros = before, expected_copy = before;
      const auto byte = [shift](std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()) + shift; };
      std::memset(byte(expected_zeros), 0, static_cast<size_t>(bytes));
      std::memcpy(byte(expected_copy), reinterpret_cast<const std::byte*>(source.data()) + shift, static_cast<size_t>(bytes));
      EXPECT_EQ(r[0], expected_zeros) << bytes;
      EXPECT_EQ(r[1], expected_copy) << bytes;
    }
}

TEST(CudaMemory, AddsAndWidensAsTheCpuDoes) {
  for (const int64_t n : kSizes)
    for (const int shift : {0, 1}) {
      const std::vector<float> a = normals(n, 1), b = normals(n, 2);
      for (const DType dtype : kBothTypes) {
        const Results r = in_every_schedule([&](Stream& stream) {
          Array sum(DType::kF32, a, shift), x(DType::kF32, b, shift), narrow(dtype, b, shift), wide = Array::empty(DType::kF32, n, shift);
          cuda::add_in_place(stream, sum.floats(), x.floats(), n);
          cuda::widen_float(stream, wide.floats(), narrow.data(), n, dtype);
          return Results{sum.values(), wide.values()};
        });
        for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(r[0][i], a[i] + b[i]) << i;
        EXPECT_EQ(r[1], as_stored(dtype, b));
      }
    }
}

// fp64 sums of floats: the order shows in no bit of an fp32 result, but for ties.
TEST(CudaMemory, RowPiecesAddUp) {
  struct Case {
    int64_t groups, group_rows, width, first, columns, stride;
  };
  for (const Case& c : {Case{1, 1, 1, 0, 1, 0}, {2, 65, 40, 3, 37, 50}, {3, 1000, 7, 0, 7, 7}, {1, 64, 33, 32, 1, 0}}) {
    const int64_t rows = c.groups * c.group_rows;
    const std::vector<float> scratch = normals(row_sum_scratch(rows, c.group_rows, c.width), 1),
        before = normals(c.groups * std::max(c.stride, c.columns), 2);
    const Results r = in_every_schedule([&](Stream& stream) {
      Array out(DType::kF32, before), in(DType::kF32, scratch);
      cuda::add_piece_sums(stream, out.floats(), c.stride, rows, c.group_rows, c.width, c.first, c.columns, in.floats());
      return Results{out.values()};
    });
    std::vector<float> expected = before;
    InlineStream stream;
    add_row_pieces(stream, expected.data(), c.stride, rows, c.group_rows, c.width, c.first, c.columns, scratch.data());
    expect_close(r[0], expected, 0x1p-24, "sums");
  }
}

}  // namespace
}  // namespace megaslide
