// Shapes that the stored cases lack: odd head sizes, several tiles and bands, other numbers of keys than of queries.
#include <gtest/gtest.h>

#include <cmath>

#include "attention_check/emulated.h"
#include "kernels/dsa/dsa_cuda.h"
#include "kernels/simt/emulated_kernels.h"
#include "tests/attention/random_case.h"
#include "tests/cuda/schedules.h"
#include "tests/dsa/given_motion.h"
#include "tests/dsa/head_run.h"
#include "tests/dsa/query_range.h"

namespace megaslide {
namespace {

using testing_support::bf16_normals;

void expect_agree(StoredCase c, const std::string& what) {
  if (c.tensors.empty()) testing_support::fill_inputs(c);
  testing_support::fill_results(c);
  InlineStream stream;
  for (const KernelCheck& check : check_emulated(c, stream)) {
    EXPECT_TRUE(check.ok) << what << ": " << to_json_line(check);
    ++testing_support::counted.cases;
  }
}

StoredCase make_case(CaseKind kind, std::array<int64_t, 3> grid, int64_t heads, int64_t d) {
  StoredCase c;
  c.kind = kind, c.grid = grid, c.heads = heads, c.head_dim = d;
  return c;
}
StoredCase dsa_case(std::array<int64_t, 3> grid, std::array<int64_t, 3> kernel, std::array<double, 3> reach, DsaOffsetMode mode,
                    int64_t heads, int64_t groups, int64_t d) {
  StoredCase c = make_case(CaseKind::kDsa, grid, heads, d);
  c.kernel = kernel, c.reach = reach, c.mode = mode, c.groups = groups;
  return c;
}

// 1 and 71: rows that no vector load fits; 160: beyond the tensor-core kernels.
TEST(CudaShapes, dense_head_sizes) {
  for (const int64_t d : {1, 30, 71, 128, 160}) expect_agree(make_case(CaseKind::kDense, {1, 7, 10}, 1, d), fmt::format("d {}", d));
}

TEST(CudaShapes, windows_of_several_tiles) {
  StoredCase c = make_case(CaseKind::kWindow, {2, 9, 11}, 1, 16);
  c.window = {2, 6, 7};
  for (const int64_t layer : {0, 1}) {
    c.layer = layer, c.tensors.clear();
    expect_agree(c, fmt::format("layer {}", layer));
  }
}

TEST(CudaShapes, dsa_head_sizes_and_groups) {
  for (const int64_t d : {1, 71, 128, 160})
    expect_agree(dsa_case({2, 3, 5}, {2, 3, 3}, {1, 2, 2}, DsaOffsetMode::kFull, 3, 2, d), fmt::format("d {}", d));
}

// The first takes kernel A, the second B where it fits; backward of both ends in A's part for the keys.
TEST(CudaShapes, dsa_of_a_run_of_the_heads_of_wider_rows) {
  const testing_support::DsaKernels kernels{&cuda::dsa_forward, &cuda::dsa_backward, emulated::Kernels::dsa_forward_workspace_bytes,
                                            &cuda::dsa_backward_workspace_bytes};
  InlineStream stream;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t d : {7, 16})
      testing_support::expect_head_run_equals_heads_alone(
          kernels, stream, {.batch = 1, .frames = 2, .height = 3, .width = 9, .heads = 2, .head_dim = d, .scale = 0.4f, .kernel = {2, 3, 3}, .groups = 2},
          dtype, fmt::format("{}, d {}", dtype_name(dtype), d));
}

TEST(CudaShapes, dsa_of_the_queries_of_some_frames) {
  const testing_support::DsaKernels kernels{&cuda::dsa_forward, &cuda::dsa_backward, emulated::Kernels::dsa_forward_workspace_bytes,
                                            &cuda::dsa_backward_workspace_bytes};
  InlineStream stream;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const auto& [begin, frames] : {std::pair{0, 2}, {1, 1}, {2, 2}})
      testing_support::expect_query_range(kernels, stream, {.frames = 4, .height = 3, .width = 9, .heads = 2, .head_dim = 16, .scale = 0.4f, .kernel = {2, 3, 3}, .groups = 2},
                                          begin, frames, dtype, fmt::format("{}, {} frames from {} on", dtype_name(dtype), frames, begin));
}

TEST(CudaShapes, given_motion) {
  InlineStream stream;
  testing_support::expect_given_motion({&cuda::motion_forward, &cuda::motion_backward, &cuda::motion_given_forward, &cuda::motion_given_backward,
                                        emulated::Kernels::motion_forward_workspace_bytes, &cuda::motion_backward_workspace_bytes},
                                       stream);
}

// Tiles of 8×8 queries that end inside the grid, and a halo of more than one band of 192 keys.
TEST(CudaShapes, dsa_tiles_and_bands) {
  expect_agree(dsa_case({1, 14, 15}, {1, 3, 5}, {0, 3, 4}, DsaOffsetMode::kSlice, 1, 1, 8), "13 lines of 15 keys");
  expect_agree(dsa_case({2, 9, 10}, {2, 3, 3}, {1, 2, 2.5}, DsaOffsetMode::kFull, 1, 1, 8), "full");
  expect_agree(dsa_case({2, 3, 9}, {2, 3, 3}, {1.5, 2, 1}, DsaOffsetMode::kRigid, 1, 1, 8), "rigid");
}

// A line of the halo longer than a band, and windows larger than tiles: kernel A.
TEST(CudaShapes, dsa_beyond_tiles) {
  expect_agree(dsa_case({1, 1, 230}, {1, 1, 3}, {0, 0, 120}, DsaOffsetMode::kFull, 1, 1, 4), "reach");
}

// Offsets that are no numbers, or far outside, read nothing outside the grid and touch no other query.
TEST(CudaShapes, dsa_wild_offsets) {
  StoredCase c = dsa_case({2, 4, 5}, {2, 3, 3}, {1, 2, 2}, DsaOffsetMode::kFull, 2, 2, 8);
  testing_support::fill_inputs(c);
  InlineStream stream;
  for (const TestedKernel& kernel : emulated_kernels(CaseKind::kDsa)) {
    const std::vector<double> tame = kernel.run(c, DType::kBF16, stream).at("out");
    StoredCase wild = c;
    const size_t count = static_cast<size_t>(dsa_offset_count(c.dsa_shape()));
    wild.tensors["offsets"][7 * count] = NAN;
    for (size_t i = 11 * count; i < 12 * count; ++i) wild.tensors["offsets"][i] = i % 2 == 0 ? 1e20f : -INFINITY;
    const std::vector<double> out = kernel.run(wild, DType::kBF16, stream).at("out");
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t token = i / 16, head = i / 8 % 2;
      const bool nan = token == 7 && head == 0, changed = token == 7 || token == 11;  // head 0: the NaN's group
      EXPECT_EQ(std::isnan(out[i]), nan) << kernel.name << " " << i;
      if (!changed) {
        EXPECT_EQ(out[i], tame[i]) << kernel.name << " " << i;
      }
    }
  }
}

// Queries and keys of different number, against the CPU's fp32 kernels.
TEST(CudaShapes, cross_attention) {
  InlineStream stream;
  for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{{70, 13}, {5, 100}, {3, 1}}) {
    const AttentionShape s{2, queries, keys, 2, 24, 0.2f};
    const auto q = bf16_normals(2 * queries * 48, 1), k = bf16_normals(2 * keys * 48, 2), v = bf16_normals(2 * keys * 48, 3),
               dout = bf16_normals(2 * queries * 48, 4);
    const auto run = [&](bool emulate, bool narrow) {
      const auto input = [&](const std::vector<float>& x) {
        std::vector<uint32_t> r(x.size());
        convert_from_f32(r.data(), narrow ? DType::kBF16 : DType::kF32, x.data(), static_cast<int64_t>(x.size()));
        return r;
      };
      const auto qi = input(q), ki = input(k), vi = input(v);
      std::vector<float> out(q.size()), lse(static_cast<size_t>(4 * queries)), dq(q.size()), dk(k.size()), dv(v.size()), d(lse);
      const auto both = [&](const auto& forward, const auto& backward) {
        const DType t = narrow ? DType::kBF16 : DType::kF32;
        forward(stream, out.data(), lse.data(), qi.data(), ki.data(), vi.data(), nullptr, s, t);
        backward(stream, dq.data(), dk.data(), dv.data(), qi.data(), ki.data(), vi.data(), out.data(), lse.data(), dout.data(),
                 d.data(), s, t);
      };
      emulate ? both(emulated::dense_attention_forward, emulated::dense_attention_backward)
              : both(dense_attention_forward, dense_attention_backward);
      return std::vector<std::vector<float>>{out, lse, dv, dq, dk};
    };
    const auto exact = run(false, false);
    for (const bool narrow : {false, true}) {
      const auto ours = run(true, narrow);
      // fp32: sums of up to 100 terms in another order. bf16: P and dS rounded to 8 bits, errors of random signs.
      const double tolerance = narrow ? 8e-3 : 100 * 0x1p-24;
      for (size_t i = 0; i < (keys == 1 ? 3u : 5u); ++i)  // over one key dq and dk are 0
        EXPECT_LT(relative_error({exact[i].begin(), exact[i].end()}, ours[i]), tolerance) << queries << " " << keys << " " << i << narrow;
      for (size_t i = 3; i < 5 && keys == 1; ++i)
        for (const float x : ours[i]) EXPECT_EQ(x, 0);
    }
  }
}

// More than the kernels take is an error, not a wrong result.
TEST(CudaShapes, limits_are_errors) {
  InlineStream stream;
  DsaShape s;
  s.frames = 1, s.head_dim = 257;
  EXPECT_THROW(cuda::dsa_forward(stream, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, s, DType::kF32), Error);
  AttentionShape a;
  a.queries = a.keys = 1, a.head_dim = 300;
  EXPECT_THROW(cuda::dense_attention_forward(stream, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, a, DType::kF32), Error);
  a.queries = int64_t{1} << 31, a.head_dim = 8;
  EXPECT_THROW(cuda::dense_attention_forward(stream, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, a, DType::kF32), Error);
  s.head_dim = 8, s.mode = DsaOffsetMode::kRigid;
  EXPECT_THROW(cuda::motion_forward(stream, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, s, DType::kF32), Error);
}

}  // namespace
}  // namespace megaslide
