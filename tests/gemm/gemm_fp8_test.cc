// E4M3, and the 8-bit product on the CPU against fp64 sums of its own codes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/fp8_layer.h"

namespace megaslide {
namespace {

using namespace testing_support;

TEST(E4m3, CodesAreTheFormats) {
  for (int code = 0; code < 256; ++code) {
    const auto c = static_cast<uint8_t>(code);
    const float v = from_e4m3(c);
    if ((c & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(v) && std::isnan(f8_e4m3_to_float(c))) << code;
    } else {
      EXPECT_EQ(v, f8_e4m3_to_float(c)) << code;
      EXPECT_EQ(std::signbit(v), code >= 128) << code;
      EXPECT_EQ(to_float(to_bf16(v)), v) << code;  // exact in bf16
    }
    EXPECT_EQ(to_e4m3(v), c) << code;
  }
}

// Between each two neighbours: below the middle, on it (the even one), above it.
TEST(E4m3, RoundsToNearestEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto low = static_cast<uint8_t>(code), high = static_cast<uint8_t>(code + 1);
    const float middle = (from_e4m3(low) + from_e4m3(high)) / 2;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 0.0f)), low) << code;
    EXPECT_EQ(to_e4m3(middle), code % 2 == 0 ? low : high) << code;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 1000.0f)), high) << code;
    EXPECT_EQ(to_e4m3(-middle), (code % 2 == 0 ? low : high) | 0x80) << code;
  }
}

TEST(E4m3, Saturates) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.0f, 463.0f, 464.0f, 465.0f, 1e6f, std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(to_e4m3(x), 0x7e) << x;
    EXPECT_EQ(to_e4m3(-x), 0xfe) << x;
  }
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
}

// The largest is code 448 and the scale 1/448 of it; zeros have scale 1; nothing is lost to a scale that underflows.
TEST(Fp8Quantize, ScaleIsTheLargestBy448) {
  InlineStream stream(2);
  const auto quantised = [&](const std::vector<float>& v) {
    const auto n = static_cast<int64_t>(v.size());
    Fp8Memory q(fp8_operand_bytes(n));
    fp8_quantize(stream, q.data(), rounded(v).data(), n);
    return std::pair{q.header().scale, q.cpu_values(n)};
  };
  using Quantised = std::pair<float, std::vector<float>>;
  EXPECT_EQ(quantised({}), (Quantised{1.0f, {}}));
  EXPECT_EQ(quantised({0, 0, -0.0f}), (Quantised{1.0f, {0, 0, -0.0f}}));
  EXPECT_EQ(quantised({-896, 1, 0.5f, 224}), (Quantised{2.0f, {-448, 0.5f, 0.25f, 112}}));
  const Quantised huge = quantised({0x1.8p127f, -0x1p127f});
  EXPECT_EQ(huge.second, (std::vector<float>{448, -288}));  // 298.7 lies between 288 and 320
  EXPECT_EQ(huge.first, 0x1.8p127f / 448);
  const Quantised tiny = quantised({0x1p-130f, -0x1p-133f});  // the least scale is 2^-126
  EXPECT_EQ(tiny, (Quantised{0x1p-126f, {0x1p-4f, -0x1p-7f}}));
  std::vector<float> many(200000, 1.0f);
  many[150000] = 448;
  EXPECT_EQ(quantised(many).first, 1.0f);
}

// A NaN is itself alone; an infinity is one, and all else 0.
TEST(Fp8Quantize, WhatIsNoNumberStaysSo) {
  InlineStream stream;
  for (const float x : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Fp8Memory q(fp8_operand_bytes(2));
    fp8_quantize(stream, q.data(), rounded({448, x}).data(), 2);
    const std::vector<float> v = q.cpu_values(2);
    EXPECT_EQ(v[0], std::isnan(x) ? 448 : 0);
    EXPECT_TRUE(std::isnan(v[1]));
  }
}

// Sums of exact products in fp32 against fp64: kFp32; a rounding of the result to bf16 adds 2^-8 in each element. Rows
// from any first one on; the same bits on any number of threads.
TEST(LinearForwardFp8, IsTheProductOfTheCodes) {
  for (const Fp8Shape& shape : kFp8Shapes)
    for (const Fp8Case& c : kFp8Cases) {
      SCOPED_TRACE(fmt::format("{} {}x{}x{}", c.name, shape.m, shape.n, shape.k));
      const Fp8Layer l(shape, c);
      const int64_t first = l.m / 3, rows = l.m - first;
      std::vector<float> seen;
      for (const int threads : {1, 3}) {
        InlineStream stream(threads);
        Fp8Memory x(fp8_operand_bytes(l.m * l.k)), w(fp8_operand_bytes(l.n * l.k)), packed(fp8_packed_bytes(l.n, l.k));
        fp8_quantize(stream, x.data(), l.x.data(), l.m * l.k);
        fp8_quantize(stream, w.data(), l.w.data(), l.n * l.k);
        fp8_pack(stream, packed.data(), l.w.data(), l.n, l.k);
        EXPECT_EQ(packed.header().scale, w.header().scale);
        for (const bool bias : {false, true}) {
          std::vector<float> y(static_cast<size_t>(rows * l.n), NAN);
          std::vector<bf16> narrow(y.size());
          const bf16* b = bias ? l.b.data() : nullptr;
          linear_forward_fp8(stream, y.data(), x.data(), packed.data(), b, first, rows, l.n, l.k, DType::kF32);
          linear_forward_fp8(stream, narrow.data(), x.data(), packed.data(), b, first, rows, l.n, l.k, DType::kBF16);
          const std::vector<double> expected = l.product(x.cpu_values(l.m * l.k), static_cast<double>(x.header().scale), w.cpu_values(l.n * l.k),
                                                         static_cast<double>(w.header().scale), bias, first);
          EXPECT_LE(wide_error(y, expected), kFp32);
          EXPECT_EQ(narrow, rounded(y));
          if (bias && threads == 1) seen = y;
          if (bias) {
            EXPECT_EQ(y, seen);
          }
        }
      }
    }
}

// Four binary digits: each operand is off by up to 2^-4 of itself, by less than 2^-4/√3 in the root mean square, and their
// product by √2 of that, as its sums are: 0.82·2^-4.
TEST(LinearForwardFp8, IsNearTheUnquantisedProduct) {
  InlineStream stream;
  const Fp8Layer l({64, 48, 256}, kFp8Cases[0]);
  Fp8Memory x(fp8_operand_bytes(l.m * l.k)), packed(fp8_packed_bytes(l.n, l.k));
  fp8_quantize(stream, x.data(), l.x.data(), l.m * l.k);
  fp8_pack(stream, packed.data(), l.w.data(), l.n, l.k);
  std::vector<float> y(static_cast<size_t>(l.m * l.n));
  linear_forward_fp8(stream, y.data(), x.data(), packed.data(), l.b.data(), 0, l.m, l.n, l.k, DType::kF32);
  const double error = wide_error(y, l.product(widened(l.x), 1, widened(l.w), 1, true, 0));
  EXPECT_LE(error, 0x1p-4);
  EXPECT_GT(error, 0x1p-8);
}

TEST(LinearForwardFp8, NothingToDo) {
  InlineStream stream;
  Fp8Memory none(fp8_operand_bytes(0));
  fp8_quantize(stream, none.data(), nullptr, 0);
  EXPECT_EQ(none.header().scale, 1.0f);
  linear_forward_fp8(stream, nullptr, none.data(), none.data(), nullptr, 0, 0, 3, 4, DType::kF32);
}

}  // namespace
}  // namespace megaslide
