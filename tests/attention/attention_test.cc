// Dense, materialised and window attention against fp64, and what must hold exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/attention/random_case.h"
#include "tests/support/elementwise.h"

#include "attention_check/run_kernels.h"
#include "kernels/attention/attention_literal.h"
#include "kernels/tile/unit.h"

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

// bf16 on the units of lesser processors; where this one has less, it runs what it has.
TEST(Attention, every_tile_unit) {
  for (const TileUnit unit : {TileUnit::kAmx, TileUnit::kAvx512, TileUnit::kNone}) {
    limit_tile_unit(unit);
    for (const int64_t n : {1, 31, 33, 300, 600}) expect_kernels_agree(dense_case(n, 1, 40), fmt::format("unit {}, N {}", static_cast<int>(unit), n));
    for (const int64_t d : {1, 12, 32, 100, 128}) expect_kernels_agree(dense_case(70, 2, d), fmt::format("unit {}, d {}", static_cast<int>(unit), d));
    expect_kernels_agree(dense_case(90, 3, 64, 16), fmt::format("unit {}, large logits", static_cast<int>(unit)));
    expect_kernels_agree(window_case({4, 5, 7}, {2, 3, 4}, 1), fmt::format("unit {}, window", static_cast<int>(unit)));
  }
  limit_tile_unit(TileUnit::kAmx);
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

// bf16 cross-attention with ranges of keys and queries, on every tile unit: near fp32, equal bits for any threads, and
// forward each query by itself.
TEST(Attention, bf16_cross_attention_on_every_tile_unit) {
  for (const auto& [queries, keys, heads, d] : std::vector<std::array<int64_t, 4>>{{150, 600, 1, 40}, {70, 13, 3, 128}, {5, 1, 2, 12}, {700, 257, 2, 64}}) {
    Cross wide(2, queries, keys, heads, d);
    wide.run(2);
    const auto narrow = [](const std::vector<float>& v) { return testing_support::rounded(v); };
    const std::vector<bf16> q = narrow(wide.q), k = narrow(wide.k), v = narrow(wide.v);
    for (const TileUnit unit : {TileUnit::kAmx, TileUnit::kAvx512, TileUnit::kNone}) {
      limit_tile_unit(unit);
      std::vector<std::vector<float>> results;
      for (const int threads : {1, 2, 5}) {
        Cross x = wide;
        for (auto* t : {&x.out, &x.lse, &x.dq, &x.dk, &x.dv}) std::fill(t->begin(), t->end(), NAN);
        InlineStream stream(threads);
        std::vector<float> space(static_cast<size_t>(dense_attention_backward_workspace_bytes(x.s, DType::kBF16) / 4), NAN);
        dense_attention_forward(stream, x.out.data(), x.lse.data(), q.data(), k.data(), v.data(), nullptr, x.s, DType::kBF16);
        dense_attention_backward(stream, x.dq.data(), x.dk.data(), x.dv.data(), q.data(), k.data(), v.data(), x.out.data(),
                                 x.lse.data(), x.dout.data(), space.data(), x.s, DType::kBF16);
        std::vector<float> all;
        for (const auto* t : {&x.out, &x.lse, &x.dq, &x.dk, &x.dv}) all.insert(all.end(), t->begin(), t->end());
        results.push_back(std::move(all));
        if (threads > 1) continue;
        // Operands are exact in bf16; P and dS are rounded to 8 bits, errors of random signs.
        EXPECT_LT(testing_support::relative_error(x.out, wide.out), 4e-3);
        EXPECT_LT(testing_support::relative_error(x.dv, wide.dv), 4e-3);
        if (keys == 1) continue;
        EXPECT_LT(testing_support::relative_error(x.dq, wide.dq), 8e-3);
        EXPECT_LT(testing_support::relative_error(x.dk, wide.dk), 8e-3);
      }
      EXPECT_EQ(results[0], results[1]);
      EXPECT_EQ(results[0], results[2]);
    }
    limit_tile_unit(TileUnit::kAmx);
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
