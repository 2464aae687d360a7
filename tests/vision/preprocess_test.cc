// Frames as the networks take them, against PyTorch, torchvision and Pillow; which frames are taken.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/safetensors.h"
#include "vision/frame_choice.h"
#include "vision/preprocess.h"

namespace megaslide {
namespace {

const std::string kData = MEGASLIDE_TEST_DATA "/vbench/";

const std::map<std::string, Preprocessing> kVariants = {{"clip_float", Preprocessing::kClipFloat},
                                                        {"clip_uint8", Preprocessing::kClipUint8},
                                                        {"clip_pil", Preprocessing::kClipPil},
                                                        {"dino", Preprocessing::kDino}};

nlohmann::json json(const std::string& name) { return nlohmann::json::parse(read_file(kData + name)); }

Picture picture_of(const TensorView& v) {
  const auto* p = reinterpret_cast<const uint8_t*>(v.data);
  return {v.shape[1], v.shape[0], std::vector<uint8_t>(p, p + v.elements())};
}

// Differences of values; `level` is one step of a byte in the channel of largest deviation.
struct Differences {
  double largest = 0;
  int64_t others = 0, values = 0;  // `others`: beyond rounding
  void add(double a, double b) {
    const double d = std::abs(a - b);
    largest = std::max(largest, d);
    others += d > kRounding;
    ++values;
  }
  // Twelve products of up to 255·1.3² are summed in fp32, some 2e-4 of a level, in another order here than there; a level is
  // up to 1.7e-2. Places that are rounded otherwise than PyTorch's would give 2e-5.
  static constexpr double kRounding = 6e-6;
};
constexpr double kLevel = 1 / (255 * 0.2613) * 1.001;

void expect_equal(const std::string& variant, const Differences& d) {
  if (variant == "clip_uint8") {
    // A tie of the fp32 sums may be rounded to the other byte.
    EXPECT_LE(d.largest, kLevel);
    EXPECT_LE(static_cast<double>(d.others), 0.001 * static_cast<double>(d.values));
  } else {
    EXPECT_LE(d.largest, Differences::kRounding);
  }
}

TEST(Preprocess, EqualsPyTorchAndPillow) {
  const auto cases = json("preprocess.json").at("cases");
  const SafetensorsFile inputs = SafetensorsFile::open(kData + "preprocess_input.safetensors");
  const SafetensorsFile small = SafetensorsFile::open(kData + "preprocess_32.safetensors");
  const SafetensorsFile big = SafetensorsFile::open(kData + "preprocess_224_samples.safetensors");
  ThreadPool pool(2);
  int compared = 0;
  for (const auto& [name, c] : cases.items()) {
    const Picture picture = picture_of(inputs.view(name));
    for (const auto& [variant, how] : kVariants) {
      const std::string key = name + "." + variant;
      SCOPED_TRACE(key);
      const HostTensor at32 = preprocess(picture, how, 32, pool), at224 = preprocess(picture, how, 224, pool);
      const TensorView want = small.view(key);
      ASSERT_EQ(at32.shape(), want.shape);
      Differences d;
      for (int64_t i = 0; i < want.elements(); ++i) d.add(at32.f32()[i], reinterpret_cast<const float*>(want.data)[i]);
      expect_equal(variant, d);

      const auto hw = c.at(variant).at("hw_224").get<std::vector<int64_t>>();
      ASSERT_EQ(at224.shape(), (Shape{3, hw[0], hw[1]}));
      Differences samples;
      const TensorView index = big.view(key + ".index"), value = big.view(key + ".value");
      for (int64_t i = 0; i < index.elements(); ++i)
        samples.add(at224.f32()[reinterpret_cast<const int32_t*>(index.data)[i]], reinterpret_cast<const float*>(value.data)[i]);
      expect_equal(variant, samples);
      double sum = 0;
      for (int64_t i = 0; i < at224.elements(); ++i) sum += at224.f32()[i];
      // One level in a thousandth of the places, at most.
      EXPECT_NEAR(sum / static_cast<double>(at224.elements()), c.at(variant).at("mean_224").get<double>(), 0.001 * kLevel);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 28);
}

TEST(Preprocess, ThreadsDoNotMatter) {
  const SafetensorsFile inputs = SafetensorsFile::open(kData + "preprocess_input.safetensors");
  const Picture picture = picture_of(inputs.view("landscape"));
  ThreadPool one(1), many(5);
  for (const auto& [variant, how] : kVariants) {
    const HostTensor a = preprocess(picture, how, 57, one), b = preprocess(picture, how, 57, many);
    EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())), 0) << variant;
  }
}

TEST(Preprocess, SeveralAreEachAsAlone) {
  const SafetensorsFile inputs = SafetensorsFile::open(kData + "preprocess_input.safetensors");
  std::vector<Picture> pictures = {picture_of(inputs.view("odd")), picture_of(inputs.view("odd"))};
  std::reverse(pictures[1].rgb.begin(), pictures[1].rgb.end());
  ThreadPool pool(2);
  for (const auto& [variant, how] : kVariants) {
    const HostTensor both = preprocess(pictures, how, 40, pool);
    for (size_t i = 0; i < 2; ++i) {
      const HostTensor alone = preprocess(pictures[i], how, 40, pool);
      EXPECT_EQ(both.shape(), (Shape{2, 3, alone.shape()[1], alone.shape()[2]}));
      EXPECT_EQ(std::memcmp(both.f32() + static_cast<int64_t>(i) * alone.elements(), alone.f32(), static_cast<size_t>(alone.bytes())), 0) << variant;
    }
  }
  pictures.push_back(picture_of(inputs.view("square")));
  EXPECT_THROW(preprocess(pictures, Preprocessing::kDino, 40, pool), Error);
}

TEST(Preprocess, OddSizes) {
  ThreadPool pool(1);
  for (const auto& [variant, how] : kVariants) {
    // A flat picture stays flat, whatever its size: weights sum to one.
    for (const auto& [w, h] : {std::pair<int64_t, int64_t>{1, 1}, {1, 7}, {9, 2}, {32, 1}, {640, 480}}) {
      const Picture p{w, h, std::vector<uint8_t>(static_cast<size_t>(3 * w * h), 200)};
      const HostTensor t = preprocess(p, how, 16, pool);
      ASSERT_EQ(t.shape()[0], 3);
      ASSERT_EQ(std::min(t.shape()[1], t.shape()[2]), 16);
      const int64_t plane = t.shape()[1] * t.shape()[2];
      for (int64_t c = 0; c < 3; ++c)
        for (int64_t i = 1; i < plane; ++i) ASSERT_NEAR(t.f32()[c * plane + i], t.f32()[c * plane], Differences::kRounding) << variant;
    }
    const Picture strip{33, 1, std::vector<uint8_t>(99)};
    EXPECT_THROW(preprocess(strip, how, 16, pool), Error);
  }
}

TEST(FrameChoice, MiddleFrames) {
  const auto golden = json("middle_frames.json");
  int cases = 0;
  for (const auto& [frames, want] : golden.at("cases").items()) {
    EXPECT_EQ(middle_frames(std::stol(frames), golden.at("num").get<int64_t>()), want.get<std::vector<int64_t>>()) << frames;
    ++cases;
  }
  EXPECT_GE(cases, 5);
}

TEST(FrameChoice, IntervalsAndTriples) {
  const auto golden = json("geometry.json");
  for (const auto& [fps, want] : golden.at("dynamic_interval_by_fps").items()) EXPECT_EQ(dynamic_interval(std::stod(fps)), want.get<int64_t>()) << fps;
  EXPECT_EQ(dynamic_interval(0), 1);
  EXPECT_EQ(dynamic_interval(std::nan("")), 1);
  EXPECT_EQ(dynamic_interval(-30), 1);
  EXPECT_EQ(dynamic_interval(HUGE_VAL), 1);
  for (const auto& [frames, want] : golden.at("motion_first_second_compared").items()) {
    std::vector<std::vector<int64_t>> got;
    for (int64_t i = 0; i < std::stol(frames); ++i)
      if (const std::optional<MotionTriple> t = motion_triple_ending_at(i)) got.push_back({t->before, t->after, t->between});
    EXPECT_EQ(got, want.get<std::vector<std::vector<int64_t>>>()) << frames;
  }
}

}  // namespace
}  // namespace megaslide
