// The motion term: against its definition in fp64 on random shapes, that definition against finite differences, and what
// must hold exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention_check/run_kernels.h"
#include "kernels/dsa/motion_literal.h"
#include "tensor/tensor.h"
#include "tests/attention/random_case.h"
#include "tests/dsa/given_motion.h"
#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using testing_support::bf16_normals;
using testing_support::expect_kernels_agree;

struct Options {
  DsaOffsetMode mode = DsaOffsetMode::kSlice;
  std::array<int64_t, 3> kernel{3, 2, 3};
  int64_t batch = 1, groups = 3, channels = 12;
  float s = 1;
  std::vector<int32_t> t_lo = {}, t_hi = {};
};

StoredCase motion_case(std::array<int64_t, 3> grid, const Options& o, uint64_t seed = 11) {
  StoredCase c;
  c.kind = CaseKind::kMotion, c.batch = o.batch, c.grid = grid, c.mode = o.mode, c.kernel = o.kernel, c.groups = o.groups;
  c.channels = o.channels, c.t_lo = o.t_lo, c.t_hi = o.t_hi;
  const int64_t rows = c.batch * c.tokens(), count = dsa_offset_count(c.dsa_shape());
  c.tensors["x"] = bf16_normals(rows * c.channels, 1, 1, seed);
  c.tensors["motion_proj_weight"] = bf16_normals(kMotionChannels * c.channels, 2, 0.3, seed);
  c.tensors["s"] = {o.s};
  c.tensors["gain"] = bf16_normals(c.groups, 3, 1, seed);
  c.tensors["net_offsets"] = bf16_normals(rows * count, 4, 1, seed);
  auto& doffsets = c.tensors["doffsets"] = bf16_normals(rows * count, 5, 1, seed);
  // The operator leaves 0 at slots that do not exist.
  const DsaShape s = c.dsa_shape();
  for (int64_t row = 0; row < rows; ++row) {
    const DsaBounds b = dsa_bounds(s, row % s.tokens() / (s.height * s.width));
    for (int64_t slot = 0; slot < s.slots(); ++slot) {
      const int64_t j[3] = {slot / (s.kernel[1] * s.kernel[2]), slot / s.kernel[2] % s.kernel[1], slot % s.kernel[2]};
      const bool exists = j[0] < b.k_eff[0] && (s.mode == DsaOffsetMode::kSlice || (j[1] < b.k_eff[1] && j[2] < b.k_eff[2]));
      for (int64_t g = 0; g < s.groups && !exists; ++g)
        for (int a = 0; a < 3; ++a)
          if (const int64_t at = dsa_offset_index(s, g, j[0], slot, a); at >= 0) doffsets[static_cast<size_t>(row * count + at)] = 0;
    }
  }
  return c;
}

NamedResults run(const StoredCase& c, int threads = 1, DType dtype = DType::kF32) {
  InlineStream stream(threads);
  return tested_kernels(CaseKind::kMotion).front().run(c, dtype, stream);
}

const std::array<int64_t, 3> kGrids[] = {{1, 1, 1}, {2, 1, 1}, {3, 1, 7}, {3, 6, 1}, {1, 5, 4}, {2, 4, 4}, {4, 5, 6}, {3, 9, 13}, {2, 3, 20}};

TEST(Motion, given_is_what_would_be_found) {
  InlineStream stream(2);
  testing_support::expect_given_motion({&cpu::motion_forward, &cpu::motion_backward, &cpu::motion_given_forward, &cpu::motion_given_backward,
                                        &motion_forward_workspace_bytes, &motion_backward_workspace_bytes},
                                       stream);
}

TEST(Motion, grids_in_both_modes) {
  for (const DsaOffsetMode mode : {DsaOffsetMode::kSlice, DsaOffsetMode::kFull})
    for (const auto& grid : kGrids)
      expect_kernels_agree(motion_case(grid, {.mode = mode, .batch = 2}), fmt::format("{} x {} x {}", grid[0], grid[1], grid[2]));
}

TEST(Motion, windows_along_time_and_shots) {
  for (const int64_t kt : {1, 2, 4, 5, 7}) expect_kernels_agree(motion_case({5, 3, 4}, {.kernel = {kt, 1, 1}}), fmt::format("k_t {}", kt));
  for (const DsaOffsetMode mode : {DsaOffsetMode::kSlice, DsaOffsetMode::kFull})
    for (const int64_t kt : {2, 3, 5})
      expect_kernels_agree(motion_case({6, 3, 5}, {.mode = mode, .kernel = {kt, 2, 2}, .t_lo = {0, 0, 0, 3, 4, 4}, .t_hi = {2, 2, 2, 3, 5, 5}}), fmt::format("cuts, k_t {}", kt));
}

TEST(Motion, scales_of_the_scores) {
  for (const float s : {0.0f, -0.75f, 0.125f, 4.0f, 16.0f}) expect_kernels_agree(motion_case({3, 6, 7}, {.batch = 2, .s = s}), fmt::format("s {}", s));
}

TEST(Motion, zero_patches_and_zero_gains) {
  StoredCase c = motion_case({3, 6, 7}, {});
  for (size_t i = 0; i < 30 * 12; ++i) c.tensors["x"][i] = 0;  // four rows of the first frame
  expect_kernels_agree(c, "zero patches");
  std::fill(c.tensors["x"].begin(), c.tensors["x"].end(), 0.0f);
  expect_kernels_agree(c, "nothing but zeros");
  StoredCase still = motion_case({3, 6, 7}, {});
  std::fill(still.tensors["gain"].begin(), still.tensors["gain"].end(), 0.0f);
  const NamedResults r = run(still);
  const auto& net = still.at("net_offsets");
  for (size_t i = 0; i < net.size(); ++i) ASSERT_EQ(static_cast<float>(r.at("offsets")[i]), net[i]);
  for (const char* name : {"dx", "dmotion_proj_weight", "ds"})
    for (const double x : r.at(name)) ASSERT_EQ(x, 0) << name;
  for (const double x : r.at("dgain")) EXPECT_NE(x, 0);
}

// Rows of several pieces, the last one ragged.
TEST(Motion, wide_and_tall_frames) {
  expect_kernels_agree(motion_case({2, 11, 300}, {.kernel = {2, 1, 1}, .groups = 1, .channels = 4}), "wide");
  expect_kernels_agree(motion_case({2, 83, 21}, {.kernel = {2, 1, 1}, .groups = 1, .channels = 4}), "tall");
}

TEST(Motion, every_instruction_set) {
  testing_support::for_each_target([] { expect_kernels_agree(motion_case({3, 5, 9}, {.mode = DsaOffsetMode::kFull, .batch = 2}), "target"); });
}

TEST(Motion, same_bits_for_any_thread_count_and_on_repeat) {
  for (const DsaOffsetMode mode : {DsaOffsetMode::kSlice, DsaOffsetMode::kFull}) {
    const StoredCase c = motion_case({4, 70, 30}, {.mode = mode, .kernel = {3, 1, 2}, .batch = 2, .groups = 2, .channels = 4});
    const NamedResults first = run(c);
    for (const int threads : {1, 2, 3, 4}) EXPECT_EQ(run(c, threads), first) << threads;
  }
}

TEST(Motion, batch_of_two_is_two_batches_of_one) {
  const StoredCase both = motion_case({3, 4, 9}, {.batch = 2});
  const NamedResults all = run(both);
  for (const size_t i : {0u, 1u}) {
    StoredCase one = both;
    one.batch = 1;
    for (const char* name : {"x", "net_offsets", "doffsets"}) {
      auto& t = one.tensors[name];
      const auto n = static_cast<std::ptrdiff_t>(t.size() / 2);
      t = {t.begin() + static_cast<std::ptrdiff_t>(i) * n, t.begin() + static_cast<std::ptrdiff_t>(i + 1) * n};
    }
    const NamedResults r = run(one);
    for (const char* name : {"offsets", "m", "dx"}) {
      const auto& t = all.at(name);
      const auto n = static_cast<std::ptrdiff_t>(t.size() / 2);
      EXPECT_EQ(r.at(name), std::vector<double>(t.begin() + static_cast<std::ptrdiff_t>(i) * n, t.begin() + static_cast<std::ptrdiff_t>(i + 1) * n)) << name;
    }
  }
}

TEST(Motion, nothing_crosses_a_cut) {
  const StoredCase c = motion_case({5, 4, 6}, {.kernel = {5, 1, 1}, .t_lo = {0, 0, 2, 2, 2}, .t_hi = {1, 1, 4, 4, 4}});
  StoredCase other = c;
  const size_t shot = 2 * 24 * 12;  // elements of x in the first shot
  for (size_t i = shot; i < other.tensors["x"].size(); ++i) other.tensors["x"][i] += 1;
  const NamedResults a = run(c), b = run(other);
  for (const auto& [name, per_token] : {std::pair{"m", size_t{10}}, std::pair{"dx", size_t{12}}})
    for (size_t i = 0; i < 48 * per_token; ++i) ASSERT_EQ(a.at(name)[i], b.at(name)[i]) << name;
}

// A texture that slides by whole tokens is found where its patch is in view.
TEST(Motion, finds_the_motion_of_a_sliding_texture) {
  StoredCase c = motion_case({3, 12, 13}, {.channels = 8});
  const auto texture = bf16_normals(40 * 40 * 8, 9);
  constexpr int64_t kStep[2] = {2, -1};
  auto& x = c.tensors["x"];
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t h = 0; h < 12; ++h)
      for (int64_t w = 0; w < 13; ++w)
        for (int64_t i = 0; i < 8; ++i)
          x[static_cast<size_t>(((t * 12 + h) * 13 + w) * 8 + i)] =
              texture[static_cast<size_t>((((h - t * kStep[0] + 10) * 40) + w - t * kStep[1] + 10) * 8 + i)];
  const auto m = run(c).at("m");
  int64_t seen = 0;
  for (int64_t h = 1; h < 11; ++h)
    for (int64_t w = 1; w < 12; ++w)
      for (int64_t j = 0; j < 3; ++j) {  // of the middle frame
        const int64_t to_h = h + (j - 1) * kStep[0], to_w = w + (j - 1) * kStep[1];
        if (to_h < 1 || to_h > 10 || to_w < 1 || to_w > 11) continue;
        const auto at = static_cast<size_t>((((12 + h) * 13 + w) * 3 + j) * 2);
        // The other 80 have cosines of 1/12 in the mean: e^(20·(0.4 − 1)) of the weight each, at most, times 4 tokens.
        EXPECT_NEAR(m[at], static_cast<double>((j - 1) * kStep[0]), 1e-2);
        EXPECT_NEAR(m[at + 1], static_cast<double>((j - 1) * kStep[1]), 1e-2);
        ++seen;
      }
  EXPECT_GT(seen, 200);
}

// The gradient buffers of parameters add up, that of c does not.
TEST(Motion, backward_accumulates_parameters_alone) {
  const StoredCase c = motion_case({3, 4, 5}, {.channels = kMotionChannels});
  const DsaShape s = c.dsa_shape();
  InlineStream stream(1);
  const auto &x = c.at("x"), &doffsets = c.at("doffsets");
  const size_t rows = x.size() / kMotionChannels;
  std::vector<float> offsets(doffsets.size()), m(rows * 6), lse(rows * 3), norm(rows), dc(x.size(), NAN), ds(1), dgain(3);
  HostTensor forward(DType::kU8, {motion_forward_workspace_bytes(s)}), backward(DType::kU8, {motion_backward_workspace_bytes(s)});
  for (HostTensor* t : {&forward, &backward}) std::fill(t->data(), t->data() + t->bytes(), std::byte{0xff});
  std::vector<float> once, once_dgain;
  float once_ds = 0;
  for (int i = 0; i < 2; ++i) {
    motion_forward(stream, offsets.data(), m.data(), lse.data(), norm.data(), x.data(), c.at("s").data(), c.at("gain").data(), forward.data(), s, DType::kF32);
    motion_backward(stream, dc.data(), ds.data(), dgain.data(), doffsets.data(), m.data(), lse.data(), norm.data(), x.data(), c.at("s").data(),
                    c.at("gain").data(), backward.data(), s, DType::kF32);
    if (i == 0) once = dc, once_dgain = dgain, once_ds = ds[0];
  }
  EXPECT_EQ(dc, once);
  EXPECT_EQ(ds[0], 2 * once_ds);
  for (size_t g = 0; g < dgain.size(); ++g) EXPECT_EQ(dgain[g], 2 * once_dgain[g]);
}

TEST(Motion, costs) {
  DsaShape s;
  s.batch = 2, s.frames = 3, s.height = 4, s.width = 5, s.kernel[0] = 5, s.mode = DsaOffsetMode::kSlice, s.groups = 2;
  const Cost f = motion_forward.cost(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, s, DType::kF32);
  EXPECT_EQ(f.flops, 120.0 * 81 * 46 * 2);
  const Cost b = motion_backward.cost(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, s, DType::kF32);
  EXPECT_EQ(b.flops, 3 * f.flops);
}

// Σ offsets·doffsets in fp64 along each input.
TEST(MotionGradient, definition_has_the_slopes_of_its_forward) {
  for (const DsaOffsetMode mode : {DsaOffsetMode::kSlice, DsaOffsetMode::kFull})
    for (const bool shots : {false, true}) {
      Options o{.mode = mode, .kernel = {3, 2, 2}, .groups = 2, .channels = 5};
      if (shots) o.t_lo = {0, 0, 2, 2}, o.t_hi = {1, 1, 3, 3};
      StoredCase c = motion_case({4, 3, 4}, o);
      const auto loss = [&](const StoredCase& at) {
        const NamedResults r = reference_results(at, Arithmetic::kF64);
        double sum = 0;
        for (size_t i = 0; i < r.at("offsets").size(); ++i) sum += r.at("offsets")[i] * static_cast<double>(at.at("doffsets")[i]);
        return sum;
      };
      const NamedResults exact = reference_results(c, Arithmetic::kF64);
      for (const char* name : {"x", "motion_proj_weight", "s", "gain", "net_offsets"}) {
        const auto& g = exact.at(std::string("d") + name);
        auto& x = c.tensors.at(name);
        double difference = 0, norm = 0;
        for (size_t i = 0; i < x.size(); i += std::max<size_t>(1, x.size() / 20)) {
          // Exact in fp32 on bf16 values; β = 20 makes third derivatives of 1e3 or so, h²/6 of which is the error.
          const float at = x[i], step = 0x1p-14f;
          x[i] = at + step;
          const double up = loss(c), above = static_cast<double>(x[i]);
          x[i] = at - step;
          const double down = loss(c), below = static_cast<double>(x[i]);
          x[i] = at;
          const double slope = (up - down) / (above - below);
          difference += (slope - g[i]) * (slope - g[i]), norm += g[i] * g[i];
        }
        EXPECT_GT(norm, 0) << name;
        EXPECT_LT(std::sqrt(difference / norm), 1e-5) << name;
      }
    }
}

}  // namespace
}  // namespace megaslide
