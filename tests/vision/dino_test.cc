// DINO against goldens of transformers' and torch.hub's code in fp64 (spec vbench.md).
#include "vision/dino.h"

#include <algorithm>

#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"
#include "tests/vision/reference_pixels.h"

namespace megaslide {
namespace {
using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

// PyTorch's fp32 is 4.8e-7 of the largest feature away (dino.json, float32_feature_max_rel), ours sums in another order: three times that.
constexpr double kFp32 = 1.5e-6;
// Operands rounded to bf16, 2^-9 each: two blocks make 3.5 of that of the largest feature, measured; twice as much.
constexpr double kBf16 = 1.5e-2;
// Values of the table are sums of 16 products in fp64, rounded once to fp32 here and in the golden.
constexpr double kTable = 1.2e-7;

const char* const kImages[] = {"48x80", "64x64", "70x37"};

TEST(Dino, FeaturesAreTheGoldensUnderBothNamings) {
  InlineStream stream(2);
  for (const char* file : {"dino_hub", "dino_hf"}) {
    const DinoNetwork dino = DinoNetwork::load(stream, vbench_weights(file));
    for (const std::string image : kImages) {
      const HostTensor feature = dino.features(stream, vbench_golden("dino_golden", "image_" + image));
      EXPECT_EQ(feature.shape(), (Shape{1, dino.width()}));
      EXPECT_LT(distance(feature, vbench_golden("dino_golden", "feature_" + image)), kFp32) << file << " " << image;
    }
  }
}

TEST(Dino, AVideoGivesTheGoldensOfItsFrames) {
  InlineStream stream(2);
  const DinoNetwork dino = DinoNetwork::load(stream, vbench_weights("dino_hub"));
  EXPECT_LT(distance(dino.features(stream, golden_pixels("dino_golden", kDino)), vbench_golden("dino_golden", "features")), kFp32);
}

TEST(Dino, PlacesAreResizedByTheFactorOfTheSpec) {
  InlineStream stream;
  const DinoNetwork dino = DinoNetwork::load(stream, vbench_weights("dino_hub"));
  const std::pair<int64_t, int64_t> grids[] = {{3, 5}, {14, 18}, {24, 14}};
  for (const auto& [rows, columns] : grids)
    EXPECT_LT(distance(dino.resized_places(rows, columns), vbench_golden("dino_golden", fmt::format("pos_{}x{}", rows, columns))), kTable) << rows;
}

HostTensor picture(int64_t count, int64_t height, int64_t width) {
  HostTensor t(DType::kF32, {count, 3, height, width});
  for (int64_t i = 0; i < t.elements(); ++i) t.f32()[i] = static_cast<float>(i * 7919 % 509) / 254.0F - 1;
  return t;
}

// What the table does not say: whether it was resized shows in the features.
TEST(Dino, TheStoredTableServesASquarePictureOfItsOwnGridOnly) {
  InlineStream stream(2);
  const DinoNetwork dino = DinoNetwork::load(stream, vbench_weights("dino_hub"));
  // The same patches: only the pixels that are not read differ.
  const HostTensor square = picture(1, 224, 224);
  HostTensor taller(DType::kF32, {1, 3, 225, 224});
  for (int64_t c = 0; c < 3; ++c) std::copy_n(square.f32() + c * 224 * 224, 224 * 224, taller.f32() + c * 225 * 224);
  const double resized = distance(dino.features(stream, taller), dino.features(stream, square));
  EXPECT_GT(resized, 100 * kFp32);
  HostTensor larger(DType::kF32, {1, 3, 230, 230});
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t y = 0; y < 224; ++y) std::copy_n(square.f32() + (c * 224 + y) * 224, 224, larger.f32() + (c * 230 + y) * 230);
  EXPECT_TRUE(same_bits(dino.features(stream, larger), dino.features(stream, square)));
}

TEST(Dino, BitsDoNotDependOnThreadsOrRepetition) {
  InlineStream one(1), four(4);
  const DinoNetwork a = DinoNetwork::load(one, vbench_weights("dino_hub")), b = DinoNetwork::load(four, vbench_weights("dino_hub"));
  const HostTensor pixels = picture(3, 64, 96);
  const HostTensor feature = a.features(one, pixels);
  EXPECT_TRUE(same_bits(b.features(four, pixels), feature));
  EXPECT_TRUE(same_bits(a.features(one, pixels), feature));
}

TEST(Dino, SeveralPicturesGiveTheFeaturesOfEach) {
  InlineStream stream(2);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const DinoNetwork dino = DinoNetwork::load(stream, vbench_weights("dino_hub"), dtype);
    const HostTensor pixels = picture(3, 48, 64);
    const HostTensor all = dino.features(stream, pixels);
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_LT(distance(rows_of(all, i, i + 1), dino.features(stream, rows_of(pixels, i, i + 1))), dtype == DType::kF32 ? kFp32 : kBf16) << i;
  }
}

TEST(Dino, Bf16IsNear) {
  InlineStream stream(2);
  const DinoNetwork dino = DinoNetwork::load(stream, vbench_weights("dino_hf"), DType::kBF16);
  for (const std::string image : kImages) {
    const double error = distance(dino.features(stream, vbench_golden("dino_golden", "image_" + image)), vbench_golden("dino_golden", "feature_" + image));
    EXPECT_LT(error, kBf16) << image;
    EXPECT_GT(error, kFp32) << image;
  }
}

TEST(Dino, FilesThatAreNotItAreRefused) {
  const TemporaryFolder folder;
  InlineStream stream;
  const auto error = [&](const AlteredWeights& w) { return error_of([&] { DinoNetwork::load(stream, w.write(folder / "w.safetensors")); }); };
  expect_contains(error(AlteredWeights("dino_hub").drop("blocks.1.attn.proj.bias")), "missing: \"blocks.1.attn.proj.bias\"");
  expect_contains(error(AlteredWeights("dino_hub").rename("norm.weight", "nrom.weight")), "is it \"nrom.weight\"?");
  expect_contains(error(AlteredWeights("dino_hub").flatten("blocks.0.mlp.fc2.weight")), "\"blocks.0.mlp.fc2.weight\" is [32768], not [128, 256]");
  expect_contains(error(AlteredWeights("dino_hf").drop("encoder.layer.0.attention.attention.key.weight")), "missing: \"encoder.layer.0.attention.attention.key.weight\"");
  expect_contains(error(AlteredWeights("dino_hub").flatten("pos_embed")), "not those of square patches");
  expect_contains(error(AlteredWeights("dino_hub").drop("blocks.0.norm1.weight")), "no tensor \"blocks.0.norm1.weight\"");
  expect_contains(error(AlteredWeights("dino_hub").drop("cls_token")), "missing: \"cls_token\"");
  const HostTensor pooler(DType::kF32, {128});
  EXPECT_EQ(DinoNetwork::load(stream, AlteredWeights("dino_hf").add("pooler.dense.bias", pooler).write(folder / "p.safetensors")).width(), 128);
}

TEST(Dino, APictureSmallerThanAPatchIsRefused) {
  InlineStream stream;
  const DinoNetwork dino = DinoNetwork::load(stream, vbench_weights("dino_hub"));
  expect_contains(error_of([&] { dino.features(stream, picture(1, 40, 15)); }), "15×40 pixels holds no patch");
}

}  // namespace
}  // namespace megaslide
