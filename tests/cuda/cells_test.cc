// Windows, maxima and group norms of small images, as CUDA kernels.
#include "kernels/cells/cells.h"

#include <array>

#include "tests/cuda/schedules.h"

namespace megaslide {
namespace {

using namespace testing_support;

// Channels that quads divide and that they do not, more than a warp has lanes, windows that lie beside the image altogether.
std::vector<CellWindows> windows() {
  std::vector<CellWindows> all = {same_windows(0, 4, 4, 3, 3, 1), same_windows(1, 12, 10, 3, 7, 2), same_windows(2, 6, 6, 32, 3, 2), same_windows(2, 5, 3, 37, 3, 1),
                                  same_windows(2, 1, 1, 4, 3, 2)};
  all.push_back({.samples = 2, .height = 3, .width = 4, .channels = 3, .side = 2, .stride = 3, .before_y = 4, .before_x = 3, .rows = 4, .columns = 5});
  return all;
}

TEST(CudaCells, UnfoldAndMaximumEqualTheirTwins) {
  for (const CellWindows& w : windows())
    for (const int shift : {0, 1}) {
      const std::vector<float> in = normals(w.samples * w.height * w.width * w.channels, 1);
      std::vector<float> unfolded(static_cast<size_t>(w.results() * w.window())), largest(static_cast<size_t>(w.results() * w.channels));
      reference::unfold_cells(unfolded.data(), in.data(), w);
      reference::max_pool_cells(largest.data(), in.data(), w);
      const Results r = in_every_schedule([&](Stream& stream) {
        Array from(DType::kF32, in, shift), rows = Array::empty(DType::kF32, w.results() * w.window(), shift), pooled = Array::empty(DType::kF32, w.results() * w.channels, shift);
        cuda::unfold_cells(stream, rows.floats(), from.floats(), w);
        cuda::max_pool_cells(stream, pooled.floats(), from.floats(), w);
        return Results{rows.values(), pooled.values()};
      });
      EXPECT_EQ(r[0], unfolded);
      EXPECT_EQ(r[1], largest);
    }
}

TEST(CudaCells, GroupNormEqualsItsTwin) {
  // More groups than a block has warps and fewer, groups of one value and of more than a warp has lanes.
  for (const GroupNormShape& s : {GroupNormShape{0, 4, 4, 2}, {3, 9, 64, 32}, {2, 16, 80, 5}, {5, 1, 6, 3}, {1, 3, 1024, 1}}) {
    const int64_t n = s.samples * s.cells * s.channels;
    const std::vector<float> x = normals(n, 1, 1, 3), addend = normals(n, 2), weight = normals(s.channels, 3), bias = normals(s.channels, 4);
    for (const bool relu : {false, true})
      for (const bool added : {false, true}) {
        const Results r = in_every_schedule([&](Stream& stream) {
          Array in(DType::kF32, x), more(DType::kF32, addend), w(DType::kF32, weight), b(DType::kF32, bias), y = Array::empty(DType::kF32, n);
          cuda::group_norm_forward(stream, y.floats(), in.floats(), added ? more.floats() : nullptr, w.floats(), b.floats(), s, 1e-4f, relu);
          cuda::group_norm_forward(stream, in.floats(), in.floats(), added ? more.floats() : nullptr, w.floats(), b.floats(), s, 1e-4f, relu);
          return Results{y.values(), in.values()};
        });
        EXPECT_EQ(r[1], r[0]);  // in place
        std::vector<float> want(x.size());
        reference::group_norm_forward(want.data(), x.data(), added ? addend.data() : nullptr, weight.data(), bias.data(), s, static_cast<double>(1e-4f), relu);
        // Values of about 3 rounded to 2^-23 of them, a deviation of one, weights up to 4: 2e-6; groups of two values may have a smaller
        // deviation, which enlarges it.
        for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(r[0][i], want[i], 2e-5) << i;
      }
  }
}

// In place of what is added, and images without a deviation.
TEST(CudaCells, GroupNormOfFlatImagesIsTheBiasAndWhatIsAdded) {
  const GroupNormShape s{2, 16, 4, 2};
  const Results r = in_every_schedule([&](Stream& stream) {
    Array x(DType::kF32, std::vector<float>(128, 0.3f)), y(DType::kF32, std::vector<float>(128, 0.5f)), w(DType::kF32, std::vector<float>(4, 5)), b(DType::kF32, {1, -2, 3, -4});
    cuda::group_norm_forward(stream, y.floats(), x.floats(), y.floats(), w.floats(), b.floats(), s, 1e-6f, false);
    return Results{y.values()};
  });
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(r[0][i], (std::array<float, 4>{1.5f, -1.5f, 3.5f, -3.5f})[i % 4]);
}

}  // namespace
}  // namespace megaslide
