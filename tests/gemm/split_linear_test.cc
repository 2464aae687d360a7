// fp32 products by bf16 parts against fp64 loops, where the processor has the unit.
#include "kernels/gemm/split_linear.h"

#include <algorithm>
#include <array>
#include <functional>

#include "tests/support/elementwise.h"
#include "tensor/tensor.h"

namespace megaslide {
namespace {

using namespace testing_support;

TEST(SplitLinear, IsAsNearAsFp32AndRowsAreIndependent) {
  InlineStream stream(2);
  if (!split_linear_serves(stream)) GTEST_SKIP() << "no AMX";
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {5, 33, 70}, {48, 40, 64}, {67, 530, 200}, {450, 48, 96}}) {
    const std::vector<float> x = normals(m * k, 1), w = normals(n * k, 2), b = normals(n, 3);
    HostTensor packed(DType::kU8, {split_linear_packed_bytes(n, k)}), parts(DType::kU8, {split_operand_bytes(m, k)}), one(DType::kU8, {split_operand_bytes(1, k)});
    split_linear_pack(stream, packed.data(), w.data(), n, k);
    split_operand(stream, parts.data(), x.data(), m, k);
    std::vector<float> y(static_cast<size_t>(m * n), NAN), expected(y.size()), last(static_cast<size_t>(n));
    split_linear_forward(stream, y.data(), parts.data(), packed.data(), b.data(), m, n, k, false);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = static_cast<double>(b[static_cast<size_t>(j)]);
        for (int64_t c = 0; c < k; ++c) sum += static_cast<double>(x[static_cast<size_t>(i * k + c)]) * static_cast<double>(w[static_cast<size_t>(j * k + c)]);
        expected[static_cast<size_t>(i * n + j)] = static_cast<float>(sum);
      }
    EXPECT_LT(relative_error(y, expected), 5e-7) << m << " " << n << " " << k;  // bf16 operands alone would give 2e-3, two parts 3e-6
    split_operand(stream, one.data(), x.data() + (m - 1) * k, 1, k);
    split_linear_forward(stream, last.data(), one.data(), packed.data(), b.data(), 1, n, k, false);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), y.end() - n));
  }
}

// Products on a GPU are fp32 ones: whoever asks there must not get a form that only the CPU has.
TEST(SplitLinear, IsTheCpusAlone) {
  struct Device final : Stream {
    Backend backend() const override { return Backend::kCuda; }
    void enqueue(const char*, const Cost&, std::function<void()>) override {}
    ThreadPool& pool() override { return threads; }
    ThreadPool threads{1};
  };
  EXPECT_FALSE(split_linear_serves(Device()));
}

}  // namespace
}  // namespace megaslide
