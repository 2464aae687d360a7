// The fp64 reference against central differences of its own forward: nothing else vouches for the gradients.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/attention/random_case.h"

namespace megaslide {
namespace {

using testing_support::bf16_normals;
using testing_support::fill_inputs;

// Σ out·dout, in fp64.
double loss(const StoredCase& c, const std::string& out, const std::vector<float>& dout) {
  const NamedResults results = reference_results(c, Arithmetic::kF64);
  double sum = 0;
  for (size_t i = 0; i < dout.size(); ++i) sum += results.at(out)[i] * static_cast<double>(dout[i]);
  return sum;
}

// Some elements of `input` against its gradient. The step is exact in fp32 on bf16 inputs of order 1, and small enough
// that the third derivative's share, h²/6 of order-1 values, stays below 1e-6 of a sum of many terms.
void expect_gradient(const StoredCase& c, const std::string& input, const std::string& gradient, const std::string& out = "out",
                     const std::string& dout = "dout") {
  constexpr float kStep = 0x1p-11f;
  const NamedResults results = reference_results(c, Arithmetic::kF64);
  const auto& g = results.at(gradient);
  StoredCase moved = c;
  auto& x = moved.tensors.at(input);
  ASSERT_EQ(x.size(), g.size());
  const size_t stride = std::max<size_t>(1, x.size() / 30);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); i += stride) {
    const float at = x[i];
    x[i] = at + kStep;
    const double up = loss(moved, out, c.at(dout)), above = static_cast<double>(x[i]);
    x[i] = at - kStep;
    const double down = loss(moved, out, c.at(dout)), below = static_cast<double>(x[i]);
    x[i] = at;
    const double slope = (up - down) / (above - below);
    difference += (slope - g[i]) * (slope - g[i]);
    norm += g[i] * g[i];
  }
  EXPECT_GT(norm, 0) << gradient;
  EXPECT_LT(std::sqrt(difference / norm), 1e-5) << gradient;
}

// Moves raw offsets until the displacement's fraction keeps 0.05 from an integer, where the derivative jumps.
void keep_off_kinks(StoredCase& c) {
  auto& o = c.tensors["offsets"];
  const int64_t axes = c.mode == DsaOffsetMode::kSlice ? 2 : 3;
  for (size_t i = 0; i < o.size(); ++i) {
    const double r = c.reach[static_cast<size_t>(static_cast<int64_t>(i) % axes + 3 - axes)];
    if (r == 0) continue;
    for (;;) {
      const double e = r * std::tanh(static_cast<double>(o[i]) / r), f = e - std::floor(e);
      if (f > 0.05 && f < 0.95) break;
      o[i] = o[i] > 1.5f ? o[i] / 4 : o[i] + 0.0625f;
    }
  }
}

TEST(Gradient, dsa_in_all_modes) {
  for (const DsaOffsetMode mode : {DsaOffsetMode::kFull, DsaOffsetMode::kSlice, DsaOffsetMode::kRigid})
    for (const bool shots : {false, true}) {
      StoredCase c;
      c.kind = CaseKind::kDsa, c.batch = 1, c.grid = {4, 2, 4}, c.heads = 3, c.head_dim = 2, c.groups = 2, c.mode = mode;
      c.kernel = {3, 2, 3}, c.reach = {1, 2, 1.5};
      if (shots) c.t_lo = {0, 0, 2, 2}, c.t_hi = {1, 1, 3, 3};
      fill_inputs(c);
      keep_off_kinks(c);
      for (const char* name : {"q", "k", "v", "offsets"}) expect_gradient(c, name, std::string("d") + name);
    }
}

TEST(Gradient, dense_and_window) {
  for (const CaseKind kind : {CaseKind::kDense, CaseKind::kWindow}) {
    StoredCase c;
    c.kind = kind, c.batch = 2, c.grid = {3, 3, 4}, c.heads = 2, c.head_dim = 5, c.window = {2, 3, 2}, c.layer = 1;
    fill_inputs(c);
    for (const char* name : {"q", "k", "v"}) expect_gradient(c, name, std::string("d") + name);
  }
}

TEST(Gradient, pooled_branch) {
  StoredCase c;
  c.kind = CaseKind::kPooled, c.batch = 2, c.grid = {5, 4, 6}, c.heads = 2, c.head_dim = 3, c.tile = {4, 4, 4};
  fill_inputs(c);
  for (const char* name : {"q", "k", "v", "gate"}) expect_gradient(c, name, std::string("d") + name);
}

TEST(Gradient, offset_net) {
  StoredCase c;
  c.kind = CaseKind::kOffsetNet, c.batch = 2, c.grid = {2, 3, 3}, c.channels = 6, c.outputs = 5;
  const int64_t rows = c.batch * c.tokens();
  c.tensors["x"] = bf16_normals(rows * 6, 1);
  c.tensors["conv_weight"] = bf16_normals(6 * 27, 2, 0.3);
  c.tensors["conv_bias"] = bf16_normals(6, 3);
  c.tensors["norm_weight"] = bf16_normals(6, 4);
  c.tensors["norm_bias"] = bf16_normals(6, 5);
  c.tensors["linear_weight"] = bf16_normals(5 * 6, 6);
  c.tensors["linear_bias"] = bf16_normals(5, 7);
  c.tensors["doffsets"] = bf16_normals(rows * 5, 8);
  for (const char* name : {"x", "conv_weight", "conv_bias", "norm_weight", "norm_bias", "linear_weight", "linear_bias"})
    expect_gradient(c, name, std::string("d") + name, "offsets", "doffsets");
}

}  // namespace
}  // namespace megaslide
