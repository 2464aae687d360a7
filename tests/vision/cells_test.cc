// Windows, maxima and group norms of small images against their plain twins.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/philox.h"
#include "kernels/cells/cells.h"

namespace megaslide {
namespace {

std::vector<float> noise(int64_t n, uint64_t seed, float offset = 0) {
  std::vector<float> v(static_cast<size_t>(n));
  const Random random(seed, RandomPurpose::kTest);
  for (size_t i = 0; i < v.size(); ++i) v[i] = offset + static_cast<float>(random.normal(0, i));
  return v;
}

std::vector<CellWindows> windows() {
  std::vector<CellWindows> all = {same_windows(3, 32, 32, 3, 7, 2), same_windows(2, 16, 16, 32, 3, 2), same_windows(2, 8, 8, 5, 3, 1),
                                  same_windows(1, 5, 9, 2, 4, 3),   same_windows(2, 1, 1, 7, 3, 2)};
  // Windows that lie beside the image altogether.
  all.push_back({.samples = 2, .height = 3, .width = 4, .channels = 3, .side = 2, .stride = 3, .before_y = 4, .before_x = 3, .rows = 4, .columns = 5});
  return all;
}

TEST(Cells, SameWindowsAreTensorFlows) {
  const CellWindows root = same_windows(1, 32, 32, 3, 7, 2), pool = same_windows(1, 16, 16, 64, 3, 2), square = same_windows(1, 8, 8, 64, 3, 1);
  EXPECT_EQ((std::vector{root.before_y, root.before_x, root.rows, root.columns}), (std::vector<int64_t>{2, 2, 16, 16}));
  EXPECT_EQ((std::vector{pool.before_y, pool.before_x, pool.rows, pool.columns}), (std::vector<int64_t>{0, 0, 8, 8}));
  EXPECT_EQ((std::vector{square.before_y, square.before_x, square.rows, square.columns}), (std::vector<int64_t>{1, 1, 8, 8}));
}

TEST(Cells, UnfoldAndMaximumEqualTheirTwins) {
  for (const CellWindows& w : windows()) {
    const std::vector<float> in = noise(w.samples * w.height * w.width * w.channels, 7);
    std::vector<float> want(static_cast<size_t>(w.results() * w.window())), largest(static_cast<size_t>(w.results() * w.channels));
    reference::unfold_cells(want.data(), in.data(), w);
    reference::max_pool_cells(largest.data(), in.data(), w);
    for (const int threads : {1, 3}) {
      InlineStream stream(threads);
      std::vector<float> got(want.size(), NAN), got_largest(largest.size(), NAN);
      unfold_cells(stream, got.data(), in.data(), w);
      max_pool_cells(stream, got_largest.data(), in.data(), w);
      EXPECT_EQ(got, want);
      EXPECT_EQ(got_largest, largest);
    }
  }
}

TEST(Cells, GroupNormEqualsItsTwin) {
  const GroupNormShape shapes[] = {{3, 64, 64, 32}, {2, 16, 256, 32}, {5, 1, 6, 3}, {1, 9, 1024, 1}};
  for (const GroupNormShape& s : shapes) {
    const int64_t n = s.samples * s.cells * s.channels;
    const std::vector<float> x = noise(n, 1, 3), addend = noise(n, 2), weight = noise(s.channels, 3), bias = noise(s.channels, 4);
    for (const bool relu : {false, true})
      for (const float* add : {static_cast<const float*>(nullptr), addend.data()}) {
        std::vector<float> want(x.size()), got(x), threads(x.size());
        reference::group_norm_forward(want.data(), x.data(), add, weight.data(), bias.data(), s, 1e-4, relu);
        InlineStream one(1), many(4);
        group_norm_forward(one, got.data(), got.data(), add, weight.data(), bias.data(), s, 1e-4f, relu);
        group_norm_forward(many, threads.data(), x.data(), add, weight.data(), bias.data(), s, 1e-4f, relu);
        EXPECT_EQ(got, threads);
        // Values of about 3 rounded to 2^-23 of them, a deviation of one, weights up to 4: 2e-6; groups of two values may have a
        // smaller deviation, which enlarges it.
        for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-5) << i;
      }
  }
}

TEST(Cells, GroupNormOfFlatImagesIsTheBias) {
  const GroupNormShape s{2, 16, 4, 2};
  const std::vector<float> x(128, 0.3f), weight(4, 5.0f), bias = {1, -2, 3, -4};
  std::vector<float> y(128);
  InlineStream stream(1);
  group_norm_forward(stream, y.data(), x.data(), nullptr, weight.data(), bias.data(), s, 1e-6f, false);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], bias[i % 4]);
}

}  // namespace
}  // namespace megaslide
