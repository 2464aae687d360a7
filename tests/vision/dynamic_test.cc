// dynamic_degree and the static filter from given flows.
#include "vision/dynamic.h"

#include <algorithm>
#include <limits>

#include "tests/support/error_text.h"
#include "tests/vision/golden_tensors.h"
#include "vision/raft.h"

namespace megaslide {
namespace {
using testing_support::error_of;
using testing_support::expect_contains;

TEST(Dynamic, VerdictsAreTheGoldens) {
  const nlohmann::json golden = vbench_json("dynamic");
  ASSERT_EQ(golden["cases"].size(), 6U);
  for (const auto& [name, want] : golden["cases"].items()) {
    SCOPED_TRACE(name);
    const auto frames = want["frames"].get<int64_t>();
    std::vector<double> motion;
    if (frames > 1) {
      const HostTensor flows = vbench_tensor("dynamic_flows", name);
      const Shape each = {2, flows.shape()[2], flows.shape()[3]};
      for (int64_t i = 0; i < flows.shape()[0]; ++i) {
        HostTensor flow(DType::kF32, each);
        std::copy_n(flows.f32() + i * flow.elements(), flow.elements(), flow.f32());
        motion.push_back(largest_motion(flow, kDynamicShare));
        // The golden's magnitudes are fp64, these fp32: half a unit in the last place each.
        EXPECT_NEAR(motion.back(), want["top5_mean"][static_cast<size_t>(i)].get<double>(), 1e-6 * (1 + motion.back()));
      }
    }
    const DynamicVerdict got = dynamic_verdict(motion, frames, want["frame_hw"][1].get<int64_t>(), want["frame_hw"][0].get<int64_t>());
    EXPECT_EQ(got.threshold, want["threshold"].get<double>());
    EXPECT_EQ(got.needed, want["needed"].get<int64_t>());
    EXPECT_EQ(got.count, want["count"].get<int64_t>());
    EXPECT_EQ(got.dynamic, want["dynamic"].get<bool>());
  }
}

TEST(Dynamic, PaddingsAreUpstreams) {
  const nlohmann::json golden = vbench_json("geometry");
  for (const auto& [size, want] : golden["sizes"].items()) {
    const size_t x = size.find('x');
    const ReplicatePadding p = replicate_padding(std::stoll(size.substr(x + 1)), std::stoll(size.substr(0, x)), kRaftUnit);
    EXPECT_EQ((std::vector<int64_t>{p.left, p.right, p.top, p.bottom}), want["raft_pad_lrtb"].get<std::vector<int64_t>>()) << size;
  }
}

TEST(Dynamic, FlowsThatAreNotFiniteAreRefused) {
  HostTensor flow(DType::kF32, {2, 8, 8});
  flow.f32()[70] = std::numeric_limits<float>::quiet_NaN();
  expect_contains(error_of([&] { largest_motion(flow, kDynamicShare); }), "the optical flow is not finite");
}

// By hand: 16 frames of 256×256 allow K = 2 of 15 neighbours above 3 pixels, and 12 pixels between the ends.
TEST(StaticFilter, CountsNeighboursAndEnds) {
  std::vector<double> motion(17, 0.5);
  const auto is_static = [&] { return static_verdict(motion, 300, 256).is_static; };
  EXPECT_TRUE(is_static());
  motion[0] = motion[7] = 3.5;
  EXPECT_TRUE(is_static());
  motion[14] = 3.0;  // not above
  EXPECT_TRUE(is_static());
  motion[14] = 3.1;
  EXPECT_FALSE(is_static());
  motion[14] = 0;
  motion[15] = 12;
  EXPECT_TRUE(is_static());
  motion[16] = 12.1;
  EXPECT_FALSE(is_static());
  const StaticVerdict s = static_verdict(motion, 300, 256);
  EXPECT_EQ(s.threshold, 3);
  EXPECT_EQ(s.allowed, 2);
  EXPECT_EQ(s.count, 2);
}

// Four frames: 2·4/16 rounds to even, to 0, and any motion between the ends is too much.
TEST(StaticFilter, ShortVideosAllowNothing) {
  EXPECT_TRUE(static_verdict({0, 1, 2, 0, 0}, 256, 256).is_static);
  EXPECT_FALSE(static_verdict({0, 1, 2, 0.001, 0}, 256, 256).is_static);
  EXPECT_FALSE(static_verdict({0, 3.5, 2, 0, 0}, 256, 256).is_static);
}

}  // namespace
}  // namespace megaslide
