// The linear layer's products against fp64 loops, in bf16 and fp32, at odd sizes and across pieces.
#include "kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/philox.h"
#include "kernels/gemm/pieces.h"

namespace megaslide {
namespace {

struct Shape {
  int64_t m, n, k;
};
// One row; sizes below any block; odd sizes; sizes of the tiny preset; several pieces with a tail; a reduction that is
// cut (k > 1536 for the forward, n > 1536 for the input gradient).
const Shape kShapes[] = {{1, 1, 1},       {1, 192, 192},   {7, 13, 29},     {3, 65, 130},
                         {33, 100, 70},   {64, 64, 192},   {320, 192, 192}, {320, 768, 192},
                         {171, 192, 768}, {330, 96, 1700}, {330, 1700, 96}, {17, 1537, 3100}};

// An operand as stored and as numbers.
struct Operand {
  Operand(int64_t n, DType dtype, uint64_t series)
      : data(static_cast<size_t>(n * dtype_bytes(dtype))), value(static_cast<size_t>(n)) {
    const Random random(11, RandomPurpose::kTest);
    for (int64_t i = 0; i < n; ++i) {
      float x = static_cast<float>(random.normal(series, static_cast<uint64_t>(i)));
      if (dtype == DType::kBF16) {
        const bf16 b = to_bf16(x);
        std::memcpy(data.data() + i * 2, &b, 2);
        x = to_float(b);
      } else {
        std::memcpy(data.data() + i * 4, &x, 4);
      }
      value[static_cast<size_t>(i)] = x;
    }
  }
  std::vector<std::byte> data;
  std::vector<float> value;
};

struct AlignedFree {
  void operator()(void* p) const { std::free(p); }
};
std::unique_ptr<void, AlignedFree> aligned(int64_t bytes) {
  return std::unique_ptr<void, AlignedFree>(std::aligned_alloc(256, static_cast<size_t>(bytes)));
}

// |got − want| for a sum of `terms` products accumulated in fp32 in any order: each of at most terms+1 roundings is
// half an ulp of a partial sum, which is at most Σ|a·b| (`magnitude`). Products of bf16 operands are exact in fp32;
// fp32 ones are fused. The worst case is never met: roundings of random signs grow as the root, 8·sqrt(terms) covers
// them. Flushed subnormal products add at most the smallest normal each.
double tolerance(double magnitude, int64_t terms) {
  constexpr double kUlp = 0x1p-24;
  return kUlp * std::min(static_cast<double>(terms + 1), 8 * std::sqrt(static_cast<double>(terms + 1))) * magnitude +
         static_cast<double>(terms) * 0x1p-126;
}

// Checks out(i,j) = Σ_t left(i,t)·right(t,j) + extra(i,j): all of a small product; of a large one the first and last 16
// rows and columns, where pieces and tails are, and a sample of the others.
template <class L, class R, class X>
void expect_product(const std::vector<float>& out, int64_t rows, int64_t columns, int64_t terms, L left, R right,
                    X extra) {
  const auto skip = [](int64_t i, int64_t n) { return n > 64 && i >= 16 && i < n - 16 && i % 13 != 0; };
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      if (skip(i, rows) || skip(j, columns)) continue;
      double sum = extra(i, j), magnitude = std::abs(sum);
      for (int64_t t = 0; t < terms; ++t) {
        const double p = static_cast<double>(left(i, t)) * static_cast<double>(right(t, j));
        sum += p;
        magnitude += std::abs(p);
      }
      const double got = static_cast<double>(out[static_cast<size_t>(i * columns + j)]);
      ASSERT_NEAR(got, sum, tolerance(magnitude, terms + 2))
          << i << "," << j << " of " << rows << "x" << columns << "x" << terms;
    }
}

class Gemm : public testing::TestWithParam<DType> {};

TEST_P(Gemm, ForwardMatchesFp64) {
  const DType dtype = GetParam();
  InlineStream stream(2);
  for (const auto& [m, n, k] : kShapes)
    for (const bool with_bias : {false, true}) {
      const Operand x(m * k, dtype, 1), w(n * k, dtype, 2), b(n, dtype, 3);
      auto packed = aligned(linear_packed_bytes(n, k, dtype, PackFor::kForward));
      linear_pack(stream, packed.get(), w.data.data(), n, k, dtype, PackFor::kForward);
      std::vector<float> y(static_cast<size_t>(m * n), std::nanf(""));  // overwritten, never read
      linear_forward(stream, y.data(), x.data.data(), packed.get(), with_bias ? b.data.data() : nullptr, m, n, k,
                     dtype);
      expect_product(
          y, m, n, k, [&](int64_t i, int64_t t) { return x.value[static_cast<size_t>(i * k + t)]; },
          [&](int64_t t, int64_t j) { return w.value[static_cast<size_t>(j * k + t)]; },
          [&](int64_t, int64_t j) { return with_bias ? static_cast<double>(b.value[static_cast<size_t>(j)]) : 0.0; });
    }
}

TEST_P(Gemm, InputGradientMatchesFp64) {
  const DType dtype = GetParam();
  InlineStream stream(2);
  for (const auto& [m, n, k] : kShapes)
    for (const bool accumulate : {false, true}) {
      const Operand dy(m * n, dtype, 1), w(n * k, dtype, 2), before(m * k, DType::kF32, 3);
      auto packed = aligned(linear_packed_bytes(n, k, dtype, PackFor::kInputGradient));
      linear_pack(stream, packed.get(), w.data.data(), n, k, dtype, PackFor::kInputGradient);
      std::vector<float> dx = before.value;
      if (!accumulate) dx.assign(dx.size(), std::nanf(""));
      linear_input_gradient(stream, dx.data(), dy.data.data(), packed.get(), m, n, k, dtype, accumulate);
      expect_product(
          dx, m, k, n, [&](int64_t i, int64_t t) { return dy.value[static_cast<size_t>(i * n + t)]; },
          [&](int64_t t, int64_t j) { return w.value[static_cast<size_t>(t * k + j)]; },
          [&](int64_t i, int64_t j) {
            return accumulate ? static_cast<double>(before.value[static_cast<size_t>(i * k + j)]) : 0.0;
          });
    }
}

TEST_P(Gemm, WeightGradientAccumulates) {
  const DType dtype = GetParam();
  InlineStream stream(2);
  for (const auto& [m, n, k] : kShapes) {
    const Operand dy(m * n, dtype, 1), x(m * k, dtype, 2), before(n * k, DType::kF32, 3);
    std::vector<float> dw = before.value;
    linear_weight_gradient(stream, dw.data(), dy.data.data(), x.data.data(), m, n, k, dtype);
    expect_product(
        dw, n, k, m, [&](int64_t i, int64_t t) { return dy.value[static_cast<size_t>(t * n + i)]; },
        [&](int64_t t, int64_t j) { return x.value[static_cast<size_t>(t * k + j)]; },
        [&](int64_t i, int64_t j) { return static_cast<double>(before.value[static_cast<size_t>(i * k + j)]); });
  }
}

// All three products, with one, two and three threads: bit for bit.
TEST_P(Gemm, ThreadsDoNotChangeBits) {
  const DType dtype = GetParam();
  for (const auto& [m, n, k] : kShapes) {
    const Operand x(m * k, dtype, 1), w(n * k, dtype, 2), dy(m * n, dtype, 3);
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 3}) {
      InlineStream stream(threads);
      std::vector<float> y(static_cast<size_t>(m * n)), dx(static_cast<size_t>(m * k)), dw(static_cast<size_t>(n * k)),
          db(static_cast<size_t>(n));
      auto forward = aligned(linear_packed_bytes(n, k, dtype, PackFor::kForward));
      auto backward = aligned(linear_packed_bytes(n, k, dtype, PackFor::kInputGradient));
      linear_pack(stream, forward.get(), w.data.data(), n, k, dtype, PackFor::kForward);
      linear_pack(stream, backward.get(), w.data.data(), n, k, dtype, PackFor::kInputGradient);
      linear_forward(stream, y.data(), x.data.data(), forward.get(), nullptr, m, n, k, dtype);
      linear_input_gradient(stream, dx.data(), dy.data.data(), backward.get(), m, n, k, dtype, false);
      linear_weight_gradient(stream, dw.data(), dy.data.data(), x.data.data(), m, n, k, dtype);
      bias_gradient(stream, db.data(), y.data(), m, n);
      for (const auto* v : {&dx, &dw, &db}) y.insert(y.end(), v->begin(), v->end());
      results.push_back(std::move(y));
    }
    EXPECT_EQ(0, std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)))
        << m << " " << n << " " << k;
    EXPECT_EQ(0, std::memcmp(results[0].data(), results[2].data(), results[0].size() * sizeof(float)))
        << m << " " << n << " " << k;
  }
}

// Heights from 1 to 70 read one packed weight: the layout does not depend on m. Each row is the same sum.
TEST_P(Gemm, AnyHeightReadsThePackedWeight) {
  const DType dtype = GetParam();
  InlineStream stream;
  const int64_t n = 50, k = 90;
  const Operand x(70 * k, dtype, 1), w(n * k, dtype, 2);
  auto packed = aligned(linear_packed_bytes(n, k, dtype, PackFor::kForward));
  linear_pack(stream, packed.get(), w.data.data(), n, k, dtype, PackFor::kForward);
  for (int64_t m = 1; m <= 70; ++m) {
    std::vector<float> y(static_cast<size_t>(m * n));
    linear_forward(stream, y.data(), x.data.data(), packed.get(), nullptr, m, n, k, dtype);
    expect_product(
        y, m, n, k, [&](int64_t i, int64_t t) { return x.value[static_cast<size_t>(i * k + t)]; },
        [&](int64_t t, int64_t j) { return w.value[static_cast<size_t>(j * k + t)]; },
        [](int64_t, int64_t) { return 0.0; });
  }
}

// Packing fills no byte past linear_packed_bytes, and the size is what the header promises.
TEST_P(Gemm, PackedBytes) {
  const DType dtype = GetParam();
  InlineStream stream(2);
  for (const auto& [m, n, k] : kShapes)
    for (const auto pack_for : {PackFor::kForward, PackFor::kInputGradient}) {
      const int64_t bytes = linear_packed_bytes(n, k, dtype, pack_for);
      EXPECT_EQ(bytes % 256, 0);
      EXPECT_GE(bytes, n * k * dtype_bytes(dtype));
      EXPECT_LE(bytes, (n + 64) * (k + 192) * dtype_bytes(dtype) + 256);
      const Operand w(n * k, dtype, 2);
      auto packed = aligned(bytes + 256);
      auto* guard = static_cast<unsigned char*>(packed.get()) + bytes;
      std::memset(packed.get(), 0xA5, static_cast<size_t>(bytes + 256));
      linear_pack(stream, packed.get(), w.data.data(), n, k, dtype, pack_for);
      for (int i = 0; i < 256; ++i) ASSERT_EQ(guard[i], 0xA5) << n << " " << k << " byte " << i;
    }
  // Multiples of 64 take no padding: what the tiny preset and Wan have.
  EXPECT_EQ(linear_packed_bytes(768, 192, dtype, PackFor::kForward), 768 * 192 * dtype_bytes(dtype));
  EXPECT_EQ(linear_packed_bytes(8960, 1536, dtype, PackFor::kInputGradient), 8960 * 1536 * dtype_bytes(dtype));
}

TEST_P(Gemm, NothingToDo) {
  const DType dtype = GetParam();
  InlineStream stream(2);
  const Operand w(12 * 20, dtype, 1);
  std::vector<float> dw(240, 3.0F), db(12, 2.0F);
  auto packed = aligned(linear_packed_bytes(12, 20, dtype, PackFor::kForward));
  linear_pack(stream, packed.get(), w.data.data(), 12, 20, dtype, PackFor::kForward);
  linear_forward(stream, nullptr, nullptr, packed.get(), nullptr, 0, 12, 20, dtype);
  linear_weight_gradient(stream, dw.data(), nullptr, nullptr, 0, 12, 20, dtype);
  bias_gradient(stream, db.data(), nullptr, 0, 12);
  EXPECT_EQ(dw, std::vector<float>(240, 3.0F));
  EXPECT_EQ(db, std::vector<float>(12, 2.0F));
}

INSTANTIATE_TEST_SUITE_P(Types, Gemm, testing::Values(DType::kBF16, DType::kF32),
                         [](const auto& tested) { return std::string(dtype_name(tested.param)); });

TEST(BiasGradient, SumsInBlocksOf64Rows) {
  InlineStream stream(2);
  const int64_t m = 200, n = 77;
  const Operand dy(m * n, DType::kF32, 1), before(n, DType::kF32, 2);
  std::vector<float> db = before.value;
  bias_gradient(stream, db.data(), dy.value.data(), m, n);
  for (int64_t j = 0; j < n; ++j) {
    float want = before.value[static_cast<size_t>(j)];
    for (int64_t m0 = 0; m0 < m; m0 += 64) {
      float block = dy.value[static_cast<size_t>(m0 * n + j)];
      for (int64_t i = m0 + 1; i < std::min(m, m0 + 64); ++i) block += dy.value[static_cast<size_t>(i * n + j)];
      want += block;
    }
    EXPECT_EQ(db[static_cast<size_t>(j)], want) << j;
  }
}

TEST(CastOperand, SameBitsAsToBf16) {
  InlineStream stream(2);
  std::vector<float> in;
  const Random random(5, RandomPurpose::kTest);
  for (uint64_t i = 0; i < 70001; ++i)
    in.push_back(std::bit_cast<float>(random.bits(0, i)[0]));  // NaN, infinities, subnormals too
  for (const uint32_t u :
       {0U, 0x80000000U, 0x7f7fffffU, 0x7f800000U, 0xff800000U, 0x7f800001U, 0xffffffffU, 0x3f808000U, 0x3f818000U, 1U})
    in.push_back(std::bit_cast<float>(u));
  std::vector<bf16> out(in.size());
  cast_operand(stream, out.data(), in.data(), static_cast<int64_t>(in.size()), DType::kBF16);
  for (size_t i = 0; i < in.size(); ++i)
    ASSERT_EQ(out[i].bits, to_bf16(in[i]).bits) << std::hex << std::bit_cast<uint32_t>(in[i]);
  std::vector<float> copy(in.size());
  cast_operand(stream, copy.data(), in.data(), static_cast<int64_t>(in.size()), DType::kF32);
  EXPECT_EQ(0, std::memcmp(copy.data(), in.data(), in.size() * sizeof(float)));
}

// Pieces cover a range, are few, and end together on two threads.
TEST(Pieces, Balanced) {
  for (int64_t m = 1; m < 3000; m += 7) {
    const int64_t step = gemm::row_step(m, 1536, 1536);
    EXPECT_GE(step, 1);
    EXPECT_LE(step, std::max<int64_t>(176, m <= 160 ? m : 0));
    EXPECT_LE((m + step - 1) / step, std::max<int64_t>(2, m / 64));
  }
  EXPECT_EQ(gemm::row_step(320, 192, 192), 160);
  EXPECT_EQ(gemm::row_step(2, 9216, 1536), 2);
  EXPECT_EQ(gemm::depth_step(8960), 1536);
  EXPECT_EQ(gemm::depth_step(1536), 1536);
  EXPECT_EQ(gemm::depth_step(5120), 1280);
}

}  // namespace
}  // namespace megaslide
