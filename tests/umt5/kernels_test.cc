// The kernels of a UMT5 block against their twins.
#include <cmath>

#include "kernels/gated_gelu/gated_gelu.h"
#include "kernels/relative_attention/relative_attention.h"
#include "kernels/rms_norm/rms_norm.h"
#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using namespace testing_support;

constexpr double kFp32 = 1e-6;  // a few roundings of 2^-24 a value, and a sum's of a row

struct Rows {
  int64_t rows, width;
};
class RmsNorm : public ::testing::TestWithParam<Rows> {};

TEST_P(RmsNorm, AgreesWithTheTwin) {
  const auto [rows, width] = GetParam();
  const auto x = normals(rows * width, 1, 2, 1), w = normals(width, 2, 0.3, 1);
  std::vector<float> expected(x.size()), y(x.size());
  reference::rms_norm_forward(expected.data(), x.data(), w.data(), rows, width, 1e-6F);
  for_each_target([&, rows = rows, width = width] {
    InlineStream stream(2);
    rms_norm_forward(stream, y.data(), x.data(), w.data(), rows, width, 1e-6F, DType::kF32);
    EXPECT_LT(relative_error(y, expected), kFp32);
    std::vector<bf16> narrow(x.size());
    rms_norm_forward(stream, narrow.data(), x.data(), w.data(), rows, width, 1e-6F, DType::kBF16);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(narrow[i], to_bf16(y[i])) << i;
  });
}
INSTANTIATE_TEST_SUITE_P(Sizes, RmsNorm, ::testing::Values(Rows{1, 1}, Rows{3, 7}, Rows{70, 64}, Rows{5, 4096}, Rows{2, 33}));

TEST(RmsNormRow, ZerosStayZeros) {
  InlineStream stream;
  const std::vector<float> x(40), w(40, 2);
  std::vector<float> y(40, 1);
  rms_norm_forward(stream, y.data(), x.data(), w.data(), 1, 40, 1e-6F, DType::kF32);
  EXPECT_EQ(y, x);
}

TEST(GatedGelu, AgreesWithTheTwin) {
  auto gate = normals(20011, 1, 3);
  const auto up = normals(20011, 2);
  gate[0] = 200;
  gate[1] = -200;
  gate[2] = 0;
  std::vector<float> expected(gate.size()), y(gate.size());
  for (size_t i = 0; i < gate.size(); ++i) expected[i] = static_cast<float>(reference::gated_gelu(static_cast<double>(gate[i]), static_cast<double>(up[i])));
  for_each_target([&] {
    InlineStream stream(2);
    gated_gelu_forward(stream, y.data(), gate.data(), up.data(), static_cast<int64_t>(y.size()), DType::kF32);
    EXPECT_LT(relative_error(y, expected), kFp32);
    EXPECT_EQ(y[0], 200 * up[0]);
    EXPECT_NEAR(y[1], 0, 1e-30);
    std::vector<bf16> narrow(y.size());
    gated_gelu_forward(stream, narrow.data(), gate.data(), up.data(), static_cast<int64_t>(y.size()), DType::kBF16);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(narrow[i], to_bf16(y[i])) << i;
  });
}

TEST(GatedGelu, NanStays) {
  InlineStream stream;
  std::vector<float> gate(20, NAN), up(20, 1), y(20);
  gated_gelu_forward(stream, y.data(), gate.data(), up.data(), 20, DType::kF32);
  for (const float v : y) EXPECT_TRUE(std::isnan(v));
}

struct Attention {
  int64_t n, heads, d;
};
class RelativeAttention : public ::testing::TestWithParam<Attention> {};

TEST_P(RelativeAttention, AgreesWithTheTwin) {
  const auto [n, heads, d] = GetParam();
  const int64_t elements = n * heads * d;
  const auto q = normals(elements, 1), k = normals(elements, 2), v = normals(elements, 3), bias = normals(kRelativeBuckets * heads, 4, 2);
  const auto q16 = rounded(q), k16 = rounded(k), v16 = rounded(v);
  std::vector<float> expected(q.size()), expected16(q.size()), first;
  reference::relative_attention_forward(expected.data(), q.data(), k.data(), v.data(), bias.data(), n, heads, d);
  reference::relative_attention_forward(expected16.data(), widened(q16).data(), widened(k16).data(), widened(v16).data(), bias.data(), n, heads, d);
  for_each_target([&, n = n, heads = heads, d = d] {
    std::vector<float> one(q.size()), two(q.size());
    InlineStream alone(1), pair(2);
    relative_attention_forward(alone, one.data(), q.data(), k.data(), v.data(), bias.data(), n, heads, d, DType::kF32);
    relative_attention_forward(pair, two.data(), q.data(), k.data(), v.data(), bias.data(), n, heads, d, DType::kF32);
    EXPECT_EQ(one, two);
    // Unscaled scores of about √d: an error of 2^-24 of each weighs as much in its exponential.
    EXPECT_LT(relative_error(one, expected), 2e-6);
    std::vector<bf16> narrow(q.size());
    relative_attention_forward(pair, narrow.data(), q16.data(), k16.data(), v16.data(), bias.data(), n, heads, d, DType::kBF16);
    // Only the result is rounded: 2^-9 at most, 2^-9/√3 of a uniform error's root mean square.
    EXPECT_LT(relative_error(widened(narrow), expected16), 1.0 / 512);
  });
}
INSTANTIATE_TEST_SUITE_P(Sizes, RelativeAttention,
                         ::testing::Values(Attention{1, 1, 1}, Attention{2, 3, 5}, Attention{15, 2, 8}, Attention{16, 2, 8}, Attention{17, 1, 32},
                                           Attention{130, 2, 64}, Attention{300, 3, 16}));

TEST(RelativeBucket, IsSymmetricButForTheSide) {
  for (int64_t r = 1; r < 2000; ++r) EXPECT_EQ(relative_bucket(r), relative_bucket(-r) + 16) << r;
  EXPECT_EQ(relative_bucket(0), 0);
  EXPECT_EQ(relative_bucket(-100000), 15);
}

}  // namespace
}  // namespace megaslide
