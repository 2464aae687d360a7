// CLIP and the aesthetic head against goldens of OpenAI's and transformers' code in fp64 (spec vbench.md).
#include "vision/clip.h"

#include <algorithm>

#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"
#include "tests/vision/reference_pixels.h"
#include "vision/aesthetic.h"

namespace megaslide {
namespace {
using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

// PyTorch's fp32 is 1.1e-6 of the largest feature away (clip.json, float32_feature_max_rel); ours sums in another order: three times that.
constexpr double kFp32 = 3.4e-6;
// Operands rounded to bf16, 2^-9 each; twice what two blocks make of it, measured.
constexpr double kBf16 = 2.2e-2;

// As the golden was made: preprocessing once for all tests.
const HostTensor& pixels() {
  static const HostTensor p = golden_pixels("clip_golden", kClipFloat);
  return p;
}

HostTensor text_features(const ClipNetwork& clip, Stream& stream, int64_t texts) {
  HostTensor all(DType::kF32, {texts, clip.embed()});
  for (int64_t i = 0; i < texts; ++i) std::copy_n(clip.text_features(stream, golden_ids("clip_golden", i)).f32(), clip.embed(), all.f32() + i * clip.embed());
  return all;
}

TEST(Clip, FeaturesAreTheGoldensUnderBothNamings) {
  InlineStream stream(2);
  for (const char* file : {"clip_openai", "clip_hf"}) {
    const ClipNetwork clip = ClipNetwork::load(stream, vbench_weights(file));
    EXPECT_EQ(clip.image_size(), 224);
    EXPECT_EQ(clip.context(), 77);
    EXPECT_NEAR(clip.logit_scale(), 100, 1e-5);  // the file holds ln 100 in fp32
    EXPECT_LT(distance(clip.image_features(stream, pixels()), vbench_golden("clip_golden", "image_features.clip_float")), kFp32) << file;
    EXPECT_LT(distance(text_features(clip, stream, 6), vbench_golden("clip_golden", "text_features")), kFp32) << file;
  }
}

// The golden's own features, so that only the network is compared: appearance_style of VBench is this by 100.
TEST(Clip, LogitsAreTheCosinesTimesTheScale) {
  InlineStream stream(2);
  const ClipNetwork clip = ClipNetwork::load(stream, vbench_weights("clip_openai"));
  const HostTensor images = vbench_golden("clip_golden", "image_features.clip_pil"), logits = vbench_golden("clip_golden", "logits_text_image");
  const HostTensor texts = text_features(clip, stream, 6);
  for (int64_t t = 0; t < 6; ++t)
    for (int64_t i = 0; i < 6; ++i)
      EXPECT_NEAR(clip.logit_scale() * cosine(texts.f32() + t * clip.embed(), images.f32() + i * clip.embed(), clip.embed()),
                  static_cast<double>(logits.f32()[t * 6 + i]), 100 * kFp32)
          << t << " " << i;
}

TEST(Clip, ATextEndsAtTheFirstOfTheLargestIds) {
  InlineStream stream;
  const ClipNetwork clip = ClipNetwork::load(stream, vbench_weights("clip_openai"));
  std::vector<int64_t> ids = golden_ids("clip_golden", 0);
  const int64_t end = std::ranges::max_element(ids) - ids.begin();
  const HostTensor padded = clip.text_features(stream, ids);
  std::vector<int64_t> other = ids;
  for (size_t i = static_cast<size_t>(end) + 1; i < other.size(); ++i) other[i] = ids[static_cast<size_t>(end)];
  EXPECT_TRUE(same_bits(clip.text_features(stream, other), padded));
  ids.resize(static_cast<size_t>(end) + 1);
  EXPECT_TRUE(same_bits(clip.text_features(stream, ids), padded));
  ids.resize(static_cast<size_t>(end));
  EXPECT_FALSE(same_bits(clip.text_features(stream, ids), padded));
}

TEST(Clip, BitsDoNotDependOnThreadsOrRepetition) {
  InlineStream one(1), four(4);
  const ClipNetwork a = ClipNetwork::load(one, vbench_weights("clip_hf")), b = ClipNetwork::load(four, vbench_weights("clip_hf"));
  const HostTensor feature = a.image_features(one, pixels()), text = a.text_features(one, golden_ids("clip_golden", 1));
  EXPECT_TRUE(same_bits(b.image_features(four, pixels()), feature));
  EXPECT_TRUE(same_bits(a.image_features(one, pixels()), feature));
  EXPECT_TRUE(same_bits(b.text_features(four, golden_ids("clip_golden", 1)), text));
}

TEST(Clip, Bf16IsNear) {
  InlineStream stream(2);
  const ClipNetwork clip = ClipNetwork::load(stream, vbench_weights("clip_openai"), DType::kBF16);
  const double image = distance(clip.image_features(stream, pixels()), vbench_golden("clip_golden", "image_features.clip_float"));
  const double text = distance(text_features(clip, stream, 6), vbench_golden("clip_golden", "text_features"));
  EXPECT_LT(std::max(image, text), kBf16);
  EXPECT_GT(std::min(image, text), kFp32);
}

TEST(Clip, FilesThatAreNotItAreRefused) {
  const TemporaryFolder folder;
  InlineStream stream;
  const auto error = [&](const AlteredWeights& w) { return error_of([&] { ClipNetwork::load(stream, w.write(folder / "w.safetensors")); }); };
  expect_contains(error(AlteredWeights("clip_openai").drop("visual.transformer.resblocks.1.attn.in_proj_bias")), "missing: \"visual.transformer.resblocks.1.attn.in_proj_bias\"");
  expect_contains(error(AlteredWeights("clip_openai").rename("logit_scale", "logit_scales")), "missing: \"logit_scale\" (is it \"logit_scales\"?)");
  expect_contains(error(AlteredWeights("clip_hf").rename("vision_model.pre_layrnorm.bias", "vision_model.pre_layernorm.bias")),
                  "is it \"vision_model.pre_layernorm.bias\"?");
  expect_contains(error(AlteredWeights("clip_openai").flatten("visual.positional_embedding")), "\"visual.positional_embedding\" is [6400], not [any, 128]");
  expect_contains(error(AlteredWeights("clip_openai").flatten("text_projection")), "\"text_projection\" is [8192], not [128, any]");
  expect_contains(error(AlteredWeights("clip_openai").flatten("visual.proj")), "\"visual.proj\" is [8192], not [128, 64]");
  const HostTensor even(DType::kF32, {51, 128});
  expect_contains(error(AlteredWeights("clip_openai").drop("visual.positional_embedding").add("visual.positional_embedding", even)), "1 + g² places");
}

TEST(Clip, PicturesNeedNoTextTower) {
  InlineStream stream;
  const ClipNetwork both = ClipNetwork::load(stream, vbench_weights("clip_openai"));
  const ClipNetwork image = ClipNetwork::load(stream, vbench_weights("clip_openai"), DType::kF32, ClipTowers::kImage);
  HostTensor picture(DType::kF32, {3, 224, 224});
  for (int64_t i = 0; i < picture.elements(); ++i) picture.f32()[i] = static_cast<float>(i % 97) / 97 - 0.5F;
  const HostTensor a = both.image_features(stream, picture), b = image.image_features(stream, picture);
  ASSERT_EQ(b.elements(), image.embed());
  EXPECT_TRUE(std::equal(a.f32(), a.f32() + a.elements(), b.f32()));
  EXPECT_DEATH(image.text_features(stream, {1, 2}), "text tower");
}

TEST(Clip, OtherPicturesAndTextsAreRefused) {
  InlineStream stream;
  const ClipNetwork clip = ClipNetwork::load(stream, vbench_weights("clip_openai"));
  expect_contains(error_of([&] { clip.image_features(stream, HostTensor(DType::kF32, {3, 224, 192})); }), "192×224 pixels, where this CLIP takes 224×224");
  expect_contains(error_of([&] { clip.text_features(stream, {}); }), "0 tokens");
  expect_contains(error_of([&] { clip.text_features(stream, std::vector<int64_t>(78, 1)); }), "78 tokens, where the network takes 1 to 77");
  expect_contains(error_of([&] { clip.text_features(stream, {1, 600}); }), "token id 600 is not below the 600");
  expect_contains(error_of([&] { clip.text_features(stream, {-1}); }), "token id -1");
}

TEST(Aesthetic, ScoresAreTheGoldens) {
  const HostTensor features = vbench_golden("clip_golden", "image_features.clip_float"), expected = vbench_golden("clip_golden", "aesthetic_frame_scores");
  const std::vector<double> scores = AestheticHead::load(vbench_weights("aesthetic_head"), 64).scores(features);
  ASSERT_EQ(scores.size(), 6U);
  // The golden's are of 1 to 10. Features and scores are rounded to fp32 there, of about 3: 2^-23 each.
  for (size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(10 * scores[i], static_cast<double>(expected.f32()[i]), 4e-7) << i;
  expect_contains(error_of([] { AestheticHead::load(vbench_weights("aesthetic_head"), 768); }), "\"weight\" is [1, 64], not [1, 768]");
  expect_contains(error_of([] { AestheticHead::load(vbench_weights("aesthetic_head"), 64).scores(HostTensor(DType::kF32, {1, 64})); }), "have no direction");
}

}  // namespace
}  // namespace megaslide
