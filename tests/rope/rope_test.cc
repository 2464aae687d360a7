#include "kernels/rope/rope.h"

#include <cmath>

#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using namespace testing_support;

constexpr float kEps = 1e-6F;

struct Case {
  int64_t batch;
  RopeGrid grid;
};
// Head widths of Wan, of the tiny preset, of the golden model, and the smallest.
const Case kCases[] = {{1, {3, 4, 5, 2, 128}}, {2, {5, 4, 3, 4, 48}}, {2, {3, 4, 6, 2, 12}},
                       {1, {2, 3, 2, 3, 2}},   {1, {1, 1, 1, 1, 64}}, {1, {4, 5, 4, 1, 34}}};

class Rope : public ::testing::TestWithParam<Case> {
 protected:
  RopeGrid grid = GetParam().grid;
  int64_t rows = GetParam().batch * grid.frames * grid.height * grid.width, width = grid.heads * grid.head_dim;
  size_t n = static_cast<size_t>(rows * width);
  std::vector<float> x = normals(rows * width, 1, 3), gain = normals(width, 2, 0.3, 1);
  std::vector<float> table(InlineStream& stream) const {
    std::vector<float> t(static_cast<size_t>(rope_table_elements(grid)));
    rope_table(stream, t.data(), grid);
    return t;
  }
};

TEST_P(Rope, ForwardAgreesWithTheTwin) {
  for (bool rotate : {true, false}) {
    std::vector<float> expected(n);
    reference::rms_rope_forward(expected.data(), x.data(), gain.data(), rotate, grid, rows, kEps);
    for_each_target([&] {
      InlineStream stream(2);
      const std::vector<float> angles = table(stream);
      std::vector<float> y(n), rstd(static_cast<size_t>(rows)), in_place = x;
      const float* t = rotate ? angles.data() : nullptr;
      rms_rope_forward(stream, y.data(), rstd.data(), x.data(), gain.data(), t, grid, rows, kEps, DType::kF32);
      EXPECT_LT(relative_error(y, expected), kFp32);
      rms_rope_forward(stream, in_place.data(), nullptr, in_place.data(), gain.data(), t, grid, rows, kEps,
                       DType::kF32);
      EXPECT_EQ(in_place, y);
    });
  }
}

TEST_P(Rope, Bf16) {
  const std::vector<float> narrow_x = widened(rounded(x));
  std::vector<float> expected(n);
  reference::rms_rope_forward(expected.data(), narrow_x.data(), gain.data(), true, grid, rows, kEps);
  for_each_target([&] {
    InlineStream stream(2);
    const std::vector<float> angles = table(stream);
    const std::vector<bf16> narrow = rounded(x);
    std::vector<bf16> y(n), in_place = narrow;
    std::vector<float> rstd(static_cast<size_t>(rows));
    rms_rope_forward(stream, y.data(), rstd.data(), narrow.data(), gain.data(), angles.data(), grid, rows, kEps,
                     DType::kBF16);
    EXPECT_LT(relative_error(widened(y), expected), kBf16);
    rms_rope_forward(stream, in_place.data(), nullptr, in_place.data(), gain.data(), angles.data(), grid, rows, kEps,
                     DType::kBF16);
    EXPECT_EQ(in_place, y);
  });
}

TEST_P(Rope, BackwardAgreesWithTheTwin) {
  const std::vector<float> dy = normals(rows * width, 3);
  for (bool rotate : {true, false}) {
    std::vector<float> dx(n), dgain = gain, dbias = gain;
    reference::rms_rope_backward(dx.data(), dgain.data(), dbias.data(), dy.data(), x.data(), gain.data(), rotate, grid,
                                 rows, kEps);
    for_each_target([&] {
      InlineStream stream(2);
      const std::vector<float> angles = table(stream);
      std::vector<float> y(n), rstd(static_cast<size_t>(rows)), got(n), ggain = gain, gbias = gain;
      std::vector<float> scratch(static_cast<size_t>(rms_rope_scratch(rows, width)), NAN);
      const float* t = rotate ? angles.data() : nullptr;
      rms_rope_forward(stream, y.data(), rstd.data(), x.data(), gain.data(), t, grid, rows, kEps, DType::kF32);
      rms_rope_backward(stream, got.data(), ggain.data(), gbias.data(), scratch.data(), dy.data(), x.data(),
                        rstd.data(), gain.data(), t, grid, rows, DType::kF32);
      // dx is a difference of two terms of its size and, for narrow rows, may cancel.
      EXPECT_LT(relative_error(got, dx), 4 * kFp32);
      EXPECT_LT(relative_error(ggain, dgain), 4 * kFp32);
      EXPECT_LT(relative_error(gbias, dbias), 4 * kFp32);
    });
  }
}

TEST_P(Rope, ThreadsDoNotChangeBits) {
  const std::vector<float> dy = normals(rows * width, 3), rstd(static_cast<size_t>(rows), 0.7F);
  std::vector<float> dx[2], dgain[2], dbias[2];
  for (int threads : {1, 2}) {
    InlineStream stream(threads);
    const std::vector<float> angles = table(stream);
    const size_t i = static_cast<size_t>(threads - 1);
    dx[i].resize(n);
    dgain[i].resize(static_cast<size_t>(width));
    dbias[i].resize(static_cast<size_t>(width));
    std::vector<float> scratch(static_cast<size_t>(rms_rope_scratch(rows, width)));
    rms_rope_backward(stream, dx[i].data(), dgain[i].data(), dbias[i].data(), scratch.data(), dy.data(), x.data(),
                      rstd.data(), gain.data(), angles.data(), grid, rows, DType::kF32);
  }
  EXPECT_EQ(dx[0], dx[1]);
  EXPECT_EQ(dgain[0], dgain[1]);
  EXPECT_EQ(dbias[0], dbias[1]);
}

INSTANTIATE_TEST_SUITE_P(Grids, Rope, ::testing::ValuesIn(kCases));

TEST(RopeTable, FrequenciesOfWan) {
  // Spec wan.md A.8: at position 1 the angle is the frequency.
  const RopeGrid grid{2, 2, 2, 12, 128};
  ASSERT_EQ(grid.time_channels(), 44);
  ASSERT_EQ(grid.space_channels(), 42);
  InlineStream stream;
  std::vector<float> t(static_cast<size_t>(rope_table_elements(grid)));
  rope_table(stream, t.data(), grid);
  const float* time = t.data() + 2 * 44;              // position 1
  const float* row = t.data() + 2 * 2 * 44 + 2 * 42;  // position 1
  EXPECT_FLOAT_EQ(time[2 * 1], static_cast<float>(std::cos(0.6579332246575680)));
  EXPECT_FLOAT_EQ(time[44 + 2 * 10 + 1], static_cast<float>(std::sin(0.0151991108)));
  EXPECT_FLOAT_EQ(time[44 + 2 * 21], -static_cast<float>(std::sin(1.519911083e-4)));
  EXPECT_FLOAT_EQ(row[2 * 1 + 1], static_cast<float>(std::cos(0.6449466771037624)));
  EXPECT_FLOAT_EQ(row[42 + 2 * 20 + 1], static_cast<float>(std::sin(1.550515780e-4)));
}

}  // namespace
}  // namespace megaslide
