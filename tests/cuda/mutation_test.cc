// Kernels with one barrier left out: the emulator must notice each of them, by a race or by other results.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "attention_check/emulated.h"
#include "kernels/flow/flow.h"
#include "kernels/simt/simt.h"
#include "tests/cuda/frames.h"
#include "tests/attention/random_case.h"

namespace megaslide {
namespace {

using Results = NamedResults;

StoredCase make_case(CaseKind kind, std::array<int64_t, 3> grid, int64_t heads, int64_t d) {
  StoredCase c;
  c.kind = kind, c.grid = grid, c.heads = heads, c.head_dim = d;
  return c;
}

// Whether some schedule shows that the barrier is gone.
bool noticed(const TestedKernel& kernel, const StoredCase& c, DType dtype, const Results& expected, const simt::Barrier& barrier) {
  InlineStream stream;
  for (const simt::Order order : simt::kAllOrders) {
    simt::set_options({.order = order, .left_out = barrier});
    try {
      const Results got = kernel.run(c, dtype, stream);
      for (const auto& [name, values] : expected)
        if (std::memcmp(values.data(), got.at(name).data(), values.size() * sizeof(double)) != 0) return true;
    } catch (const simt::Error&) {
      return true;
    }
  }
  return false;
}

// Each barrier that a kernel comes to in one of the cases must be needed in one of them. Returns how many there are.
size_t expect_all_noticed(std::vector<StoredCase> cases, const std::string& what) {
  for (StoredCase& c : cases) testing_support::fill_inputs(c);
  InlineStream stream;
  size_t barriers = 0;
  for (const TestedKernel& kernel : emulated_kernels(cases[0].kind))
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (dtype == DType::kF32 ? !kernel.takes_f32 : !kernel.takes_bf16) continue;
      std::vector<simt::Barrier> met;
      std::vector<Results> expected;
      simt::set_options({.met = &met});
      for (const StoredCase& c : cases) expected.push_back(kernel.run(c, dtype, stream));
      for (const simt::Barrier& b : met) {
        bool seen = false;
        for (size_t i = 0; i < cases.size() && !seen; ++i) seen = noticed(kernel, cases[i], dtype, expected[i], b);
        EXPECT_TRUE(seen) << what << ", " << kernel.name << ", " << dtype_name(dtype) << ": " << b.file << ":" << b.line;
      }
      barriers += met.size();
      testing_support::counted.cases += static_cast<int64_t>(met.size());  // barriers left out
    }
  simt::set_options({});
  return barriers;
}

// The accesses of sources that a sanitizer instruments are not watched for races.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GNUC__) || defined(__clang__)
#define MS_NEEDS_RACES() GTEST_SKIP() << "shared memory is not watched for races in this build"
#else
#define MS_NEEDS_RACES()
#endif

TEST(CudaMutation, dense) {
  MS_NEEDS_RACES();
  EXPECT_GT(expect_all_noticed({make_case(CaseKind::kDense, {1, 12, 15}, 1, 32)}, "dense"), 4u);
}
TEST(CudaMutation, window) {
  MS_NEEDS_RACES();
  StoredCase c = make_case(CaseKind::kWindow, {2, 9, 11}, 1, 16);
  c.window = {2, 9, 11};
  EXPECT_GT(expect_all_noticed({c}, "window"), 4u);
}
// More samples than a warp has lanes, more heads than groups, more than one tile and more than one band of keys; the mode
// decides who reads whose offset gradients.
TEST(CudaMutation, dsa) {
  MS_NEEDS_RACES();
  StoredCase c = make_case(CaseKind::kDsa, {2, 3, 10}, 2, 16);
  c.kernel = {2, 3, 7}, c.reach = {1, 2, 2}, c.groups = 1;
  std::vector<StoredCase> modes(2, c);
  modes[0].mode = DsaOffsetMode::kFull;
  modes[1].mode = DsaOffsetMode::kSlice;
  EXPECT_GT(expect_all_noticed(modes, "dsa"), 4u);
}

// A kernel of frames, whose results are one vector.
void expect_each_noticed(const std::function<std::vector<float>(Stream&)>& run, size_t least) {
  InlineStream stream;
  std::vector<simt::Barrier> met;
  simt::set_options({.met = &met});
  const std::vector<float> expected = run(stream);
  EXPECT_GE(met.size(), least);
  for (const simt::Barrier& b : met) {
    bool seen = false;
    for (const simt::Order order : simt::kAllOrders) {
      simt::set_options({.order = order, .left_out = b});
      try {
        const std::vector<float> got = run(stream);
        seen = seen || std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) != 0;
      } catch (const simt::Error&) {
        seen = true;
      }
    }
    EXPECT_TRUE(seen) << b.file << ":" << b.line;
  }
  testing_support::counted.cases += static_cast<int64_t>(met.size());
  simt::set_options({});
}

// More than one segment a row, more than one chunk of channels.
TEST(CudaMutation, correlation_lookup) {
  MS_NEEDS_RACES();
  const FrameLayout from{5, 30, 272, DType::kF32, 0}, out{5, 30, kFlowLevels * 9, DType::kF32, 0};
  testing_support::Array frame = testing_support::frame_array(from, 1), flow(DType::kF32, testing_support::normals(5 * 30 * 2, 2, 6));
  CorrelationLookup l;
  l.from = frame.floats(), l.from_layout = from, l.flow = flow.floats(), l.radius = 1;
  for (int i = 0; i < kFlowLevels; ++i) l.levels[i] = l.from, l.level_layouts[i] = from;
  expect_each_noticed(
      [&](Stream& stream) {
        testing_support::Array to(DType::kF32, testing_support::zeros(out.elements()));
        cuda::correlation_lookup(stream, to.floats(), out, l);
        return to.values();
      },
      3);
}
TEST(CudaMutation, frames) {
  MS_NEEDS_RACES();
  const FrameLayout l{2, 9, 16};
  testing_support::Array frame = testing_support::frame_array(l, 1);
  expect_each_noticed(
      [&](Stream& stream) {
        testing_support::Array norm(DType::kF32, testing_support::zeros(2 * l.stored()));
        std::vector<double> scratch(static_cast<size_t>(instance_norm_scratch(l)));
        cuda::instance_norm_scale(stream, norm.floats(), norm.floats() + l.stored(), scratch.data(), frame.floats(), l, 1e-5F);
        return norm.values();
      },
      1);
  const FrameLayout rows{1, 70, 14, DType::kF32, 0}, step{1, 70, 2, DType::kF32, 0};
  testing_support::Array delta = testing_support::frame_array(step, 3);
  expect_each_noticed(
      [&](Stream& stream) {
        testing_support::Array flow(DType::kF32, testing_support::normals(140, 2)), to(DType::kF32, testing_support::zeros(rows.elements()));
        FlowStep s;
        s.flow = flow.floats(), s.delta = delta.floats(), s.delta_layout = step, s.rows = to.floats(), s.rows_layout = rows;
        cuda::flow_advance(stream, s);
        return to.values();
      },
      1);
}

}  // namespace
}  // namespace megaslide
