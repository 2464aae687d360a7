#include "kernels/norm/norm.h"

#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using namespace testing_support;

constexpr float kEps = 1e-6F;

struct Case {
  int64_t groups, group_rows, width;
};
// Widths around the vector lengths; rows around the pieces of 64.
const Case kCases[] = {{1, 1, 1}, {2, 3, 7}, {3, 64, 24}, {2, 130, 192}, {1, 65, 33}, {2, 5, 1536}};

class Norm : public ::testing::TestWithParam<Case> {
 protected:
  int64_t groups = GetParam().groups, group_rows = GetParam().group_rows, width = GetParam().width;
  int64_t rows = groups * group_rows, stride = 3 * width;  // vectors of a group lie apart, as modulations do
  size_t n = static_cast<size_t>(rows * width), vectors = static_cast<size_t>(groups * stride);
  std::vector<float> x = normals(rows * width, 1, 2, 3), mul = normals(groups * stride, 2, 0.5, 1),
                     add = normals(groups * stride, 3);
};

TEST_P(Norm, ForwardAgreesWithTheTwin) {
  std::vector<float> expected(n);
  reference::layer_norm_forward(expected.data(), x.data(), mul.data(), add.data(), rows, width, group_rows, stride,
                                kEps);
  for_each_target([&] {
    InlineStream stream(2);
    std::vector<float> y(n);
    layer_norm_forward(stream, y.data(), x.data(), mul.data(), add.data(), rows, width, group_rows, stride, kEps,
                       DType::kF32);
    EXPECT_LT(relative_error(y, expected), kFp32);
    std::vector<bf16> narrow(n);
    layer_norm_forward(stream, narrow.data(), x.data(), mul.data(), add.data(), rows, width, group_rows, stride, kEps,
                       DType::kBF16);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(narrow[i], to_bf16(y[i])) << i;
  });
}

TEST_P(Norm, BackwardAgreesWithTheTwin) {
  const std::vector<float> dy = normals(rows * width, 4), residual = normals(rows * width, 5);
  std::vector<float> dx(n), dmul = normals(groups * stride, 6), dadd = normals(groups * stride, 7);
  const std::vector<float> dmul0 = dmul, dadd0 = dadd;
  reference::layer_norm_backward(dx.data(), dmul.data(), dadd.data(), dy.data(), residual.data(), x.data(), mul.data(),
                                 rows, width, group_rows, stride, kEps);
  for_each_target([&] {
    InlineStream stream(2);
    std::vector<float> got = residual, gmul = dmul0, gadd = dadd0;  // dx in the place of the residual
    std::vector<float> scratch(static_cast<size_t>(layer_norm_scratch(rows, group_rows, width)), NAN);
    layer_norm_backward(stream, got.data(), gmul.data(), gadd.data(), scratch.data(), dy.data(), got.data(), x.data(),
                        mul.data(), rows, width, group_rows, stride, kEps);
    EXPECT_LT(relative_error(got, dx), kFp32);
    EXPECT_LT(relative_error(gmul, dmul), kFp32);
    EXPECT_LT(relative_error(gadd, dadd), kFp32);
  });
}

TEST_P(Norm, NoResidualIsZero) {
  InlineStream stream;
  const std::vector<float> dy = normals(rows * width, 4), zero(n);
  std::vector<float> a(n), b(n), sums(vectors),
      scratch(static_cast<size_t>(layer_norm_scratch(rows, group_rows, width)));
  layer_norm_backward(stream, a.data(), sums.data(), sums.data(), scratch.data(), dy.data(), zero.data(), x.data(),
                      mul.data(), rows, width, group_rows, stride, kEps);
  layer_norm_backward(stream, b.data(), sums.data(), sums.data(), scratch.data(), dy.data(), nullptr, x.data(),
                      mul.data(), rows, width, group_rows, stride, kEps);
  EXPECT_EQ(a, b);
}

TEST_P(Norm, ThreadsDoNotChangeBits) {
  const std::vector<float> dy = normals(rows * width, 4);
  std::vector<float> dx[2], dmul[2], dadd[2];
  for (int threads : {1, 2}) {
    InlineStream stream(threads);
    const size_t i = static_cast<size_t>(threads - 1);
    dx[i].resize(n);
    dmul[i].resize(vectors);
    dadd[i].resize(vectors);
    std::vector<float> scratch(static_cast<size_t>(layer_norm_scratch(rows, group_rows, width)));
    layer_norm_backward(stream, dx[i].data(), dmul[i].data(), dadd[i].data(), scratch.data(), dy.data(), nullptr,
                        x.data(), mul.data(), rows, width, group_rows, stride, kEps);
  }
  EXPECT_EQ(dx[0], dx[1]);
  EXPECT_EQ(dmul[0], dmul[1]);
  EXPECT_EQ(dadd[0], dadd[1]);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Norm, ::testing::ValuesIn(kCases));

TEST(NormEdge, BigMeanKeepsItsVariance) {
  // Two passes: a mean of a thousand deviations costs three digits, not all seven.
  const int64_t width = 256;
  const std::vector<float> x = normals(width, 1, 1e-3, 1), one(256, 1.0F), zero(256);
  std::vector<float> y(256), expected(256);
  InlineStream stream;
  layer_norm_forward(stream, y.data(), x.data(), one.data(), zero.data(), 1, width, 1, 0, 0.0F, DType::kF32);
  reference::layer_norm_forward(expected.data(), x.data(), one.data(), zero.data(), 1, width, 1, 0, 0.0F);
  EXPECT_LT(relative_error(y, expected), 1e-3);
}

}  // namespace
}  // namespace megaslide
