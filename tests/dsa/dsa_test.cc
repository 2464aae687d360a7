// DSA on the CPU: what must hold exactly, and every kernel against fp64 over shapes of all kinds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention_check/run_kernels.h"
#include "kernels/dsa/dsa_block.h"
#include "kernels/dsa/dsa_gather.h"
#include "tests/attention/random_case.h"
#include "tests/dsa/dsa_spec.h"
#include "tests/dsa/head_run.h"
#include "tests/dsa/query_range.h"
#include "tests/dsa/one_kernel.h"
#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using testing_support::expect_kernels_agree;
using testing_support::fill_inputs;
using testing_support::kModes;

using Spec = testing_support::DsaSpec<3, 5, 6>;
StoredCase make_case(const Spec& s) { return testing_support::make_dsa_case(s); }

NamedResults gather(const StoredCase& c, int threads = 2, DType dtype = DType::kF32) {
  InlineStream stream(threads);
  return tested_kernels(CaseKind::kDsa).front().run(c, dtype, stream);
}

TEST(Dsa, grids_kernels_and_reaches) {
  const std::array<int64_t, 3> grids[] = {{1, 1, 1}, {5, 1, 1}, {1, 6, 1}, {1, 1, 7}, {2, 5, 9}, {4, 3, 17}};
  const std::array<int64_t, 3> kernels[] = {{1, 1, 1}, {3, 5, 5}, {2, 4, 3}};
  const std::array<double, 3> reaches[] = {{1, 2, 2}, {0, 2, 0}, {0.5, 0, 3.25}};
  for (const auto& grid : grids)
    for (const auto& kernel : kernels)
      for (const auto& reach : reaches)
        for (const DsaOffsetMode mode : kModes)
          expect_kernels_agree(make_case({.grid = grid, .kernel = kernel, .reach = reach, .mode = mode}),
                               fmt::format("grid {} {} {} kernel {} {} {} reach {} mode {}", grid[0], grid[1], grid[2], kernel[0],
                                           kernel[1], kernel[2], reach[2], static_cast<int>(mode)));
}

TEST(Dsa, head_sizes_groups_and_batches) {
  for (const int64_t d : {1, 30, 64, 71, 128})
    expect_kernels_agree(make_case({.grid = {2, 3, 5}, .heads = 3, .head_dim = d, .groups = 2, .batch = 3}), fmt::format("d {}", d));
  for (const int64_t groups : {1, 2, 3, 5})
    expect_kernels_agree(make_case({.grid = {2, 3, 5}, .heads = 5, .head_dim = 4, .groups = groups}), fmt::format("G {}", groups));
}

TEST(Dsa, large_logits) {
  for (const double spread : {1, 4, 16}) {
    StoredCase c = make_case({});
    fill_inputs(c, spread);
    expect_kernels_agree(c, fmt::format("q × {}", spread));
  }
}

TEST(Dsa, shots) {
  for (const DsaOffsetMode mode : kModes) {
    StoredCase c = make_case({.grid = {7, 3, 4}, .kernel = {3, 3, 3}, .reach = {2, 1, 1}, .mode = mode});
    c.t_lo = {0, 0, 2, 2, 2, 2, 6}, c.t_hi = {1, 1, 5, 5, 5, 5, 6};
    expect_kernels_agree(c, "shots");
  }
}

TEST(Dsa, the_queries_of_some_frames) {
  const testing_support::DsaKernels kernels{&cpu::dsa_forward, &cpu::dsa_backward, &dsa_forward_workspace_bytes, &dsa_backward_workspace_bytes};
  InlineStream stream(2);
  for (const DsaKernel kernel : {DsaKernel::kGather, DsaKernel::kTile})
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int64_t d : {7, 32})
        for (const auto& [begin, frames] : {std::pair{0, 2}, {3, 1}, {2, 5}, {6, 1}}) {
          const testing_support::OneDsaKernel only(kernel);
          testing_support::expect_query_range(kernels, stream, {.frames = 7, .height = 5, .width = 6, .heads = 3, .head_dim = d, .scale = 0.3f, .kernel = {3, 3, 3}, .groups = 2},
                                              begin, frames, dtype, fmt::format("kernel {}, {}, d {}, {} frames from {} on", static_cast<int>(kernel), dtype_name(dtype), d, frames, begin));
        }
}

TEST(Dsa, a_run_of_the_heads_of_wider_rows) {
  const testing_support::DsaKernels kernels{&cpu::dsa_forward, &cpu::dsa_backward, &dsa_forward_workspace_bytes, &dsa_backward_workspace_bytes};
  InlineStream stream(2);
  for (const DsaKernel kernel : {DsaKernel::kGather, DsaKernel::kTile})
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int64_t d : {7, 32}) {
        const testing_support::OneDsaKernel only(kernel);
        testing_support::expect_head_run_equals_heads_alone(
            kernels, stream,
            {.batch = 2, .frames = 3, .height = 5, .width = 9, .heads = 3, .head_dim = d, .scale = 0.4f, .kernel = {2, 3, 3}, .groups = 2}, dtype,
            fmt::format("kernel {}, {}, d {}", static_cast<int>(kernel), dtype_name(dtype), d));
      }
}

TEST(Dsa, every_instruction_set) {
  testing_support::for_each_target([] {
    expect_kernels_agree(make_case({.grid = {3, 5, 7}, .heads = 3, .head_dim = 30, .groups = 3}), "target");
    expect_kernels_agree(make_case({.grid = {3, 5, 7}, .mode = DsaOffsetMode::kSlice}), "target, slice");
  });
}

// A halo so large that vectors are interpolated instead, in the middle of the same call.
TEST(Dsa, huge_reach_takes_the_literal_path) {
  const StoredCase c = make_case({.grid = {9, 11, 12}, .kernel = {1, 1, 1}, .reach = {40, 40, 40}, .heads = 1, .head_dim = 3, .groups = 1});
  const DsaShape s = c.dsa_shape();
  EXPECT_TRUE(dsa_prefers_literal(DsaBlock(s, DsaBlocking(s), 0)));
  expect_kernels_agree(c, "literal");
}

// One axis at a time: catches swapped axes and swapped components.
TEST(Dsa, offsets_along_one_axis) {
  for (size_t axis = 0; axis < 3; ++axis) {
    StoredCase c = make_case({.grid = {4, 5, 7}});
    auto& o = c.tensors["offsets"];
    for (size_t i = 0; i < o.size(); ++i)
      if (i % 3 != axis) o[i] = 0;
    expect_kernels_agree(c, fmt::format("axis {}", axis));
  }
}

// Plain attention over the shifted window, by a list of keys.
std::vector<double> neighbourhood_attention(const StoredCase& c) {
  const DsaShape s = c.dsa_shape();
  std::vector<double> out(c.at("q").size());
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t n = 0; n < c.tokens(); ++n) {
      const int64_t p[3] = {n / (s.height * s.width), n / s.width % s.height, n % s.width};
      const DsaBounds bounds = dsa_bounds(s, p[0]);
      int64_t start[3];
      for (int a = 0; a < 3; ++a) start[a] = dsa_window_start(p[a], bounds.k_eff[a], bounds.lo[a], bounds.hi[a]);
      for (int64_t h = 0; h < c.heads; ++h) {
        std::vector<double> score, row(static_cast<size_t>(c.head_dim));
        std::vector<int64_t> at;
        for (int64_t t = 0; t < bounds.k_eff[0]; ++t)
          for (int64_t y = 0; y < bounds.k_eff[1]; ++y)
            for (int64_t x = 0; x < bounds.k_eff[2]; ++x) {
              const int64_t key = ((start[0] + t) * s.height + start[1] + y) * s.width + start[2] + x;
              const int64_t k = ((b * c.tokens() + key) * c.heads + h) * c.head_dim, q = ((b * c.tokens() + n) * c.heads + h) * c.head_dim;
              double dot = 0;
              for (int64_t e = 0; e < c.head_dim; ++e)
                dot += static_cast<double>(c.at("q")[static_cast<size_t>(q + e)]) * static_cast<double>(c.at("k")[static_cast<size_t>(k + e)]);
              score.push_back(dot * static_cast<double>(c.scale)), at.push_back(k);
            }
        const double top = *std::max_element(score.begin(), score.end());
        double sum = 0;
        for (double& x : score) sum += x = std::exp(x - top);
        for (size_t i = 0; i < score.size(); ++i)
          for (int64_t e = 0; e < c.head_dim; ++e)
            row[static_cast<size_t>(e)] += score[i] / sum * static_cast<double>(c.at("v")[static_cast<size_t>(at[i] + e)]);
        std::copy(row.begin(), row.end(), out.begin() + ((b * c.tokens() + n) * c.heads + h) * c.head_dim);
      }
    }
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

// Outputs of order 1, fp32 sums over a few dozen samples.
constexpr double kRounding = 64 * 0x1p-24;

TEST(Dsa, zero_offsets_are_neighbourhood_attention) {
  for (const DsaOffsetMode mode : kModes) {
    StoredCase c = make_case({.grid = {3, 6, 7}, .kernel = {3, 3, 5}, .mode = mode});
    std::fill(c.tensors["offsets"].begin(), c.tensors["offsets"].end(), 0.0f);
    EXPECT_LT(largest_difference(gather(c).at("out"), neighbourhood_attention(c)), kRounding);
    // R = 0 on every axis is the same, whatever the offsets hold.
    const auto zero = gather(c).at("out");
    c = make_case({.grid = {3, 6, 7}, .kernel = {3, 3, 5}, .reach = {0, 0, 0}, .mode = mode});
    std::fill(c.tensors["offsets"].begin(), c.tensors["offsets"].end(), NAN);
    EXPECT_LT(largest_difference(gather(c).at("out"), zero), kRounding);
    const auto doffsets = gather(c).at("doffsets");
    for (const double g : doffsets) EXPECT_EQ(g, 0);
  }
}

TEST(Dsa, constant_integer_offset_is_a_shifted_neighbourhood) {
  const std::array<int64_t, 3> grid{7, 9, 10};
  StoredCase c = make_case({.grid = grid, .kernel = {3, 3, 3}, .reach = {2, 2, 2}, .mode = DsaOffsetMode::kRigid, .groups = 1});
  const int64_t shift[3] = {1, -1, 1};
  auto& o = c.tensors["offsets"];
  for (size_t i = 0; i < o.size(); ++i) o[i] = static_cast<float>(2 * std::atanh(static_cast<double>(shift[i % 3]) / 2));
  // Interior query p with the shift sees what the query p + shift sees without: give it that query's q.
  StoredCase plain = c;
  plain.reach = {0, 0, 0};
  const int64_t move = (shift[0] * grid[1] + shift[1]) * grid[2] + shift[2], row = c.heads * c.head_dim;
  auto &q = c.tensors["q"], &q0 = plain.tensors["q"];
  for (int64_t n = 0; n < c.tokens(); ++n)
    if (n + move >= 0 && n + move < c.tokens()) std::copy_n(q0.begin() + (n + move) * row, row, q.begin() + n * row);
  const auto moved = gather(c).at("out"), still = gather(plain).at("out");
  int64_t compared = 0;
  for (int64_t t = 2; t < grid[0] - 2; ++t)
    for (int64_t h = 2; h < grid[1] - 2; ++h)
      for (int64_t w = 2; w < grid[2] - 2; ++w)
        for (int64_t e = 0; e < row; ++e, ++compared) {
          const int64_t at = ((t * grid[1] + h) * grid[2] + w) * row + e;
          // The raw offset is rounded to fp32, so the samples lie some 2⁻²² beside the integer.
          EXPECT_NEAR(moved[static_cast<size_t>(at)], still[static_cast<size_t>(at + move * row)], 1e-5);
        }
  EXPECT_GT(compared, 100);
}

TEST(Dsa, constant_values_come_back) {
  StoredCase c = make_case({.grid = {3, 7, 7}, .kernel = {3, 5, 5}});
  std::fill(c.tensors["v"].begin(), c.tensors["v"].end(), 2.0f);
  const auto out = gather(c).at("out");
  for (const double o : out) EXPECT_NEAR(o, 2, 2 * kRounding);
}

TEST(Dsa, batch_of_two_is_two_batches_of_one) {
  StoredCase both = make_case({.batch = 2}), one = both;
  one.batch = 1;
  const NamedResults whole = gather(both);
  for (const size_t i : {0u, 1u}) {
    for (auto& [name, values] : one.tensors) {
      const auto& from = both.at(name);
      const auto n = static_cast<std::ptrdiff_t>(from.size() / 2);
      values.assign(from.begin() + static_cast<std::ptrdiff_t>(i) * n, from.begin() + static_cast<std::ptrdiff_t>(i + 1) * n);
    }
    for (const auto& [name, values] : gather(one)) {
      const auto& all = whole.at(name);
      EXPECT_TRUE(std::equal(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(i * values.size()))) << name;
    }
  }
}

TEST(Dsa, same_bits_for_any_thread_count_and_on_repeat) {
  const StoredCase c = make_case({.grid = {3, 9, 10}, .kernel = {3, 5, 5}, .heads = 5, .groups = 3, .batch = 2});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const NamedResults first = gather(c, 1, dtype);
    for (const int threads : {1, 2, 5}) EXPECT_EQ(gather(c, threads, dtype), first) << threads;
  }
}

// Kernel A widens them; kernel B does where there is no tile unit (tile_test.cc).
TEST(Dsa, bf16_inputs_give_the_bits_of_fp32_inputs) {
  const testing_support::OneDsaKernel forced(DsaKernel::kGather);
  const StoredCase c = make_case({});  // inputs are exact in bf16
  EXPECT_EQ(gather(c, 2, DType::kBF16), gather(c, 2, DType::kF32));
}

TEST(Dsa, second_shot_leaves_the_first_bit_identical) {
  for (const float poison : {5.0f, NAN, INFINITY}) {
    StoredCase c = make_case({.grid = {6, 4, 5}, .reach = {2, 2, 2}});
    c.t_lo = {0, 0, 0, 3, 3, 3}, c.t_hi = {2, 2, 2, 5, 5, 5};
    const NamedResults before = gather(c);
    for (const char* name : {"q", "k", "v", "dout"}) {
      auto& x = c.tensors[name];
      std::fill(x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end(), poison);
    }
    for (const auto& [name, values] : gather(c)) {
      const auto& old = before.at(name);
      EXPECT_TRUE(std::equal(old.begin(), old.begin() + static_cast<std::ptrdiff_t>(old.size() / 2), values.begin())) << name;
    }
  }
}

// Keys that no sample reads, and corners of weight 0, may hold anything: grids one off the block size, poisoned.
TEST(Dsa, unread_keys_may_hold_anything) {
  for (const std::array<int64_t, 3>& grid : {std::array<int64_t, 3>{1, 15, 15}, {1, 16, 16}, {1, 17, 17}}) {
    StoredCase c = make_case({.grid = grid, .kernel = {1, 3, 3}, .reach = {0, 2, 2}, .groups = 1});
    std::fill(c.tensors["offsets"].begin(), c.tensors["offsets"].end(), 0.0f);  // every upper corner has weight 0
    const NamedResults clean = gather(c);
    const int64_t row = c.heads * c.head_dim, hole = (8 * grid[2] + 8) * row;
    for (const char* name : {"k", "v"}) std::fill_n(c.tensors[name].begin() + hole, row, NAN);
    const NamedResults holed = gather(c);
    for (int64_t h = 0; h < grid[1]; ++h)
      for (int64_t w = 0; w < grid[2]; ++w)
        for (int64_t e = 0; e < row; ++e) {
          const size_t at = static_cast<size_t>((h * grid[2] + w) * row + e);
          const bool near = std::abs(h - 8) <= 1 && std::abs(w - 8) <= 1;
          EXPECT_EQ(std::isnan(holed.at("out")[at]), near) << h << " " << w;
          if (!near) {
            EXPECT_NEAR(holed.at("out")[at], clean.at("out")[at], kRounding);
          }
          // dk and dv of a key are NaN only where a spoilt query samples it.
          const bool reached = std::abs(h - 8) <= 2 && std::abs(w - 8) <= 2;
          EXPECT_EQ(std::isnan(holed.at("dv")[at]), reached) << h << " " << w;
        }
  }
}

TEST(Dsa, wild_offsets_never_leave_the_grid_and_nan_is_not_hidden) {
  StoredCase c = make_case({.grid = {3, 5, 6}, .groups = 1});
  auto& o = c.tensors["offsets"];
  const int64_t count = dsa_offset_count(c.dsa_shape());
  const float wild[] = {1e20f, -1e20f, 3.4e38f, -3.4e38f, INFINITY, -INFINITY};
  for (size_t i = 0; i < o.size(); ++i) o[i] = wild[i * 7 % 6];
  for (const auto& [name, values] : gather(c))
    for (const double x : values) ASSERT_TRUE(std::isfinite(x)) << name;
  expect_kernels_agree(c, "saturated");
  const int64_t query = 37, row = c.heads * c.head_dim;
  o[static_cast<size_t>(query * count + 5)] = NAN;
  const NamedResults r = gather(c);
  for (int64_t n = 0; n < c.tokens(); ++n)
    for (int64_t e = 0; e < row; ++e) EXPECT_EQ(std::isnan(r.at("out")[static_cast<size_t>(n * row + e)]), n == query) << n;
}

TEST(Dsa, slots_that_do_not_exist_get_gradient_zero) {
  const StoredCase c = make_case({.grid = {2, 2, 9}, .kernel = {3, 4, 3}, .groups = 1});
  const auto doffsets = gather(c).at("doffsets");
  int64_t absent = 0;
  for (size_t i = 0; i < doffsets.size(); ++i) {
    const size_t slot = i / 3 % 36;
    if (slot / 12 < 2 && slot / 3 % 4 < 2) continue;
    EXPECT_EQ(doffsets[i], 0);
    ++absent;
  }
  EXPECT_GT(absent, 0);
}

// More blocks than one band of the backward holds: sums run on over the bands.
TEST(Dsa, backward_in_bands) {
  const testing_support::OneDsaKernel forced(DsaKernel::kGather);
  StoredCase c = make_case({.grid = {1, 12, 16}, .kernel = {5, 13, 13}, .reach = {0, 1, 1}, .heads = 6, .head_dim = 2, .groups = 6});
  const DsaShape s = c.dsa_shape();
  const int64_t bytes = dsa_backward_workspace_bytes(s, DType::kF32);
  EXPECT_LE(bytes, int64_t{32} << 20);
  EXPECT_LT(bytes, DsaBlocking(s).blocks * DsaBand::bytes_a_block(s));
  expect_kernels_agree(c, "bands");
  EXPECT_EQ(gather(c, 1), gather(c, 3));
}

// A softmax over one sample is 1 whatever the score, so q and k get exactly nothing.
TEST(Dsa, one_sample_gives_no_gradient_to_q_and_k) {
  const NamedResults r = gather(make_case({.kernel = {1, 1, 1}}));
  for (const char* name : {"dq", "dk"})
    for (const double x : r.at(name)) EXPECT_EQ(x, 0);
  EXPECT_NE(r.at("dv")[0], 0);
}

TEST(Dsa, blocks_cover_every_token_once) {
  for (const auto& grid : {std::array<int64_t, 3>{2, 5, 9}, {1, 1, 40}, {3, 40, 1}, {1, 16, 16}, {1, 1, 1}}) {
    DsaShape s;
    s.frames = grid[0], s.height = grid[1], s.width = grid[2], s.head_dim = 1;
    for (int64_t& k : s.kernel) k = 3;
    const DsaBlocking blocking(s);
    std::vector<int> seen(static_cast<size_t>(s.tokens()));
    for (int64_t i = 0; i < blocking.blocks; ++i) {
      const DsaBlock b(s, blocking, i);
      ASSERT_GE(b.active, 1);
      ASSERT_LE(b.active, kDsaBlock);
      for (int64_t lane = 0; lane < b.active; ++lane) ++seen[static_cast<size_t>(b.token[lane])];
      for (int64_t lane = b.active; lane < kDsaBlock; ++lane) EXPECT_EQ(b.token[lane], b.token[b.active - 1]);
      for (int a = 0; a < 3; ++a) {
        EXPECT_GE(b.halo_lo[a], 0);
        EXPECT_LE(b.halo_lo[a] + b.halo_n[a], grid[static_cast<size_t>(a)]);
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), s.tokens());
  }
}

TEST(Dsa, costs) {
  StoredCase c = make_case({.grid = {2, 5, 9}, .kernel = {3, 3, 5}});
  const DsaShape s = c.dsa_shape();
  const Cost f = dsa_forward.cost(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, s, DType::kBF16);
  EXPECT_EQ(f.flops, 4.0 * 90 * (2 * 3 * 5) * 16);  // the window shrinks to the 2 frames
  EXPECT_EQ(f.bytes, 90.0 * (16 * (3 * 2 + 4) + 2 * 4 + 4 * 3 * 2 * 45));
  const Cost b = dsa_backward.cost(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, s, DType::kBF16);
  EXPECT_EQ(b.flops, 2.5 * f.flops);
}

}  // namespace
}  // namespace megaslide
