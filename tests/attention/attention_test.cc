// Dense, materialised and window attention against fp64, and what must hold exactly.
#include <gtest/gtest.h>

#include "tests/attention/random_case.h"
#include "tests/support/elementwise.h"

#include "attention_check/run_kernels.h"
#include "kernels/attention/attention_literal.h"

namespace megaslide {
namespace {

using testing_support::expect_kernels_agree;
using testing_support::fill_inputs;

StoredCase dense_case(int64_t tokens, int64_t heads, int64_t d, double spread = 1) {
  StoredCase c;
  c.kind = CaseKind::kDense, c.batch = 2, c.grid = {1, 1, tokens}, c.heads = heads, c.head_dim = d;
  fill_inputs(c, spread);
  return c;
}
StoredCase window_case(std::array<int64_t, 3> grid, std::array<int64_t, 3> window, int64_t layer) {
  StoredCase c;
  c.kind = CaseKind::kWindow, c.batch = 2, c.grid = grid, c.window = window, c.layer = layer, c.heads = 2, c.head_dim = 9;
  fill_inputs(c);
  return c;
}

TEST(Attention, head_sizes_and_ragged_lengths) {
  for (const int64_t d : {1, 2, 30, 64, 71, 128}) expect_kernels_agree(dense_case(37, 3, d), fmt::format("d {}", d));
  for (const int64_t n : {1, 2, 15, 16, 17, 127, 128, 129, 200}) expect_kernels_agree(dense_case(n, 1, 8), fmt::format("N {}", n));
}

TEST(Attention, large_logits) {
  for (const double spread : {1, 4, 16}) expect_kernels_agree(dense_case(60, 2, 24, spread), fmt::format("q × {}", spread));
}

TEST(Attention, every_instruction_set) {
  testing_support::for_each_target([] { expect_kernels_agree(dense_case(83, 2, 30), "target"); });
  testing_support::for_each_target([] { expect_kernels_agree(window_case({4, 5, 7}, {2, 3, 4}, 1), "target"); });
}

TEST(Attention, windows) {
  for (const int64_t layer : {0, 1, 2, 3}) {
    expect_kernels_agree(window_case({4, 5, 7}, {2, 3, 4}, layer), fmt::format("ragged, layer {}", layer));
    expect_kernels_agree(window_case({1, 1, 1}, {3, 7, 7}, layer), "one token");
    expect_kernels_agree(window_case({3, 4, 5}, {8, 1, 5}, layer), "larger than the grid, one, exactly the grid");
    expect_kernels_agree(window_case({1, 9, 8}, {1, 8, 8}, layer), "one more than the window");
  }
}

// The mask by the book: pad, roll, cut, region numbers; per axis, and axes combine by "and".
bool sees_by_rolling(int64_t p, int64_t q, int64_t length, int64_t size, int64_t layer) {
  const int64_t w = std::min(size, length), s = layer % 2 == 1 && w < length ? w / 2 : 0;
  const int64_t padded = w * ((length + w - 1) / w);
  const auto place = [&](int64_t x) {
    const int64_t r = ((x - s) % padded + padded) % padded;
    const int64_t region = s == 0 ? 0 : (r < padded - w ? 0 : (r < padded - s ? 1 : 2));
    return std::pair(r / w, region);
  };
  return place(p) == place(q);
}

TEST(Attention, windows_equal_rolling_with_masks) {
  for (const int64_t layer : {0, 1})
    for (const int64_t length : {1, 2, 5, 8, 9})
      for (const int64_t size : {1, 2, 3, 4, 8, 11}) {
        const WindowShape s{1, 1, 1, length, 1, 1, 1, {1, 1, size}, layer};
        double pairs = 0;
        for (int64_t p = 0; p < length; ++p) {
          std::vector<int64_t> expected;
          for (int64_t q = 0; q < length; ++q)
            if (sees_by_rolling(p, q, length, size, layer)) expected.push_back(q);
          EXPECT_EQ(window_keys(s, p), expected) << length << " " << size << " " << layer << " " << p;
          pairs += static_cast<double>(expected.size());
        }
        EXPECT_EQ(window_attention_pairs(s), pairs);
      }
}

// Cross-attention: other lengths for queries and keys, so it has its own arrays.
struct Cross {
  Cross(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t d)
      : s{batch, queries, keys, heads, d, 1 / std::sqrt(static_cast<float>(d))},
        q(testing_support::bf16_normals(batch * queries * heads * d, 1)), k(testing_support::bf16_normals(batch * keys * heads * d, 2)),
        v(testing_support::bf16_normals(batch * keys * heads * d, 3)), dout(testing_support::bf16_normals(batch * queries * heads * d, 4)),
        out(q.size()), lse(q.size() / static_cast<size_t>(d)), dq(q.size(), 7), dk(k.size(), 7), dv(k.size(), 7) {}
  void run(int threads, bool materialised = false) {
    InlineStream stream(threads);
    std::vector<float> w(static_cast<size_t>(dense_materialised_backward_workspace_bytes(s, DType::kF32) / 4 + 16));
    float* aligned = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(w.data()) + 63) / 64 * 64);
    (materialised ? dense_materialised_forward : dense_attention_forward)(stream, out.data(), lse.data(), q.data(), k.data(),
                                                                          v.data(), aligned, s, DType::kF32);
    (materialised ? dense_materialised_backward : dense_attention_backward)(
        stream, dq.data(), dk.data(), dv.data(), q.data(), k.data(), v.data(), out.data(), lse.data(), dout.data(), aligned, s, DType::kF32);
  }
  // fp64 by the definition
  void reference(std::vector<double>& o, std::vector<double>& gq, std::vector<double>& gk, std::vector<double>& gv) const {
    std::vector<int64_t> keys(static_cast<size_t>(s.keys));
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
    o.resize(q.size()), gq.resize(q.size()), gk.assign(k.size(), 0), gv.assign(k.size(), 0);
    const int64_t stride = s.heads * s.head_dim;
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t n = 0; n < s.queries; ++n)
        for (int64_t h = 0; h < s.heads; ++h) {
          const int64_t row = (b * s.queries + n) * stride + h * s.head_dim, start = b * s.keys * stride + h * s.head_dim;
          const AttentionLiteralQuery<ArithF64, float> x(q.data() + row, k.data() + start, v.data() + start, stride, s.head_dim, s.scale, keys);
          x.output(o.data() + row);
          x.backward(o.data() + row, dout.data() + row, gq.data() + row, gk.data() + start, gv.data() + start);
        }
  }
  AttentionShape s;
  std::vector<float> q, k, v, dout, out, lse, dq, dk, dv;
};

TEST(Attention, cross_attention) {
  for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{{70, 13}, {5, 300}, {1, 1}, {64, 128}, {65, 129}}) {
    Cross x(2, queries, keys, 2, 24);
    std::vector<double> o, gq, gk, gv;
    x.reference(o, gq, gk, gv);
    for (const bool materialised : {false, true}) {
      x.run(2, materialised);
      // fp32 sums of up to 300 terms: a few units of 2⁻²⁴ each, growing with the square root of the length.
      const double tolerance = 0x1p-24 * 8 * std::sqrt(300.0);
      const auto error = [](const std::vector<double>& reference, const std::vector<float>& ours) {
        return relative_error(reference, ours);  // symmetric enough at this size
      };
      EXPECT_LT(error(o, x.out), tolerance) << queries << " " << keys;
      EXPECT_LT(error(gv, x.dv), tolerance) << queries << " " << keys;
      if (keys == 1) continue;  // P = 1: these gradients are 0, and rounding is all there is
      EXPECT_LT(error(gq, x.dq), tolerance) << queries << " " << keys;
      EXPECT_LT(error(gk, x.dk), tolerance) << queries << " " << keys;
    }
  }
}

TEST(Attention, same_bits_for_any_thread_count_and_on_repeat) {
  Cross a(2, 150, 140, 3, 40), b = a;
  for (const bool materialised : {false, true}) {
    a.run(1, materialised);
    for (const int threads : {1, 2, 5}) {
      b.run(threads, materialised);
      EXPECT_EQ(a.out, b.out);
      EXPECT_EQ(a.lse, b.lse);
      EXPECT_EQ(a.dq, b.dq);
      EXPECT_EQ(a.dk, b.dk);
      EXPECT_EQ(a.dv, b.dv);
    }
  }
}

TEST(Attention, batch_of_two_is_two_batches_of_one) {
  Cross both(2, 33, 50, 2, 16), one(1, 33, 50, 2, 16);
  both.run(2);
  const auto half = [](const std::vector<float>& v, size_t i) {
    const auto n = static_cast<std::ptrdiff_t>(v.size() / 2);
    return std::vector<float>(v.begin() + static_cast<std::ptrdiff_t>(i) * n, v.begin() + static_cast<std::ptrdiff_t>(i + 1) * n);
  };
  for (const size_t i : {0u, 1u}) {
    one.q = half(both.q, i), one.k = half(both.k, i), one.v = half(both.v, i), one.dout = half(both.dout, i);
    one.run(2);
    EXPECT_EQ(one.out, half(both.out, i));
    EXPECT_EQ(one.dq, half(both.dq, i));
    EXPECT_EQ(one.dk, half(both.dk, i));
    EXPECT_EQ(one.dv, half(both.dv, i));
  }
}

TEST(Attention, constant_values_come_back) {
  Cross x(1, 40, 60, 2, 8);
  std::fill(x.v.begin(), x.v.end(), 3.0f);
  x.run(1);
  // Σ P over 60 terms of rounding 2⁻²⁴ each, times 3.
  for (const float o : x.out) EXPECT_NEAR(o, 3.0f, 3 * 60 * 0x1p-24);
}

TEST(Attention, nan_stays_in_its_row_and_infinity_is_not_hidden) {
  for (const bool materialised : {false, true}) {
    Cross x(1, 20, 130, 1, 4);
    x.q[3 * 4] = NAN;
    x.run(1, materialised);
    for (size_t i = 0; i < x.out.size(); ++i) EXPECT_EQ(std::isnan(x.out[i]), i / 4 == 3) << i;
    for (size_t i = 0; i < x.dq.size(); ++i) EXPECT_EQ(std::isnan(x.dq[i]), i / 4 == 3) << i;
    Cross y(1, 20, 130, 1, 4);
    y.k[100 * 4] = INFINITY;  // every score of key 100 is ±inf: one wins all or none
    y.run(1, materialised);
    for (size_t n = 0; n < 20; ++n) EXPECT_EQ(std::isnan(y.out[n * 4]), y.q[n * 4] > 0) << n;
  }
}

// The two cost functions that a plan charges.
TEST(Attention, costs) {
  const AttentionShape s{2, 10, 20, 3, 8, 1};
  const Cost f = dense_attention_forward.cost(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, s, DType::kBF16);
  EXPECT_EQ(f.flops, 4.0 * 2 * 3 * 10 * 20 * 8);
  EXPECT_EQ(f.bytes, 2.0 * (480 + 2 * 960) + 4 * 480);
  const Cost b = dense_attention_backward.cost(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, s, DType::kBF16);
  EXPECT_EQ(b.flops, 2.5 * f.flops);
  EXPECT_EQ(b.kernel_class, KernelClass::kAttention);
}

}  // namespace
}  // namespace megaslide
