// A cache made with a learned codec and text encoder (tiny ones of tests/data).
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "data/cache.h"
#include "data/encode.h"
#include "model/text_encoder.h"
#include "model/video_codec.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

class LearnedParts : public testing::Test {
 protected:
  void SetUp() override {
    const std::string data = MEGASLIDE_TEST_DATA;
    fs::create_directories(root_ + "/model");
    fs::copy(data + "/vae/w21", root_ + "/model/vae");
    fs::remove(root_ + "/model/vae/io.safetensors");
    fs::copy(data + "/umt5/text_encoder", root_ + "/model/text_encoder");
    fs::copy(data + "/umt5/tokenizer", root_ + "/model/tokenizer");
    fs::create_directories(root_ + "/clips");
    for (const char* name : {"tree", "street"})
      for (const char* end : {".mp4", ".txt"}) fs::copy(data + "/clips/" + name + end, root_ + "/clips/" + name + end);
    parts_.config.name = "learned";
    parts_.config.codec = CodecKind::kWan21Vae;
    parts_.config.text_encoder = TextEncoderKind::kUmt5;
    parts_.config.text_len = 160;
    parts_.config.text_dim = 64;
    parts_.folder = root_ + "/model";
  }

  EncodeOptions options() const {
    EncodeOptions o;
    o.datasets = {root_ + "/clips"};
    o.cache = root_ + "/cache";
    o.rule = make_selection_rule(parts_.config, 64, 48, 5, 0);
    return o;
  }
  EncodeReport run(const EncodeOptions& o, int threads = 2) {
    ThreadPool pool(threads);
    return encode_dataset(o, parts_, pool);
  }

  const TemporaryFolder folder_;
  const std::string& root_ = folder_.path();
  ModelParts parts_;
};

TEST_F(LearnedParts, HoldWhatCodecAndEncoderGive) {
  const EncodeReport r = run(options());
  ASSERT_EQ(r.kept, 2);
  EXPECT_EQ(r.encoded, 2);
  EXPECT_EQ(r.texts_encoded, 2);
  const LatentCache cache = LatentCache::open(root_ + "/cache");
  cache.require_model(parts_);
  ThreadPool pool(2);
  const auto codec = make_codec(parts_);
  const auto encoder = make_text_encoder(parts_);
  for (size_t i = 0; i < 2; ++i) {
    const LatentCache::Clip clip = cache.clip(i);
    const HostTensor latent = codec->encode(pool, load_clip(root_ + "/clips/" + cache.info(i).path, options().rule).video.view());
    const HostTensor rows = encoder->encode(pool, cache.info(i).caption).rows;
    EXPECT_EQ(clip.latent.shape, (Shape{16, 2, 6, 8}));
    ASSERT_EQ(clip.latent.shape, latent.shape());
    EXPECT_EQ(std::memcmp(clip.latent.data, latent.data(), static_cast<size_t>(latent.bytes())), 0);
    ASSERT_EQ(clip.text.shape, rows.shape());
    EXPECT_EQ(std::memcmp(clip.text.data, rows.data(), static_cast<size_t>(rows.bytes())), 0);
  }
  const SafetensorsFile empty = SafetensorsFile::open(empty_text_file(root_ + "/cache"));
  EXPECT_EQ(empty.view("text").shape, (Shape{1, 64})) << "the end of the sentence alone";
  const HostTensor want = encoder->encode(pool, "").rows;
  EXPECT_EQ(std::memcmp(empty.view("text").data, want.data(), static_cast<size_t>(want.bytes())), 0);
  EXPECT_EQ(run(options(), 1).encoded, 0);
}

TEST_F(LearnedParts, OtherWaysToComputeMakeOtherLatents) {
  run(options());
  EncodeOptions fp32 = options();
  fp32.parts.compute_dtype = DType::kF32;
  const EncodeReport texts = run(fp32);
  EXPECT_EQ(texts.encoded, 0) << "the codec computes in fp32 anyway";
  EXPECT_EQ(texts.texts_encoded, 2);
  EncodeOptions bf16 = options();
  bf16.parts.compute_dtype = DType::kBF16;
  const EncodeReport latents = run(bf16);
  EXPECT_EQ(latents.encoded, 2);
  EXPECT_EQ(latents.texts_encoded, 0);
  EncodeOptions tiled = options();
  tiled.parts.vae_tiling = true;
  EXPECT_EQ(run(tiled).encoded, 2);
  EXPECT_EQ(run(options()).encoded, 0);
}

}  // namespace
}  // namespace megaslide
