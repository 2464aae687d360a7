// RAFT against the golden network: features, one lookup, flows (spec vbench-networks.md §4, §5).
#include "vision/raft.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>

#include "base/error.h"
#include "kernels/flow/flow.h"
#include "tests/support/elementwise.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"
#include "tests/vision/golden_tensors.h"
#include "tests/vision/processor.h"

namespace megaslide {
namespace {
using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

// fp32 upstream is 4e-6 of the largest flow away from fp64 on this network (raft.json); one order of summation against
// another costs as much again.
constexpr double kFlowTolerance = 1.6e-5;
// Features and correlations are sums of at most a thousand products: a few rounding steps of 6e-8 each.
constexpr double kFeatureTolerance = 5e-6;

class RaftTest : public testing::Test {
 protected:
  const uint8_t* picture(int64_t i) const { return reinterpret_cast<const uint8_t*>(video_.data()) + i * 128 * 144 * 3; }
  RaftFrame frame(int64_t i) { return raft_.frame(stream_, picture(i), 144, 128); }

  HostTensor video_ = vbench_tensor("raft_golden", "video");
  InlineStream stream_;
  Raft raft_ = Raft::open(stream_, vbench_file("raft_things_names.safetensors"));
};

TEST_F(RaftTest, FeaturesAreTheGoldens) {
  const HostTensor want = vbench_tensor("raft_golden", "feature_maps");
  for (int64_t i = 0; i < 2; ++i) {
    const HostTensor got = frame(i).features().planes(stream_);
    EXPECT_LT(distance(got.f32(), want.f32() + i * got.elements(), got.elements()), kFeatureTolerance) << i;
  }
}

TEST_F(RaftTest, LookupReadsZerosOutside) {
  const RaftFrame a = frame(0), b = frame(1);
  const HostTensor at = vbench_tensor("raft_golden", "lookup_coords_xy"), want = vbench_tensor("raft_golden", "lookup_corr");
  const int64_t h = 16, w = 18;
  Frame out(processor(), h, w, 324, 0);
  std::vector<float> flow(static_cast<size_t>(h * w * 2));
  CorrelationLookup c;
  c.from = a.features().data(), c.from_layout = a.features().layout();
  c.flow = flow.data();
  c.scale = 1.0F / 8;
  for (int i = 0; i < kFlowLevels; ++i) c.levels[i] = b.features(i).data(), c.level_layouts[i] = b.features(i).layout();
  for (int64_t y = 0; y < h; ++y)
    for (int64_t x = 0; x < w; ++x)
      for (int64_t k = 0; k < 2; ++k)
        flow[static_cast<size_t>((y * w + x) * 2 + k)] = at.f32()[(k * h + y) * w + x] - static_cast<float>(k == 0 ? x : y);
  correlation_lookup(stream_, out.data(), out.layout(), c);
  // Coordinates pass through p + (c − p): half a unit in the last place of some 20 cells, 1e-6, times the steepest slope,
  // which is below the largest value a cell.
  EXPECT_LT(distance(out.planes(stream_), want), 1e-5);
}

TEST_F(RaftTest, FlowsAreTheGoldens) {
  testing_support::for_each_target([&] {
    const RaftFrame a = frame(0), b = frame(1);
    EXPECT_LT(distance(raft_.flow(stream_, a, b, 1), vbench_tensor("raft_golden", "flow_iter1")), kFlowTolerance);
    EXPECT_LT(distance(raft_.flow(stream_, a, b, 4), vbench_tensor("raft_golden", "flow_iter4")), kFlowTolerance);
  });
}

TEST_F(RaftTest, ThreadsAndRepetitionsGiveTheSameBits) {
  InlineStream three(3);
  const HostTensor once = raft_.flow(stream_, frame(0), frame(1), 2);
  const HostTensor again = raft_.flow(three, raft_.frame(three, picture(0), 144, 128), raft_.frame(three, picture(1), 144, 128), 2);
  EXPECT_EQ(std::memcmp(once.data(), again.data(), static_cast<size_t>(once.bytes())), 0);
}

// A picture that needs padding is the picture padded by hand.
TEST_F(RaftTest, BordersAreRepeated) {
  const int64_t w = 133, h = 122;
  const ReplicatePadding p = replicate_padding(w, h, kRaftUnit);
  EXPECT_EQ(p.left, 1);
  EXPECT_EQ(p.right, 2);
  EXPECT_EQ(p.top, 3);
  EXPECT_EQ(p.bottom, 3);
  std::vector<uint8_t> small(static_cast<size_t>(w * h * 3)), padded(static_cast<size_t>(136 * 128 * 3));
  for (int64_t i = 0; i < w * h * 3; ++i) small[static_cast<size_t>(i)] = picture(0)[i];
  for (int64_t y = 0; y < 128; ++y)
    for (int64_t x = 0; x < 136; ++x)
      for (int64_t c = 0; c < 3; ++c)
        padded[static_cast<size_t>((y * 136 + x) * 3 + c)] =
            small[static_cast<size_t>((std::clamp<int64_t>(y - 3, 0, h - 1) * w + std::clamp<int64_t>(x - 1, 0, w - 1)) * 3 + c)];
  const HostTensor a = raft_.frame(stream_, small.data(), w, h).features().planes(stream_);
  const HostTensor b = raft_.frame(stream_, padded.data(), 136, 128).features().planes(stream_);
  EXPECT_EQ(a.shape(), b.shape());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())), 0);
}

TEST_F(RaftTest, SmallOrUnequalFramesAreRefused) {
  EXPECT_EQ(raft_not_applicable(121, 121), "");
  EXPECT_EQ(raft_not_applicable(150, 120), "n/a: needs sides of at least 121 pixels, not 150x120");
  expect_contains(error_of([&] { raft_.frame(stream_, picture(0), 144, 64); }), "n/a: needs sides of at least 121");
  const RaftFrame a = frame(0), b = raft_.frame(stream_, picture(0), 128, 128);
  expect_contains(error_of([&] { raft_.flow(stream_, a, b); }), "flow needs frames of one size");
}

// Files that a user may have.
class RaftFileTest : public testing::Test {
 protected:
  using Tensors = std::map<std::string, HostTensor>;
  std::string write(const std::function<void(Tensors&)>& change) {
    const SafetensorsFile f = SafetensorsFile::open(vbench_file("raft_things_names.safetensors"));
    Tensors tensors;
    for (const TensorInfo& info : f.tensors()) tensors[info.name] = HostTensor::from(f.view(info));
    change(tensors);
    std::vector<std::pair<std::string, TensorView>> views;
    for (const auto& [name, t] : tensors) views.emplace_back(name, t.view());
    const std::string path = folder_ / "raft.safetensors";
    write_safetensors(path, views);
    return path;
  }
  std::string error(const std::function<void(Tensors&)>& change) {
    const std::string path = write(change);
    return error_of([&] { Raft::open(stream_, path); });
  }
  static void erase(Tensors& t, const std::string& part) {
    std::erase_if(t, [&](const auto& entry) { return entry.first.find(part) != std::string::npos; });
  }
  TemporaryFolder folder_;
  InlineStream stream_;
};

TEST_F(RaftFileTest, DoublesAndCountersMayBeAbsent) {
  const std::string path = write([](Tensors& t) {
    erase(t, "num_batches_tracked");
    erase(t, "downsample.1");
  });
  const HostTensor video = vbench_tensor("raft_golden", "video");
  const auto* rgb = reinterpret_cast<const uint8_t*>(video.data());
  const Raft raft = Raft::open(stream_, path);
  const HostTensor got = raft.flow(stream_, raft.frame(stream_, rgb, 144, 128), raft.frame(stream_, rgb + 128 * 144 * 3, 144, 128), 1);
  EXPECT_LT(distance(got, vbench_tensor("raft_golden", "flow_iter1")), kFlowTolerance);
}

TEST_F(RaftFileTest, FilesOfAnotherNetworkAreRefused) {
  expect_contains(error([](Tensors& t) { erase(t, "gru.convz1.weight"); }), "no tensor \"update_block.gru.convz1.weight\"");
  expect_contains(error([](Tensors& t) { erase(t, "cnet.norm1.bias"); }), "missing: \"cnet.norm1.bias\"");
  expect_contains(error([](Tensors& t) { t["module.fnet.norm1.weight"] = HostTensor(DType::kF32, {8}); }), "unknown: \"fnet.norm1.weight\"");
  expect_contains(error([](Tensors& t) { t["module.fnet.conv1.weight"] = HostTensor(DType::kF32, {8, 3, 3, 3}); }),
                  "\"fnet.conv1.weight\" is [8, 3, 3, 3], not [8, 3, 7, 7]");
  expect_contains(error([](Tensors& t) { t["module.fnet.layer1.1.conv2.weight"] = HostTensor(DType::kF32, {9, 8, 3, 3}); }), "gives 9 channels");
  expect_contains(error([](Tensors& t) { t["module.cnet.conv2.weight"] = HostTensor(DType::kF32, {16, 16, 1, 1}); }), "not more than the 16");
  expect_contains(error([](Tensors& t) { t["module.fnet.conv2.weight"] = HostTensor(DType::kF32, {64}); }), "not of this network");
  expect_contains(error([](Tensors& t) {
                    HostTensor v(DType::kF32, {8});
                    v.f32()[3] = -1;
                    t["module.cnet.norm1.running_var"] = std::move(v);
                  }),
                  "\"cnet.norm1.running_var\" is negative at element 3");
}

}  // namespace
}  // namespace megaslide
