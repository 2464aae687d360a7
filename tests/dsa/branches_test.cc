// The pooled branch and the offset net: against fp64, and what must hold exactly.
#include <gtest/gtest.h>

#include <algorithm>

#include "attention_check/run_kernels.h"
#include "tensor/tensor.h"
#include "tests/attention/random_case.h"
#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using testing_support::bf16_normals;
using testing_support::expect_kernels_agree;

StoredCase pooled_case(std::array<int64_t, 3> grid, std::array<int64_t, 3> tile = {4, 4, 4}) {
  StoredCase c;
  c.kind = CaseKind::kPooled, c.batch = 2, c.grid = grid, c.heads = 3, c.head_dim = 10, c.tile = tile;
  testing_support::fill_inputs(c);
  return c;
}

TEST(Pooled, ragged_and_exact_grids) {
  for (const auto& grid : {std::array<int64_t, 3>{1, 1, 1}, {4, 8, 4}, {5, 3, 9}, {8, 5, 4}}) expect_kernels_agree(pooled_case(grid), "grid");
  expect_kernels_agree(pooled_case({3, 7, 5}, {2, 3, 7}), "other tile");
}

TEST(Pooled, gate_of_zero_adds_nothing_but_learns) {
  StoredCase c = pooled_case({4, 8, 9});
  std::fill(c.tensors["gate"].begin(), c.tensors["gate"].end(), 0.0f);
  InlineStream stream(2);
  const NamedResults r = tested_kernels(CaseKind::kPooled).front().run(c, DType::kF32, stream);
  for (const char* name : {"out", "dq", "dk", "dv"})
    for (const double x : r.at(name)) ASSERT_EQ(x, 0) << name;
  for (const double x : r.at("dgate")) EXPECT_NE(x, 0);
}

TEST(Pooled, forward_and_backward_accumulate) {
  const StoredCase c = pooled_case({2, 5, 6});
  const PooledShape s = c.pooled_shape();
  InlineStream stream(1);
  const auto& q = c.at("q");
  std::vector<float> out(q.size()), saved(static_cast<size_t>(pooled_saved_count(s))), dq(q.size()), dk(q.size()), dv(q.size()), dgate(3);
  HostTensor workspace(DType::kU8, {pooled_workspace_bytes(s)});
  std::vector<float> once, once_dq, once_dgate;
  for (int i = 0; i < 2; ++i) {
    pooled_forward(stream, out.data(), saved.data(), q.data(), c.at("k").data(), c.at("v").data(), c.at("gate").data(), workspace.data(), s, DType::kF32);
    pooled_backward(stream, dq.data(), dk.data(), dv.data(), dgate.data(), saved.data(), c.at("gate").data(), c.at("dout").data(), workspace.data(), s);
    if (i == 0) once = out, once_dq = dq, once_dgate = dgate;
  }
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], 2 * once[i]);
  for (size_t i = 0; i < dq.size(); ++i) ASSERT_EQ(dq[i], 2 * once_dq[i]);
  for (size_t i = 0; i < dgate.size(); ++i) ASSERT_EQ(dgate[i], 2 * once_dgate[i]);
}

StoredCase net_case(std::array<int64_t, 3> grid, int64_t channels) {
  StoredCase c;
  c.kind = CaseKind::kOffsetNet, c.batch = 2, c.grid = grid, c.channels = channels, c.outputs = 7;
  c.tensors["x"] = bf16_normals(c.batch * c.tokens() * channels, 1);
  c.tensors["conv_weight"] = bf16_normals(channels * 27, 2, 0.2);
  c.tensors["conv_bias"] = bf16_normals(channels, 3);
  c.tensors["norm_weight"] = bf16_normals(channels, 4);
  c.tensors["norm_bias"] = bf16_normals(channels, 5);
  c.tensors["linear_weight"] = bf16_normals(7 * channels, 6);
  c.tensors["linear_bias"] = bf16_normals(7, 7);
  c.tensors["doffsets"] = bf16_normals(c.batch * c.tokens() * 7, 8);
  return c;
}

TEST(OffsetNet, grids_and_channels) {
  for (const int64_t channels : {2, 16, 30, 71}) expect_kernels_agree(net_case({2, 3, 5}, channels), fmt::format("C {}", channels));
  for (const auto& grid : {std::array<int64_t, 3>{1, 1, 1}, {3, 1, 1}, {1, 4, 1}, {4, 5, 6}}) expect_kernels_agree(net_case(grid, 24), "grid");
}

TEST(OffsetNet, every_instruction_set) {
  testing_support::for_each_target([] { expect_kernels_agree(net_case({2, 3, 4}, 37), "target"); });
}

TEST(OffsetNet, same_bits_for_any_thread_count) {
  const StoredCase c = net_case({3, 5, 6}, 40);
  const auto run = [&](int threads) {
    InlineStream stream(threads);
    NamedResults r = tested_kernels(CaseKind::kOffsetNet).front().run(c, DType::kF32, stream);
    r.erase("offsets");  // the linear layer is not ours
    return r;
  };
  const NamedResults first = run(1);
  for (const int threads : {1, 2, 5}) EXPECT_EQ(run(threads), first);
}

TEST(OffsetNet, bf16_output_is_the_rounded_fp32_output) {
  const StoredCase c = net_case({2, 3, 4}, 19);
  OffsetNetShape s = c.offset_net_shape();
  InlineStream stream(1);
  std::vector<float> wide(c.at("x").size());
  std::vector<bf16> narrow(wide.size());
  const auto run = [&](void* g) {
    offset_net_forward(stream, g, nullptr, c.at("x").data(), c.at("conv_weight").data(), c.at("conv_bias").data(),
                       c.at("norm_weight").data(), c.at("norm_bias").data(), s);
  };
  run(wide.data());
  s.out_dtype = DType::kBF16;
  run(narrow.data());
  for (size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(narrow[i], to_bf16(wide[i]));
}

}  // namespace
}  // namespace megaslide
