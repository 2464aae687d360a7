#include "kernels/causal_attention/causal_attention.h"

#include <cmath>

#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using namespace testing_support;

TEST(CausalAttention, AgreesWithTheTwin) {
  const int64_t heads = 3;
  for (const int64_t d : {64, 5})
    for (const int64_t n : {1, 2, 15, 16, 17, 77}) {
      const int64_t size = n * heads * d;
      const std::vector<float> q = normals(size, 1), k = normals(size, 2), v = normals(size, 3);
      const float scale = 1.5F / std::sqrt(static_cast<float>(d));
      std::vector<float> expected(q.size()), expected16(q.size());
      reference::causal_attention_forward(expected.data(), q.data(), k.data(), v.data(), n, heads, d, static_cast<double>(scale));
      const std::vector<bf16> q16 = rounded(q), k16 = rounded(k), v16 = rounded(v);
      reference::causal_attention_forward(expected16.data(), widened(q16).data(), widened(k16).data(), widened(v16).data(), n, heads, d,
                                          static_cast<double>(scale));
      for_each_target([&] {
        for (const int threads : {1, 2}) {
          InlineStream stream(threads);
          std::vector<float> out(q.size(), NAN);
          causal_attention_forward(stream, out.data(), q.data(), k.data(), v.data(), n, heads, d, scale, DType::kF32);
          EXPECT_LT(relative_error(out, expected), kFp32) << n << " " << d;
          std::vector<bf16> narrow(q.size());
          causal_attention_forward(stream, narrow.data(), q16.data(), k16.data(), v16.data(), n, heads, d, scale, DType::kBF16);
          EXPECT_LT(relative_error(widened(narrow), expected16), kBf16) << n << " " << d;
        }
      });
    }
}

// No trace of a later token, however loud.
TEST(CausalAttention, LaterTokensDoNotShow) {
  const int64_t n = 21, heads = 2, d = 8, row = heads * d;
  std::vector<float> q = normals(n * row, 1), k = normals(n * row, 2), v = normals(n * row, 3), before(q.size()), after(q.size());
  InlineStream stream;
  causal_attention_forward(stream, before.data(), q.data(), k.data(), v.data(), n, heads, d, 1, DType::kF32);
  for (size_t i = static_cast<size_t>(18 * row); i < q.size(); ++i) q[i] = 1e3F, k[i] = -1e4F, v[i] = 1e30F;
  causal_attention_forward(stream, after.data(), q.data(), k.data(), v.data(), n, heads, d, 1, DType::kF32);
  for (size_t i = 0; i < static_cast<size_t>(18 * row); ++i) ASSERT_EQ(after[i], before[i]) << i;
  EXPECT_NE(after.back(), before.back());
}

}  // namespace
}  // namespace megaslide
