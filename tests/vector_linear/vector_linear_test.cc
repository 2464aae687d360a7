#include "kernels/vector_linear/vector_linear.h"

#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using namespace testing_support;

class VectorLinear : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(VectorLinear, AgreesWithLoops) {
  const int64_t m = std::get<0>(GetParam()), n = std::get<1>(GetParam()), k = std::get<2>(GetParam());
  const std::vector<float> x = normals(m * k, 1), w = normals(n * k, 2), b = normals(n, 3), dy = normals(m * n, 4);
  std::vector<float> y(static_cast<size_t>(m * n)), dx(x.size()), dw(w.size()), db(b.size());
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = static_cast<double>(b[static_cast<size_t>(j)]);
      for (int64_t c = 0; c < k; ++c)
        sum += static_cast<double>(x[static_cast<size_t>(i * k + c)]) *
               static_cast<double>(w[static_cast<size_t>(j * k + c)]);
      y[static_cast<size_t>(i * n + j)] = static_cast<float>(sum);
    }
  for (int64_t i = 0; i < m; ++i)
    for (int64_t c = 0; c < k; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j)
        sum += static_cast<double>(dy[static_cast<size_t>(i * n + j)]) *
               static_cast<double>(w[static_cast<size_t>(j * k + c)]);
      dx[static_cast<size_t>(i * k + c)] = static_cast<float>(sum);
    }
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < m; ++i) {
      const float g = dy[static_cast<size_t>(i * n + j)];
      db[static_cast<size_t>(j)] += g;
      for (int64_t c = 0; c < k; ++c) dw[static_cast<size_t>(j * k + c)] += g * x[static_cast<size_t>(i * k + c)];
    }
  for_each_target([&] {
    std::vector<float> once;
    for (int threads : {1, 2}) {
      InlineStream stream(threads);
      std::vector<float> gy(y.size()), gdx(x.size(), NAN), gdw(w.size()), gdb(b.size());
      vector_linear_forward(stream, gy.data(), x.data(), w.data(), b.data(), m, n, k, DType::kF32);
      vector_linear_weight_gradient(stream, gdw.data(), gdb.data(), dy.data(), x.data(), m, n, k);
      vector_linear_input_gradient(stream, gdx.data(), dy.data(), w.data(), m, n, k, DType::kF32);
      EXPECT_LT(relative_error(gy, y), kFp32);
      EXPECT_LT(relative_error(gdx, dx), kFp32);
      EXPECT_LT(relative_error(gdw, dw), kFp32);
      EXPECT_LT(relative_error(gdb, db), kFp32);
      if (threads == 1)
        once = gdx;
      else
        EXPECT_EQ(gdx, once);
      // bf16 weights: exact products of the widened weights.
      const std::vector<bf16> narrow_w = rounded(w), narrow_b = rounded(b);
      const std::vector<float> wide_w = widened(narrow_w), wide_b = widened(narrow_b);
      std::vector<float> a(y.size()), c(y.size()), da(x.size()), dc(x.size());
      vector_linear_forward(stream, a.data(), x.data(), narrow_w.data(), narrow_b.data(), m, n, k, DType::kBF16);
      vector_linear_forward(stream, c.data(), x.data(), wide_w.data(), wide_b.data(), m, n, k, DType::kF32);
      EXPECT_EQ(a, c);
      vector_linear_input_gradient(stream, da.data(), dy.data(), narrow_w.data(), m, n, k, DType::kBF16);
      vector_linear_input_gradient(stream, dc.data(), dy.data(), wide_w.data(), m, n, k, DType::kF32);
      EXPECT_EQ(da, dc);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, VectorLinear,
                         ::testing::Values(std::tuple{1, 1, 1}, std::tuple{2, 192, 256}, std::tuple{3, 37, 45},
                                           std::tuple{1, 1152, 192}, std::tuple{4, 24, 600}));

}  // namespace
}  // namespace megaslide
