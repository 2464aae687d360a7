// Four real clips in a folder of the test's own, and a small model to encode them for.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "config/model_config.h"

namespace megaslide::testing_support {

inline ModelConfig small_encoding_model(int64_t text_len) {
  ModelConfig m;
  m.name = "small";
  m.codec = CodecKind::kHaar;
  m.text_encoder = TextEncoderKind::kHashedNgram;
  m.text_len = text_len;
  m.text_dim = 32;
  m.num_frames = 17;
  return m;
}

class EncodeFixture : public testing::Test {
 protected:
  void SetUp() override {
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    root_ = testing::TempDir() + "megaslide-" + test.test_suite_name() + "-" + test.name();
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    std::filesystem::copy(std::string(MEGASLIDE_TEST_DATA) + "/clips", clips());
    std::filesystem::remove(clips() + "/README.md");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string clips() const { return root_ + "/clips"; }
  std::string cache() const { return root_ + "/cache"; }
  void put(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

  std::string root_;
};

}  // namespace megaslide::testing_support
