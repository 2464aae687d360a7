// AMT-S against the golden network: maps, flows and the predicted frames (spec vbench-networks.md §3, §5).
#include "vision/amt.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"
#include "tests/vision/golden_tensors.h"
#include "vision/frame_choice.h"

namespace megaslide {
namespace {
using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

// fp32 upstream is 7e-6 (maps, flows) and 2e-5 (prediction) of the largest value away from fp64; another order of
// summation costs as much again, and the golden's networks are random, without the damping of trained ones.
constexpr double kMapTolerance = 3e-5, kPredictionTolerance = 6e-5;

constexpr int64_t kHeight = 121, kWidth = 133, kPicture = kHeight * kWidth * 3;

class AmtTest : public testing::Test {
 protected:
  const uint8_t* picture(int64_t i) const { return reinterpret_cast<const uint8_t*>(video_.data()) + i * kPicture; }
  NetworkWeights weights_ = NetworkWeights::open(vbench_file("amt_names.safetensors"));
  HostTensor video_ = vbench_tensor("amt_golden", "video");
  InlineStream stream_{2};
  Amt amt_{stream_, weights_};
};

TEST_F(AmtTest, MapsAreTheGoldens) {
  std::map<std::string, HostTensor> got;
  const AmtObserver observer = [&](const std::string& name, const HostTensor& map) { got[name] = map.clone(); };
  const HostTensor prediction = amt_.predict(stream_, picture(0), picture(2), kWidth, kHeight, &observer);
  for (const char* name : {"fmap0", "fmap1", "feature_4", "feature_3"}) EXPECT_LT(distance(got[name], vbench_tensor("amt_golden", name)), kMapTolerance) << name;
  for (const char* stage : {"4", "3", "2"}) {
    const HostTensor& flows = got[std::string("flow_") + stage];
    for (int64_t k = 0; k < 2; ++k) {
      const HostTensor want = vbench_tensor("amt_golden", (k == 0 ? "flow0_" : "flow1_") + std::string(stage));
      EXPECT_LT(distance(flows.f32() + k * want.elements(), want.f32(), want.elements()), kMapTolerance) << stage << k;
    }
  }
  const HostTensor rows = vbench_tensor("amt_golden", "corr4_rows");
  std::vector<float> looked_up;
  for (int64_t c = 0; c < 392; ++c)
    for (const int64_t y : {0, 8, 15})
      for (int64_t x = 0; x < 18; ++x) looked_up.push_back(got["corr_4"].f32()[(c * 16 + y) * 18 + x]);
  EXPECT_LT(distance(looked_up.data(), rows.f32(), rows.elements()), kMapTolerance);
  EXPECT_LT(distance(prediction, vbench_tensor("amt_golden", "prediction")), kPredictionTolerance);
}

TEST_F(AmtTest, PredictedBytesAndTheScoreAreTheGoldens) {
  const HostTensor want = vbench_tensor("amt_golden", "predictions_uint8");
  const nlohmann::json golden = vbench_json("amt")["motion_smoothness"];
  std::vector<double> differences;
  int64_t unequal = 0, k = 0;
  for (int64_t i = 0; i < 6; ++i) {
    const std::optional<MotionTriple> t = motion_triple_ending_at(i);
    if (!t) continue;
    const std::vector<uint8_t> got = amt_.between(stream_, picture(t->before), picture(t->after), kWidth, kHeight);
    const auto* bytes = reinterpret_cast<const uint8_t*>(want.data()) + k * kPicture;
    for (size_t j = 0; j < got.size(); ++j) {
      EXPECT_LE(std::abs(got[j] - bytes[j]), 1);
      unequal += got[j] != bytes[j];
    }
    differences.push_back(mean_byte_difference(got.data(), picture(t->between), kPicture));
    // A thousandth of the bytes a level off, all the same way.
    EXPECT_NEAR(differences.back(), golden["frame_mae"][static_cast<size_t>(k++)].get<double>(), 1e-3);
  }
  ASSERT_EQ(k, 2);
  // fp32 upstream differs from fp64 in 1.5e-4 of the bytes.
  EXPECT_LT(static_cast<double>(unequal), 1e-3 * static_cast<double>(want.elements()));
  EXPECT_NEAR(motion_smoothness(differences), golden["score"].get<double>(), 1e-5);
}

TEST_F(AmtTest, StripsAndThreadsDoNotChangeABit) {
  const HostTensor whole = amt_.predict(stream_, picture(0), picture(2), kWidth, kHeight);
  InlineStream three(3);
  const Amt strips(three, weights_, 13);
  const HostTensor parts = strips.predict(three, picture(0), picture(2), kWidth, kHeight);
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), static_cast<size_t>(whole.bytes())), 0);
}

TEST_F(AmtTest, SmallPicturesAreRefused) {
  EXPECT_EQ(amt_not_applicable(113, 113), "");
  EXPECT_EQ(amt_not_applicable(150, 112), "n/a: needs sides of at least 113 pixels, not 150x112");
  expect_contains(error_of([&] { amt_.predict(stream_, picture(0), picture(1), kWidth, 100); }), "n/a: needs sides of at least 113");
}

TEST(MotionSmoothness, PaddingsAreUpstreams) {
  const nlohmann::json golden = vbench_json("geometry");
  for (const auto& [size, want] : golden["sizes"].items()) {
    const size_t x = size.find('x');
    const ReplicatePadding p = replicate_padding(std::stoll(size.substr(x + 1)), std::stoll(size.substr(0, x)), kAmtUnit);
    EXPECT_EQ((std::vector<int64_t>{p.left, p.right, p.top, p.bottom}), want["amt_pad_lrtb"].get<std::vector<int64_t>>()) << size;
  }
  const uint8_t a[] = {0, 255, 7, 9}, b[] = {255, 0, 7, 8};
  EXPECT_EQ(mean_byte_difference(a, b, 4), 511 / 4.0);
  EXPECT_EQ(motion_smoothness({0, 51}), 0.9);
}

// Files that a user may have.
class AmtFileTest : public testing::Test {
 protected:
  using Tensors = std::map<std::string, HostTensor>;
  std::string write(const std::function<void(Tensors&)>& change) {
    const SafetensorsFile f = SafetensorsFile::open(vbench_file("amt_names.safetensors"));
    Tensors tensors;
    for (const TensorInfo& info : f.tensors()) tensors[info.name] = HostTensor::from(f.view(info));
    change(tensors);
    std::vector<std::pair<std::string, TensorView>> views;
    for (const auto& [name, t] : tensors) views.emplace_back(name, t.view());
    const std::string path = folder_ / "amt.safetensors";
    write_safetensors(path, views);
    return path;
  }
  std::string error(const std::function<void(Tensors&)>& change) {
    const std::string path = write(change);
    return error_of([&] { Amt(stream_, NetworkWeights::open(path)); });
  }
  TemporaryFolder folder_;
  InlineStream stream_;
};

TEST_F(AmtFileTest, FilesOfAnotherNetworkAreRefused) {
  expect_contains(error([](Tensors& t) { t.erase("update3.gru.0.weight"); }), "no tensor \"update3.gru.0.weight\"");
  expect_contains(error([](Tensors& t) { t.erase("encoder.pyramid2.1.1.weight"); }), "missing: \"encoder.pyramid2.1.1.weight\"");
  expect_contains(error([](Tensors& t) { t["decoder5.convblock.0.0.bias"] = HostTensor(DType::kF32, {1}); }), "unknown: \"decoder5.convblock.0.0.bias\"");
  expect_contains(error([](Tensors& t) { t["decoder4.convblock.2.weight"] = HostTensor(DType::kF32, {40, 20, 3, 3}); }),
                  "\"decoder4.convblock.2.weight\" is [40, 20, 3, 3], not [40, 20, 4, 4]");
  expect_contains(error([](Tensors& t) { t["decoder4.convblock.1.conv2.0.weight"] = HostTensor(DType::kF32, {41, 41, 3, 3}); }), "gives 41 channels of 40");
  expect_contains(error([](Tensors& t) { t["comb_block.0.weight"] = HostTensor(DType::kF32, {18, 9}); }), "not of this network");
}

TEST_F(AmtFileTest, PredictionsThatAreNotNumbersAreRefused) {
  const std::string path = write([](Tensors& t) {
    HostTensor v(DType::kF32, {3});
    for (int i = 0; i < 3; ++i) v.f32()[i] = std::numeric_limits<float>::max();
    t["comb_block.2.bias"] = std::move(v);
    HostTensor slopes(DType::kF32, {18});
    for (int i = 0; i < 18; ++i) slopes.f32()[i] = std::numeric_limits<float>::max();
    t["comb_block.1.weight"] = std::move(slopes);
    HostTensor weights(DType::kF32, {3, 18, 3, 3});
    for (int64_t i = 0; i < weights.elements(); ++i) weights.f32()[i] = (i % 2 ? 1.0F : -1.0F) * std::numeric_limits<float>::max();
    t["comb_block.2.weight"] = std::move(weights);
  });
  const Amt amt(stream_, NetworkWeights::open(path));
  const HostTensor video = vbench_tensor("amt_golden", "video");
  const auto* rgb = reinterpret_cast<const uint8_t*>(video.data());
  expect_contains(error_of([&] { amt.between(stream_, rgb, rgb + kPicture, kWidth, kHeight); }), "values that are not numbers");
}

}  // namespace
}  // namespace megaslide
