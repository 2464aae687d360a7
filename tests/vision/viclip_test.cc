// ViCLIP against goldens of upstream's code in fp64 (spec vbench-networks.md §1).
#include "vision/viclip.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"
#include "tests/vision/reference_pixels.h"
#include "vision/frame_choice.h"

namespace megaslide {
namespace {
using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

// PyTorch's fp32 is 6e-7 (video) and 9e-7 (text) of the largest feature away, cosines 3e-7: spec vbench-networks.md §5 suggests these.
constexpr double kFp32 = 5e-6, kCosine = 2e-6;
// Operands rounded to bf16, 2^-9 each; twice what two blocks make of it, measured.
constexpr double kBf16 = 1e-2;

HostTensor clip_pixels(const std::string& name, const std::vector<int64_t>& frames) {
  const HostTensor stored = vbench_golden("viclip_golden", name);
  HostTensor out(DType::kF32, {static_cast<int64_t>(frames.size()), 3, stored.shape()[2], stored.shape()[3]});
  const int64_t picture = stored.elements() / stored.shape()[0];
  for (size_t i = 0; i < frames.size(); ++i) std::copy_n(stored.f32() + frames[i] * picture, picture, out.f32() + static_cast<int64_t>(i) * picture);
  return out;
}
HostTensor full() { return clip_pixels("pixels", {0, 1, 2, 3, 4, 5, 6, 7}); }

nlohmann::json description() { return nlohmann::json::parse(std::ifstream(std::string(MEGASLIDE_TEST_DATA) + "/vbench/viclip.json")); }

TEST(Viclip, VideoFeaturesAreTheGoldens) {
  InlineStream stream(2);
  const ViclipNetwork viclip = ViclipNetwork::load(stream, vbench_weights("viclip_names"));
  const HostTensor expected = vbench_golden("viclip_golden", "video_features"), classes = vbench_golden("viclip_golden", "class_after_block");
  HostTensor seen(DType::kF32, classes.shape());
  ViclipNetwork::Observers observers;
  observers.tokens = [](const HostTensor& x) {
    const HostTensor rows = vbench_golden("viclip_golden", "tokens_rows");
    const auto indices = description()["tokens_row_index"].get<std::vector<int64_t>>();
    HostTensor got(DType::kF32, rows.shape());
    for (size_t i = 0; i < indices.size(); ++i) std::copy_n(x.f32() + indices[i] * 128, 128, got.f32() + static_cast<int64_t>(i) * 128);
    EXPECT_LT(distance(got, rows), kFp32);
  };
  observers.blocks = [&](int64_t block, const float* rows) { std::copy_n(rows, 128, seen.f32() + block * 128); };
  EXPECT_LT(distance(viclip.video_features(stream, full(), observers), rows_of(expected, 0, 1)), kFp32);
  EXPECT_LT(distance(seen, classes), kFp32);
  EXPECT_LT(distance(viclip.video_features(stream, clip_pixels("pixels_short", {0, 1, 2, 3, 4, 4, 4, 4})), rows_of(expected, 1, 2)), kFp32);
}

TEST(Viclip, TextFeaturesAndCosinesAreTheGoldens) {
  InlineStream stream(2);
  const ViclipNetwork viclip = ViclipNetwork::load(stream, vbench_weights("viclip_names"));
  EXPECT_EQ(viclip.context(), 32);
  const HostTensor video = viclip.video_features(stream, full()), expected = vbench_golden("viclip_golden", "text_features"),
                   similarity = vbench_golden("viclip_golden", "similarity");
  for (int64_t i = 0; i < expected.shape()[0]; ++i) {
    const HostTensor text = viclip.text_features(stream, golden_ids("viclip_golden", i));
    EXPECT_LT(distance(text, rows_of(expected, i, i + 1)), kFp32) << i;
    EXPECT_NEAR(cosine(video.f32(), text.f32(), viclip.embed()), static_cast<double>(similarity.f32()[i]), kCosine) << i;
  }
}

TEST(Viclip, ClipFramesAreThoseOfTheGolden) {
  const nlohmann::json d = description();
  EXPECT_EQ(middle_frames(13, 8), d["frame_index"].get<std::vector<int64_t>>());
  EXPECT_EQ(middle_frames(5, 8), d["frame_index_of_first_5"].get<std::vector<int64_t>>());
}

TEST(Viclip, BitsDoNotDependOnThreadsOrRepetition) {
  InlineStream one(1), four(4);
  const ViclipNetwork a = ViclipNetwork::load(one, vbench_weights("viclip_names")), b = ViclipNetwork::load(four, vbench_weights("viclip_names"));
  const HostTensor feature = a.video_features(one, full());
  EXPECT_TRUE(same_bits(b.video_features(four, full()), feature));
  EXPECT_TRUE(same_bits(a.video_features(one, full()), feature));
}

TEST(Viclip, Bf16IsNear) {
  InlineStream stream(2);
  const ViclipNetwork viclip = ViclipNetwork::load(stream, vbench_weights("viclip_names"), DType::kBF16);
  const double error = distance(viclip.video_features(stream, full()), rows_of(vbench_golden("viclip_golden", "video_features"), 0, 1));
  EXPECT_LT(error, kBf16);
  EXPECT_GT(error, kFp32);
}

TEST(Viclip, FilesAndClipsThatAreNotItAreRefused) {
  const TemporaryFolder folder;
  InlineStream stream;
  const auto error = [&](const AlteredWeights& w) { return error_of([&] { ViclipNetwork::load(stream, w.write(folder / "w.safetensors")); }); };
  expect_contains(error(AlteredWeights("viclip_names").drop("text_encoder.ln_final.bias")), "missing: \"text_encoder.ln_final.bias\"");
  expect_contains(error(AlteredWeights("viclip_names").flatten("vision_encoder.conv1.weight")), "\"vision_encoder.conv1.weight\" is [75264]");
  expect_contains(error(AlteredWeights("viclip_names").flatten("vision_encoder.temporal_positional_embedding")), "of times");
  expect_contains(error(AlteredWeights("viclip_names").drop("vision_encoder.transformer.resblocks.0.mlp.c_fc.weight")),
                  "no tensor \"vision_encoder.transformer.resblocks.0.mlp.c_fc.weight\"");
  const ViclipNetwork viclip = ViclipNetwork::load(stream, AlteredWeights("viclip_names").drop("temp").write(folder / "t.safetensors"));
  expect_contains(error_of([&] { viclip.video_features(stream, HostTensor(DType::kF32, {7, 3, 56, 56})); }), "7 pictures of 56×56 pixels, where this ViCLIP takes 8 of 56×56");
  expect_contains(error_of([&] { viclip.text_features(stream, std::vector<int64_t>(33, 1)); }), "33 tokens, where the network takes 1 to 32");
}

}  // namespace
}  // namespace megaslide
