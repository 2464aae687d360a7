// The motion term whose motion is given, against the one that finds it: told what that one found, it does the same.
#pragma once
#include <functional>

#include <gtest/gtest.h>

#include "kernels/dsa/dsa_geometry.h"
#include "kernels/dsa/motion.h"
#include "tests/attention/random_case.h"

namespace megaslide::testing_support {

struct GivenMotionKernels {
  std::function<MotionForward> find;
  std::function<MotionBackward> find_backward;
  std::function<MotionGivenForward> given;
  std::function<MotionGivenBackward> given_backward;
  std::function<int64_t(const DsaShape&)> forward_bytes, backward_bytes;
};

inline void expect_given_equals_found(const GivenMotionKernels& k, Stream& stream, const DsaShape& s, const std::string& what) {
  const int64_t rows = s.batch * s.tokens(), count = dsa_offset_count(s), kt = s.kernel[0];
  const std::vector<float> c = bf16_normals(rows * kMotionChannels, 1), gain = bf16_normals(s.groups, 2), doffsets = bf16_normals(rows * count, 3);
  std::vector<float> found = bf16_normals(rows * count, 4), given = found, m(static_cast<size_t>(rows * kt * 2)), lse(static_cast<size_t>(rows * kt)), norm(static_cast<size_t>(rows));
  std::vector<double> forward(static_cast<size_t>(k.forward_bytes(s)) / 8 + 16), backward(static_cast<size_t>(k.backward_bytes(s)) / 8 + 16);
  const auto aligned = [](std::vector<double>& x) { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(x.data()) + 63) / 64 * 64); };
  const float scale = 1;
  k.find(stream, found.data(), m.data(), lse.data(), norm.data(), c.data(), &scale, gain.data(), aligned(forward), s, DType::kF32);
  // Frames outside a token's window hold what must not be read.
  std::vector<float> displacement(static_cast<size_t>(rows * s.frames * 2), 1e30f), same(m.size(), 1e30f);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t t = row % s.tokens() / (s.height * s.width);
    const DsaBounds b = dsa_bounds(s, t);
    const int64_t start = dsa_window_start(t, b.k_eff[0], b.lo[0], b.hi[0]);
    for (int64_t j = 0; j < b.k_eff[0]; ++j)
      for (int64_t a = 0; a < 2; ++a)
        displacement[static_cast<size_t>((row * s.frames + start + j) * 2 + a)] = m[static_cast<size_t>((row * kt + j) * 2 + a)];
  }
  k.given(stream, given.data(), same.data(), displacement.data(), gain.data(), s, DType::kF32);
  EXPECT_EQ(same, m) << what;
  EXPECT_EQ(given, found) << what;
  std::vector<float> dc(c.size()), ds(1), expected(static_cast<size_t>(s.groups), 0.5f), dgain = expected;
  k.find_backward(stream, dc.data(), ds.data(), expected.data(), doffsets.data(), m.data(), lse.data(), norm.data(), c.data(), &scale,
                  gain.data(), aligned(backward), s, DType::kF32);
  k.given_backward(stream, dgain.data(), doffsets.data(), m.data(), s);
  for (size_t g = 0; g < dgain.size(); ++g) EXPECT_NEAR(dgain[g], expected[g], 1e-5 * (1 + std::abs(expected[g]))) << what << ", gain " << g;
}

// Both modes, with and without shots, a window longer than the clip.
inline void expect_given_motion(const GivenMotionKernels& k, Stream& stream) {
  const int32_t lo[] = {0, 0, 2, 2}, hi[] = {1, 1, 3, 3};
  for (const DsaOffsetMode mode : {DsaOffsetMode::kFull, DsaOffsetMode::kSlice}) {
    DsaShape s{.batch = 2, .frames = 4, .height = 3, .width = 5, .heads = 2, .head_dim = 8, .kernel = {3, 2, 2}, .mode = mode, .groups = 2};
    expect_given_equals_found(k, stream, s, "whole clip");
    s.batch = 1, s.t_lo = lo, s.t_hi = hi;
    expect_given_equals_found(k, stream, s, "shots");
    s.t_lo = s.t_hi = nullptr, s.kernel[0] = 5;
    expect_given_equals_found(k, stream, s, "long window");
  }
}

}  // namespace megaslide::testing_support
