// Four real clips in a folder of the test's own, and a small model to encode them for.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "config/model_config.h"
#include "tests/support/temporary_folder.h"

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
    std::filesystem::copy(std::string(MEGASLIDE_TEST_DATA) + "/clips", clips());
    std::filesystem::remove(clips() + "/README.md");
  }

  std::string clips() const { return root_ + "/clips"; }
  std::string cache() const { return root_ + "/cache"; }
  void put(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

  const TemporaryFolder folder_;
  const std::string& root_ = folder_.path();
};

}  // namespace megaslide::testing_support
