// Quantisation to E4M3 and the 8-bit product: the CPU's codes, and fp64 sums of them.
#include <cmath>
#include <limits>

#include "tests/cuda/gemm_layer.h"
#include "tests/support/fp8_layer.h"

namespace megaslide {
namespace {

using namespace testing_support;

// Sums of exact products in fp32. Matrix units that take 8 bits align 32 products to the largest and keep 13 bits behind
// its first one: each of them is off by up to 2^-13 of about five deviations, 32 of them by 160·2^-13 of their sum's √32.
double sum_error() { return under_emulator ? kFp32 : 0x1p-8; }

std::vector<float> scales(const Fp8Memory& q) { return {q.header().scale, q.header().inverse}; }

void expect_the_cpus(const std::vector<bf16>& values) {
  const auto n = static_cast<int64_t>(values.size());
  for (const int shift : {0, 1}) {
    SCOPED_TRACE(fmt::format("{} numbers, shift {}", n, shift));
    InlineStream stream;
    Fp8Memory expected(fp8_operand_bytes(n));
    cpu::fp8_quantize(stream, expected.data(), values.data(), n);
    const Results r = in_every_schedule([&](Stream& s) {
      Array x(DType::kBF16, widened(values), shift);
      Fp8Memory q(fp8_operand_bytes(n));
      cuda::fp8_quantize(s, q.data(), static_cast<const bf16*>(x.data()), n);
      finish_device_work();
      return Results{scales(q), q.cuda_values(n)};
    });
    EXPECT_EQ(r[0], scales(expected));
    const std::vector<float> codes = expected.cpu_values(n);
    for (size_t i = 0; i < codes.size(); ++i) EXPECT_TRUE(r[1][i] == codes[i] || (std::isnan(r[1][i]) && std::isnan(codes[i]))) << i;
  }
}

// Nothing; odd tails; several blocks.
TEST(CudaGemmFp8, QuantizeGivesTheCpusCodes) {
  for (const Fp8Case& c : kFp8Cases) {
    SCOPED_TRACE(c.name);
    for (const int64_t n : {0, 1, 7, 8, 2051}) expect_the_cpus(rounded(normals(n, 1, static_cast<double>(c.x))));
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  expect_the_cpus(rounded({448, NAN, -3, 0.001f, 7, 8, 9, 10, NAN, 2}));
  expect_the_cpus(rounded({448, -kInfinity, -3}));
  std::vector<float> grown = normals(5000, 2);
  grown[4321] = -1e4f;
  expect_the_cpus(rounded(grown));
}

// Blocks that take several runs each: more numbers than 1,024 blocks of 2,048.
TEST(CudaGemmFp8, ScaleOfManyNumbers) {
  const int64_t n = kFp8Partials * 2048 + 77;
  std::vector<bf16> x(static_cast<size_t>(n), to_bf16(0.5f));
  x[static_cast<size_t>(n - 1)] = to_bf16(-896);
  InlineStream stream;
  Fp8Memory q(fp8_operand_bytes(n));
  cuda::fp8_quantize(stream, q.data(), x.data(), n);
  finish_device_work();
  EXPECT_EQ(q.header().scale, 2.0f);
  const std::vector<float> v = q.cuda_values(n);
  EXPECT_EQ(v.front(), 0.25f);
  EXPECT_EQ(v.back(), -448.0f);
}

// In all shapes: by cuBLASLt where sizes and addresses let it, by the plain kernel elsewhere.
TEST(CudaGemmFp8, Forward) {
  const Workspace workspace(1 << 16);
  for (const Fp8Shape& shape : kFp8Shapes)
    for (const Fp8Case& c : kFp8Cases)
      for (const int shift : {0, 1}) {
        SCOPED_TRACE(fmt::format("{} {}x{}x{} shift {}", c.name, shape.m, shape.n, shape.k, shift));
        const Fp8Layer l(shape, c);
        const int64_t first = l.m / 3, rows = l.m - first;
        std::vector<double> plain, biased;
        const Results r = in_every_schedule([&](Stream& stream) {
          Fp8Memory x(fp8_operand_bytes(l.m * l.k)), w(fp8_packed_bytes(l.n, l.k));
          Array b(DType::kBF16, widened(l.b), shift), y = Array::empty(DType::kF32, rows * l.n, shift), with_bias = Array::empty(DType::kF32, rows * l.n, shift),
                narrow = Array::empty(DType::kBF16, rows * l.n, shift);
          cuda::fp8_quantize(stream, x.data(), l.x.data(), l.m * l.k);
          cuda::fp8_pack(stream, w.data(), l.w.data(), l.n, l.k);
          const auto* bias = static_cast<const bf16*>(b.data());
          cuda::linear_forward_fp8(stream, y.data(), x.data(), w.data(), nullptr, first, rows, l.n, l.k, DType::kF32);
          cuda::linear_forward_fp8(stream, with_bias.data(), x.data(), w.data(), bias, first, rows, l.n, l.k, DType::kF32);
          cuda::linear_forward_fp8(stream, narrow.data(), x.data(), w.data(), bias, first, rows, l.n, l.k, DType::kBF16);
          finish_device_work();
          const auto expected = [&](bool added) {
            return l.product(x.cuda_values(l.m * l.k), static_cast<double>(x.header().scale), w.cuda_values(l.n * l.k),
                             static_cast<double>(w.header().scale), added, first);
          };
          plain = expected(false), biased = expected(true);
          return Results{y.values(), with_bias.values(), narrow.values()};
        });
        EXPECT_LE(wide_error(r[0], plain), sum_error());
        EXPECT_LE(wide_error(r[1], biased), sum_error());
        // cuBLASLt may sum in another order for another type of result: then roundings turn.
        EXPECT_LE(wide_error(r[2], biased), sum_error() + 0x1p-8);
        if (under_emulator) {
          EXPECT_EQ(r[2], as_stored(DType::kBF16, r[1]));
        }
      }
}

TEST(CudaGemmFp8, NothingToDo) {
  InlineStream stream;
  cuda::linear_forward_fp8(stream, nullptr, nullptr, nullptr, nullptr, 0, 0, 16, 16, DType::kF32);
  cuda::linear_forward_fp8(stream, nullptr, nullptr, nullptr, nullptr, 0, 3, 0, 16, DType::kBF16);
}

}  // namespace
}  // namespace megaslide
