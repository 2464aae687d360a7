// The linear layer's products against fp64 loops, in bf16 and fp32, at odd sizes and across pieces.
#include "kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/philox.h"
#include "kernels/activation/activation.h"
#include "kernels/gemm/pieces.h"
#include "kernels/modulate/modulate.h"
#include "kernels/tile/unit.h"

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

// Operand types, and for bf16 the units of lesser processors; where this one has less, it runs what it has.
struct Unit {
  DType dtype;
  TileUnit best;
  const char* name;
};
const Unit kUnits[] = {{DType::kBF16, TileUnit::kAmx, "bf16_amx"},
                       {DType::kBF16, TileUnit::kAvx512, "bf16_avx512"},
                       {DType::kBF16, TileUnit::kNone, "bf16_without_tiles"},
                       {DType::kF32, TileUnit::kNone, "fp32"}};

class Gemm : public testing::TestWithParam<Unit> {
 protected:
  void SetUp() override { limit_tile_unit(GetParam().best); }
  void TearDown() override { limit_tile_unit(TileUnit::kAmx); }
  const DType dtype = GetParam().dtype;
};

// Scratch memory of a weight gradient: as long as asked and full of NaN.
std::unique_ptr<void, AlignedFree> gradient_scratch(int64_t m, int64_t n, int64_t k, DType dtype) {
  const int64_t bytes = linear_weight_gradient_scratch(m, n, k, dtype);
  auto memory = aligned((bytes + 255) / 256 * 256);
  std::memset(memory.get(), 0xff, static_cast<size_t>(bytes));
  return memory;
}
void weight_gradient(Stream& stream, float* dw, const void* dy, const void* x, int64_t m, int64_t n, int64_t k,
                     DType dtype) {
  const auto scratch = gradient_scratch(m, n, k, dtype);
  linear_weight_gradient(stream, dw, scratch.get(), dy, x, m, n, k, dtype);
}

TEST_P(Gemm, ForwardMatchesFp64) {
  InlineStream stream(2);
  for (const Shape& shape : kShapes)
    for (const bool with_bias : {false, true}) {
      const int64_t m = shape.m, n = shape.n, k = shape.k;
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
  InlineStream stream(2);
  for (const Shape& shape : kShapes)
    for (const bool accumulate : {false, true}) {
      const int64_t m = shape.m, n = shape.n, k = shape.k;
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
  InlineStream stream(2);
  for (const Shape& shape : kShapes) {
    const int64_t m = shape.m, n = shape.n, k = shape.k;
    const Operand dy(m * n, dtype, 1), x(m * k, dtype, 2), before(n * k, DType::kF32, 3);
    std::vector<float> dw = before.value;
    weight_gradient(stream, dw.data(), dy.data.data(), x.data.data(), m, n, k, dtype);
    expect_product(
        dw, n, k, m, [&](int64_t i, int64_t t) { return dy.value[static_cast<size_t>(t * n + i)]; },
        [&](int64_t t, int64_t j) { return x.value[static_cast<size_t>(t * k + j)]; },
        [&](int64_t i, int64_t j) { return static_cast<double>(before.value[static_cast<size_t>(i * k + j)]); });
  }
}

// All three products, with one, two and three threads: bit for bit.
TEST_P(Gemm, ThreadsDoNotChangeBits) {
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
      weight_gradient(stream, dw.data(), dy.data.data(), x.data.data(), m, n, k, dtype);
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
  InlineStream stream(2);
  const Operand w(12 * 20, dtype, 1);
  std::vector<float> dw(240, 3.0F), db(12, 2.0F);
  auto packed = aligned(linear_packed_bytes(12, 20, dtype, PackFor::kForward));
  linear_pack(stream, packed.get(), w.data.data(), 12, 20, dtype, PackFor::kForward);
  linear_forward(stream, nullptr, nullptr, packed.get(), nullptr, 0, 12, 20, dtype);
  linear_weight_gradient(stream, dw.data(), nullptr, nullptr, nullptr, 0, 12, 20, dtype);
  bias_gradient(stream, db.data(), nullptr, 0, 12);
  EXPECT_EQ(dw, std::vector<float>(240, 3.0F));
  EXPECT_EQ(db, std::vector<float>(12, 2.0F));
}

INSTANTIATE_TEST_SUITE_P(Units, Gemm, testing::ValuesIn(kUnits),
                         [](const auto& tested) { return std::string(tested.param.name); });

// A row of a product has the same bits whatever rows come with it, on the tile units: what batching and caching rely on.
TEST(TileUnits, RowsDoNotDependOnTheirNeighbours) {
  if (tile_unit() == TileUnit::kNone) GTEST_SKIP() << "no tile unit here";
  InlineStream stream(2);
  const int64_t m = 300, n = 600, k = 700;
  const Operand x(m * k, DType::kBF16, 1), w(n * k, DType::kBF16, 2);
  auto packed = aligned(linear_packed_bytes(n, k, DType::kBF16, PackFor::kForward));
  for (const TileUnit unit : {TileUnit::kAvx512, TileUnit::kAmx}) {
    limit_tile_unit(unit);
    linear_pack(stream, packed.get(), w.data.data(), n, k, DType::kBF16, PackFor::kForward);
    const auto product = [&](int64_t begin, int64_t rows) {
      std::vector<float> y(static_cast<size_t>(rows * n));
      linear_forward(stream, y.data(), x.data.data() + begin * k * 2, packed.get(), nullptr, rows, n, k, DType::kBF16);
      return y;
    };
    const std::vector<float> all = product(0, m);
    for (const auto& [begin, rows] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {5, 16}, {7, 33}, {299, 1}, {40, 257}})
      EXPECT_EQ(0, std::memcmp(product(begin, rows).data(), all.data() + begin * n,
                               static_cast<size_t>(rows * n) * sizeof(float)))
          << begin << " " << rows;
  }
  limit_tile_unit(TileUnit::kAmx);
}

// Products that become something else on their way to memory, against the product and the kernel that they stand for.
class Fused : public Gemm {
 protected:
  static constexpr int64_t m = 210, n = 150, k = 300, group = 70;
  const Operand x{m * k, dtype, 1}, w{n * k, dtype, 2}, b{n, dtype, 3}, residual{m * n, DType::kF32, 4},
      gate{4 * n, DType::kF32, 5};
  InlineStream stream{2};
  std::unique_ptr<void, AlignedFree> forward = aligned(linear_packed_bytes(n, k, dtype, PackFor::kForward));
  std::unique_ptr<void, AlignedFree> backward = aligned(linear_packed_bytes(n, k, dtype, PackFor::kInputGradient));
  std::vector<float> y = std::vector<float>(static_cast<size_t>(m * n));

  void SetUp() override {
    Gemm::SetUp();
    linear_pack(stream, forward.get(), w.data.data(), n, k, dtype, PackFor::kForward);
    linear_pack(stream, backward.get(), w.data.data(), n, k, dtype, PackFor::kInputGradient);
    linear_forward(stream, y.data(), x.data.data(), forward.get(), b.data.data(), m, n, k, dtype);
  }
  std::vector<std::byte> operand(int64_t elements) const {
    return std::vector<std::byte>(static_cast<size_t>(elements * dtype_bytes(dtype)), std::byte{0xff});
  }
  std::vector<float> numbers(const std::vector<std::byte>& v) const {
    std::vector<float> r(v.size() / static_cast<size_t>(dtype_bytes(dtype)));
    convert_to_f32(r.data(), v.data(), dtype, static_cast<int64_t>(r.size()));
    return r;
  }
  // GELU on a tile unit is within 4e-6 of the kernel's, which may turn a rounding to bf16 the other way: one unit in
  // the last place, 2⁻⁷ at most. Elsewhere the same code runs.
  void expect_near(const std::vector<float>& got, const std::vector<float>& want, const char* what) const {
    const float tolerance = dtype == DType::kBF16 && tile_unit() != TileUnit::kNone ? 0x1p-7F : 0;
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_LE(std::abs(got[i] - want[i]), tolerance * std::abs(want[i]) + tolerance * 1e-4F) << what << " " << i;
  }
};

TEST_P(Fused, Operand) {
  std::vector<std::byte> got = operand(m * n), want = got;
  cast_operand(stream, want.data(), y.data(), m * n, dtype);
  linear_operand(stream, got.data(), x.data.data(), forward.get(), b.data.data(), m, n, k, dtype);
  EXPECT_EQ(got, want);
}

TEST_P(Fused, Gelu) {
  std::vector<std::byte> got = operand(m * n), kept = got, want = got, want_kept = got, alone = got;
  gelu_forward(stream, want.data(), want_kept.data(), y.data(), m * n, dtype);
  linear_gelu(stream, got.data(), kept.data(), x.data.data(), forward.get(), b.data.data(), m, n, k, dtype);
  EXPECT_EQ(kept, want_kept);
  expect_near(numbers(got), numbers(want), "gelu");
  linear_gelu(stream, alone.data(), nullptr, x.data.data(), forward.get(), b.data.data(), m, n, k, dtype);
  EXPECT_EQ(alone, got);
}

TEST_P(Fused, GatedAdd) {
  for (const bool gated : {true, false}) {
    const float* g = gated ? gate.value.data() : nullptr;
    std::vector<std::byte> kept = operand(m * n), want_kept = kept;
    std::vector<float> got(static_cast<size_t>(m * n)), want = got, in_place = residual.value;
    gated_add_forward(stream, want.data(), want_kept.data(), residual.value.data(), y.data(), g, m, n, group, n, dtype);
    linear_gated_add(stream, got.data(), kept.data(), residual.value.data(), g, x.data.data(), forward.get(),
                     b.data.data(), m, n, k, 0, group, n, dtype);
    EXPECT_EQ(got, want);
    EXPECT_EQ(kept, want_kept);
    // The same in two calls of 128 rows and the rest, in place.
    for (const auto& [at, rows] : {std::pair<int64_t, int64_t>{0, 128}, {128, m - 128}})
      linear_gated_add(stream, in_place.data() + at * n, nullptr, in_place.data() + at * n, g,
                       x.data.data() + at * k * dtype_bytes(dtype), forward.get(), b.data.data(), rows, n, k, at, group,
                       n, dtype);
    if (dtype == DType::kBF16 && tile_unit() != TileUnit::kNone) {
      EXPECT_EQ(in_place, want);
    } else {  // other heights, other sums: a rounding to bf16 may turn
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(in_place[i], want[i], 0x1p-7F * 40 * 4) << i;
    }
  }
}

TEST_P(Fused, GeluGradient) {
  const Operand dy(m * n, dtype, 6), before(k, DType::kF32, 7);
  std::vector<float> g(static_cast<size_t>(m * k)), scratch(static_cast<size_t>(gelu_scratch(m, k)), NAN),
      dbias = before.value, want_dbias = dbias;
  linear_input_gradient(stream, g.data(), dy.data.data(), backward.get(), m, n, k, dtype, false);
  std::vector<std::byte> dx = operand(m * k), value = dx, want_dx = dx, want_value = dx;
  gelu_backward(stream, want_dx.data(), want_value.data(), want_dbias.data(), scratch.data(), g.data(), x.data.data(), m,
                k, dtype);
  std::fill(scratch.begin(), scratch.end(), NAN);
  linear_gelu_gradient(stream, dx.data(), value.data(), dbias.data(), scratch.data(), dy.data.data(), backward.get(),
                       x.data.data(), m, n, k, dtype);
  if (dtype == DType::kBF16 && tile_unit() != TileUnit::kNone) {
    expect_near(numbers(value), numbers(want_value), "gelu");
    expect_near(numbers(dx), numbers(want_dx), "dx");
    // A sum of 210 terms of about 17, each within 4e-6.
    for (size_t i = 0; i < dbias.size(); ++i) ASSERT_NEAR(dbias[i], want_dbias[i], 210 * 17 * 1e-5) << i;
  } else {
    EXPECT_EQ(value, want_value);
    // Pieces of 64 rows, not of the product's own height: other sums of 150 terms.
    const std::vector<float> a = numbers(dx), c = numbers(want_dx);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], c[i], 0x1p-7F * 64) << i;
    for (size_t i = 0; i < dbias.size(); ++i) ASSERT_NEAR(dbias[i], want_dbias[i], 0.01) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Units, Fused, testing::ValuesIn(kUnits),
                         [](const auto& tested) { return std::string(tested.param.name); });

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
