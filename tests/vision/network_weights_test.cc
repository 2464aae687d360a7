// The user's weights file: names, shapes and values are checked before a network is built.
#include "vision/network_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/sha256.h"
#include "io/safetensors.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {
using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

class NetworkWeightsTest : public testing::Test {
 protected:
  std::string write(const std::vector<std::pair<std::string, const HostTensor*>>& tensors) {
    std::vector<std::pair<std::string, TensorView>> views;
    for (const auto& [name, t] : tensors) views.emplace_back(name, t->view());
    const std::string path = folder_ / "net.safetensors";
    write_safetensors(path, views);
    return path;
  }
  TemporaryFolder folder_;
  HostTensor matrix_{DType::kF32, {2, 3}};
  HostTensor half_{DType::kF16, {4}};
};

TEST_F(NetworkWeightsTest, PrefixIsDroppedAndValuesAreWidened) {
  const uint16_t halves[] = {float_to_f16(1.5f), float_to_f16(-2), 0, float_to_f16(0.25f)};
  std::memcpy(half_.data(), halves, sizeof halves);
  const std::string path = write({{"module.a.weight", &matrix_}, {"module.b", &half_}});
  const NetworkWeights w = NetworkWeights::open(path, "module.");
  EXPECT_EQ(w.names(), (std::vector<std::string>{"a.weight", "b"}));
  const HostTensor b = w.read("b");
  EXPECT_EQ(b.f32()[0], 1.5f);
  EXPECT_EQ(b.f32()[1], -2);
  EXPECT_EQ(w.sha256(), sha256_file(path));
  w.require({{"a.weight", {2, 3}}, {"b", {4}}});
}

TEST_F(NetworkWeightsTest, EverythingThatDoesNotFitIsListedAtOnce) {
  const HostTensor counts(DType::kI64, {4});
  const NetworkWeights w = NetworkWeights::open(write({{"conv.weigth", &matrix_}, {"norm", &half_}, {"c", &counts}, {"num_batches", &counts}}));
  const std::string text = error_of([&] { w.require({{"conv.weight", {2, 3}}, {"norm", {5}}, {"c", {4}}}, {"num_batches"}); });
  expect_contains(text, "missing: \"conv.weight\" (is it \"conv.weigth\"?)");
  expect_contains(text, "unknown: \"conv.weigth\"");
  expect_contains(text, "\"norm\" is [4], not [5]");
  expect_contains(text, "\"c\" holds I64");
  EXPECT_EQ(text.find("num_batches"), std::string::npos);
  expect_contains(error_of([&] { w.read("nrom"); }), "there is \"norm\"");
}

TEST_F(NetworkWeightsTest, ValuesThatAreNotFiniteAreRefused) {
  matrix_.f32()[4] = std::numeric_limits<float>::quiet_NaN();
  const NetworkWeights w = NetworkWeights::open(write({{"a", &matrix_}}));
  expect_contains(error_of([&] { w.read("a"); }), "\"a\" holds 1 NaN and 0 infinite values, the first at element 4");
}

}  // namespace
}  // namespace megaslide
