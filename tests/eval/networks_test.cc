// Dimensions with networks: goldens of tiny networks under their published names (spec vbench.md), and files that are no such network.
#include "eval/networks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "eval/evaluate.h"
#include "eval/report.h"
#include "tests/eval/golden_frames.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"
#include "tests/vision/golden_networks.h"
#include "vision/preprocess.h"

namespace megaslide {
namespace {

using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

// fp32 features are 1e-6 of their norm from fp64 (goldens' README); a cosine then is within twice that of the golden, which was stored
// in fp64.
constexpr double kCosine = 5e-6;

// A vocabulary of 600 ids, as many as the tiny CLIP knows: 86 merges of two letters.
std::string tiny_merges() {
  std::string text = "#version: 0.2\n";
  for (int i = 0; i < 86; ++i) text += fmt::format("{} {}\n", static_cast<char>('a' + i / 26), static_cast<char>('a' + i % 26));
  return text;
}

// A MUSIQ of one block and six heads, as many as the published one has; weights are noise.
void write_small_musiq(const std::string& path) {
  constexpr int64_t kWidth = 48, kHidden = 96;
  const std::string t = "transformer_encoder.", block = t + "transformer.encoderblock_0.";
  std::vector<std::pair<std::string, Shape>> shapes{{"conv_root.weight", {64, 3, 7, 7}}, {"embedding.weight", {kWidth, 16384}}, {"embedding.bias", {kWidth}},
                                                    {t + "cls", {1, 1, kWidth}}, {t + "posembed_input.position_emb", {1, 100, kWidth}},
                                                    {t + "scaleembed_input.scale_emb", {3, kWidth}}, {"head.weight", {1, kWidth}}, {"head.bias", {1}},
                                                    {"block1.conv1.weight", {64, 64, 1, 1}}, {"block1.conv2.weight", {64, 64, 3, 3}},
                                                    {"block1.conv3.weight", {256, 64, 1, 1}}, {"block1.conv_proj.weight", {256, 64, 1, 1}},
                                                    {block + "mlp.fc1.weight", {kHidden, kWidth}}, {block + "mlp.fc1.bias", {kHidden}},
                                                    {block + "mlp.fc2.weight", {kWidth, kHidden}}, {block + "mlp.fc2.bias", {kWidth}}};
  const auto norm = [&](const std::string& name, int64_t n) { shapes.push_back({name + ".weight", {n}}), shapes.push_back({name + ".bias", {n}}); };
  for (const char* n : {"gn_root", "block1.gn1", "block1.gn2"}) norm(n, 64);
  for (const char* n : {"block1.gn3", "block1.gn_proj"}) norm(n, 256);
  for (const std::string& n : {block + "norm1", block + "norm2", t + "encoder_norm"}) norm(n, kWidth);
  for (const char* n : {"query", "key", "value", "out"}) {
    shapes.push_back({block + "attention." + n + ".weight", {kWidth, kWidth}});
    shapes.push_back({block + "attention." + n + ".bias", {kWidth}});
  }
  std::vector<HostTensor> tensors;
  std::vector<std::pair<std::string, TensorView>> views;
  for (const auto& [name, shape] : shapes) {
    tensors.emplace_back(DType::kF32, shape);
    for (int64_t i = 0; i < tensors.back().elements(); ++i)
      tensors.back().f32()[i] = static_cast<float>((i * 7919 + static_cast<int64_t>(views.size())) % 1013) / 5000 + (name == "head.bias" ? 50.0f : 0.0f);
    views.emplace_back(name, tensors.back().view());
  }
  write_safetensors(path, views);
}

class NetworkDimensions : public testing::Test {
 protected:
  NetworkDimensions() {
    folder_.copy(vbench_data("dino_hub"), "w/dino_vitb16.safetensors");
    folder_.copy(vbench_data("clip_openai"), "w/clip_vit_b32.safetensors");
    folder_.copy(vbench_data("clip_hf"), "w/clip_vit_l14.safetensors");
    folder_.copy(vbench_data("aesthetic_head"), "w/aesthetic_head.safetensors");
    folder_.copy(vbench_data("amt_names"), "w/amt_s.safetensors");
    folder_.copy(vbench_data("raft_things_names"), "w/raft_things.safetensors");
    write_small_musiq(folder_ / "w/musiq_spaq.safetensors");
    folder_.write("w/merges.txt", tiny_merges());
    // The tiny ViCLIP knows 512 ids, fewer than any vocabulary of bytes has.
    HostTensor tokens(DType::kF32, {600, 64});
    for (int64_t i = 0; i < tokens.elements(); ++i) tokens.f32()[i] = static_cast<float>(i * 7919 % 1013) / 1013 - 0.5f;
    AlteredWeights("viclip_names").drop("text_encoder.token_embedding.weight").add("text_encoder.token_embedding.weight", tokens)
        .write(folder_ / "w/viclip_l14.safetensors");
  }
  VideoMeasures measure(const std::vector<Picture>& frames, const std::vector<std::string>& names, const std::string& prompt = {},
                        const std::string& style = {}) {
    const EvalNetworks networks(inspect_weights(folder_ / "w", warnings_), names, DType::kF32, pool_);
    MemoryReader video(frames);
    MeasureOptions o{.metrics = names, .context = {.networks = &networks, .prompt = prompt, .style = style}, .open_again = [&] { return std::make_unique<MemoryReader>(frames); }};
    return measure_video(video, {}, o, pool_);
  }
  TemporaryFolder folder_;
  ThreadPool pool_{2};
  std::vector<std::string> warnings_;
};

std::vector<Picture> golden_frames(const std::string& file) { return frames_of(SafetensorsFile::open(vbench_data(file)).view("video")); }

void expect_trace(const Score& s, const nlohmann::json& expected) {
  ASSERT_TRUE(s.value);
  EXPECT_NEAR(*s.value, expected["score"].get<double>(), kCosine);
  ASSERT_EQ(s.trace.size(), expected["frame_scores"].size() + 1);
  EXPECT_TRUE(std::isnan(s.trace[0]));
  for (size_t i = 1; i < s.trace.size(); ++i) EXPECT_NEAR(s.trace[i], expected["frame_scores"][i - 1].get<double>(), kCosine) << i;
  EXPECT_EQ(s.weight, static_cast<double>(s.trace.size() - 1));
}

TEST_F(NetworkDimensions, SubjectAndBackgroundConsistency) {
  expect_trace(measure(golden_frames("dino_golden"), {"subject_consistency"}).scores.at("subject_consistency"),
               vbench_json("dino")["subject_consistency"]);
  expect_trace(measure(golden_frames("clip_golden"), {"background_consistency"}).scores.at("background_consistency"),
               vbench_json("clip")["background_consistency"]);
  std::vector<Picture> one = golden_frames("dino_golden");
  one.resize(1);
  EXPECT_EQ(measure(one, {"subject_consistency"}).scores.at("subject_consistency").reason, "n/a: needs at least 2 frames");
}

TEST_F(NetworkDimensions, AestheticQuality) {
  const Score s = measure(golden_frames("clip_golden"), {"aesthetic_quality"}).scores.at("aesthetic_quality");
  EXPECT_NEAR(s.value.value(), vbench_json("clip")["aesthetic_quality"].get<double>(), kCosine);
  EXPECT_EQ(s.weight, 1);
}

// The golden's texts are ids; here the phrase becomes ids first, and the picture's side is the golden's.
TEST_F(NetworkDimensions, AppearanceStyleIsTheLogitOfTheStylePhrase) {
  const std::vector<Picture> frames = golden_frames("clip_golden");
  const Score s = measure(frames, {"appearance_style"}, "a fox", "van gogh").scores.at("appearance_style");
  PoolStream stream(pool_);
  const ClipNetwork clip = ClipNetwork::load(stream, vbench_weights("clip_openai"));
  const HostTensor text = clip.text_features(stream, ClipTokenizer::open(folder_ / "w/merges.txt").encode("van gogh")),
                   images = vbench_golden("clip_golden", "image_features.clip_pil");
  double mean = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    double dot = 0, a = 0, b = 0;
    for (int64_t c = 0; c < clip.embed(); ++c) {
      const double x = static_cast<double>(images.f32()[static_cast<int64_t>(i) * clip.embed() + c]), y = static_cast<double>(text.f32()[c]);
      dot += x * y, a += x * x, b += y * y;
    }
    mean += clip.logit_scale() * dot / std::sqrt(a * b) / 100 / static_cast<double>(frames.size());
  }
  // A byte of the preprocessing may be a level off (goldens' README).
  EXPECT_NEAR(s.value.value(), mean, 1e-4);
  EXPECT_EQ(s.weight, static_cast<double>(frames.size()));
  expect_contains(measure(frames, {"appearance_style"}, "a fox").scores.at("appearance_style").reason, "no style phrase");
}

// Video features against the golden's, through the second decoding; for fewer frames than a clip has, too.
TEST_F(NetworkDimensions, ViclipChoosesFramesByTheirCount) {
  const std::vector<Picture> frames = golden_frames("viclip_golden");
  PoolStream stream(pool_);
  const ViclipNetwork viclip = ViclipNetwork::load(stream, NetworkWeights::open(folder_ / "w/viclip_l14.safetensors"));
  const HostTensor text = viclip.text_features(stream, ClipTokenizer::open(folder_ / "w/merges.txt").encode("a fox runs")),
                   features = vbench_golden("viclip_golden", "video_features");
  for (const size_t count : {frames.size(), size_t{5}}) {
    std::vector<Picture> some = frames;
    some.resize(count);
    const VideoMeasures m = measure(some, {"temporal_style", "overall_consistency"}, "a fox runs");
    double dot = 0, a = 0, b = 0;
    for (int64_t c = 0; c < viclip.embed(); ++c) {
      const double x = static_cast<double>(features.f32()[(count == 5 ? viclip.embed() : 0) + c]), y = static_cast<double>(text.f32()[c]);
      dot += x * y, a += x * x, b += y * y;
    }
    EXPECT_NEAR(m.scores.at("overall_consistency").value.value(), dot / std::sqrt(a * b), 1e-4) << count;
    EXPECT_EQ(m.scores.at("overall_consistency").value, m.scores.at("temporal_style").value);
  }
  EXPECT_EQ(measure(frames, {"overall_consistency"}).scores.at("overall_consistency").reason, "n/a: the video has no prompt");
}

// The published bytes of a golden may be one level off in a few places (spec §5): its score by 1e-5 at most.
TEST_F(NetworkDimensions, MotionSmoothness) {
  const std::vector<Picture> frames = golden_frames("amt_golden");
  const nlohmann::json expected = vbench_json("amt")["motion_smoothness"];
  const Score s = measure(frames, {"motion_smoothness"}).scores.at("motion_smoothness");
  EXPECT_NEAR(s.value.value(), expected["score"].get<double>(), 1e-5);
  ASSERT_EQ(s.trace.size(), frames.size());
  for (size_t k = 0; k < expected["frame_mae"].size(); ++k) EXPECT_NEAR(s.trace[2 * k + 1], expected["frame_mae"][k].get<double>(), 1e-2) << k;
  EXPECT_EQ(measure({frames[0], frames[1]}, {"motion_smoothness"}).scores.at("motion_smoothness").reason, "n/a: needs at least 3 frames");
  EXPECT_EQ(measure({3, flat_picture(150, 100, 9)}, {"motion_smoothness"}).scores.at("motion_smoothness").reason,
            "n/a: needs sides of at least 113 pixels, not 150x100");
}

// The tiny RAFT's flow of the golden's pair is tens of pixels (raft.json), and so beyond 6·128/256 = 3.
TEST_F(NetworkDimensions, DynamicDegreeLooksAtFramesAnEighthOfASecondApart) {
  const std::vector<Picture> pair = golden_frames("raft_golden");
  std::vector<Picture> frames;
  for (int i = 0; i < 8; ++i) frames.push_back(pair[static_cast<size_t>(i / 2 % 2)]);
  const EvalNetworks networks(inspect_weights(folder_ / "w", warnings_), {"dynamic_degree"}, DType::kF32, pool_);
  for (const double fps : {8.0, 16.0}) {
    MemoryReader video(frames, fps);
    const Score s = measure_video(video, {}, {.metrics = {"dynamic_degree"}, .context = {.networks = &networks}}, pool_).scores.at("dynamic_degree");
    EXPECT_EQ(s.value, 1.0) << fps;
    EXPECT_EQ(std::ranges::count_if(s.trace, [](double m) { return std::isfinite(m); }), fps == 8 ? 7 : 3);
    EXPECT_EQ(s.extra.at("needed_pairs"), fps == 8 ? 2 : 1);
  }
  EXPECT_EQ(measure({3, flat_picture(150, 100, 9)}, {"dynamic_degree"}).scores.at("dynamic_degree").reason,
            "n/a: needs sides of at least 121 pixels, not 150x100");
}

// The tiny RAFT sees motion between any two pictures, and none worth speaking of between equal ones.
TEST_F(NetworkDimensions, StaticFilterLetsNoMovingVideoPass) {
  const EvalNetworks networks(inspect_weights(folder_ / "w", warnings_), {"temporal_flickering"}, DType::kF32, pool_, true);
  const auto score = [&](const std::vector<Picture>& frames) {
    MemoryReader video(frames);
    const MeasureOptions o{.metrics = {"temporal_flickering"}, .context = {.networks = &networks, .static_filter = true}};
    return measure_video(video, {}, o, pool_).scores.at("temporal_flickering");
  };
  expect_contains(score(golden_frames("raft_golden")).reason, "filtered out: it moves");
  EXPECT_EQ(score({3, flat_picture(150, 100, 9)}).reason, "n/a: needs sides of at least 121 pixels, not 150x100");
  folder_.write("none/readme", "");
  expect_contains(error_of([&] { EvalNetworks(inspect_weights(folder_ / "none", warnings_), {}, DType::kF32, pool_, true); }), "--static-filter needs raft_things");
}

// Pictures that a network cannot take cost its dimension alone.
TEST_F(NetworkDimensions, WhatANetworkCannotTakeCostsItsDimensionAlone) {
  const VideoMeasures m = measure({2, flat_picture(2000, 10, 9)}, {"temporal_flickering", "subject_consistency"});
  EXPECT_EQ(m.scores.at("temporal_flickering").value, 1.0);
  expect_contains(m.scores.at("subject_consistency").reason, "n/a: ");
}

TEST_F(NetworkDimensions, WholeEvaluationSaysWhatScoredIt) {
  EvalOptions o;
  o.inputs = {MEGASLIDE_TEST_DATA "/eval/mixed"};
  o.weights = folder_ / "w";
  o.threads = 2;
  const Evaluation e = evaluate(o);
  for (const char* name : {"subject_consistency", "background_consistency", "aesthetic_quality", "temporal_style", "overall_consistency", "imaging_quality"})
    EXPECT_NE(e.find(name), nullptr) << name;
  expect_contains(e.withheld.at("appearance_style"), "no style phrase");
  const auto json = nlohmann::json::parse(report_json(e));
  EXPECT_EQ(json["provenance"]["weights"]["dino_vitb16"]["sha256"].get<std::string>().size(), 64u);
  EXPECT_TRUE(json["provenance"]["weights"].contains("clip_vocabulary"));
  // MUSIQ's scale is a hundred times the dimension's.
  const DimensionResult& imaging = *e.find("imaging_quality");
  double quality = 0;
  for (const ScoredVideo& v : imaging.videos) quality += v.value / static_cast<double>(imaging.videos.size());
  EXPECT_GT(quality, 10);
  EXPECT_NEAR(imaging.raw, quality / 100, 1e-12);
  EXPECT_TRUE(std::ranges::any_of(e.warnings, [](const std::string& w) { return w.find("PolyForm Noncommercial") != std::string::npos; }));
  // A mean over frames, not over videos.
  const DimensionResult& subject = *e.find("subject_consistency");
  double sum = 0, frames = 0;
  for (const ScoredVideo& v : subject.videos) {
    const auto n = static_cast<double>(e.videos[v.video].measures.facts.frames - 1);
    sum += n * v.value, frames += n;
  }
  EXPECT_NEAR(subject.raw, sum / frames, 1e-15);
}

// Odd videos among good ones: each costs itself alone, and every report stays what its readers parse.
TEST_F(NetworkDimensions, OddVideosAndTextsCostThemselvesAlone) {
  const std::string mixed = MEGASLIDE_TEST_DATA "/eval/mixed/", longest(300, 'x'), odd = "a \"red\" fox,\nor <b>it's</b> &amp;\ttwo \xF0\x9F\xA6\x8A";
  folder_.copy(mixed + "small.mkv", "v/" + std::string(251, 'n') + ".mkv");
  folder_.copy(mixed + "one.mkv", "v/one.mkv");
  folder_.write("v/broken.mkv", "<!DOCTYPE html>");
  const nlohmann::json manifest{{{"path", "v/" + std::string(251, 'n') + ".mkv"}, {"prompt", odd}, {"appearance_style", "\"van\"\ngogh"}},
                                {{"path", "v/one.mkv"}, {"prompt", "a fox"}},
                                {{"path", "v/broken.mkv"}, {"prompt", "a fox"}},
                                {{"path", "v/" + longest + ".mkv"}, {"prompt", std::string(400, 'y')}}};
  EvalOptions o;
  o.inputs = {folder_.write("set.json", manifest.dump())};
  o.weights = folder_ / "w";
  o.thumbnails = true;
  o.threads = 2;
  const Evaluation e = evaluate(o);
  EXPECT_EQ(finish_evaluation(e, {}, false), 0);
  const auto json = nlohmann::json::parse(report_json(e));
  std::string reasons;
  for (const SkippedVideo& v : e.find("subject_consistency")->skipped) reasons += e.videos[v.video].item.path + ": " + v.reason + "\n";
  EXPECT_EQ(json["dimensions"]["subject_consistency"]["n"], 1);
  for (const std::string& part : {std::string("one.mkv: n/a: needs at least 2 frames"), std::string("broken.mkv: "), longest + ".mkv: "})
    expect_contains(reasons, part);
  EXPECT_EQ(json["dimensions"]["aesthetic_quality"]["n"], 2);
  EXPECT_EQ(json["dimensions"]["appearance_style"]["n"], 1);
  EXPECT_EQ(json["dimensions"]["overall_consistency"]["n"], 2);
  const std::string html = report_html(e);
  EXPECT_EQ(html.find("<b>it's"), std::string::npos);
  for (const char* licence : {"published under Apache-2.0", "published under PolyForm Noncommercial 1.0.0", "published under CC BY-NC 4.0"}) expect_contains(html, licence);
  write_results(e, folder_ / "out", "odd");
}

// The second run reads what the first has kept; other weights or a damaged entry are computed again.
TEST_F(NetworkDimensions, ScoresAreKept) {
  EvalOptions o;
  o.inputs = {MEGASLIDE_TEST_DATA "/eval/mixed"};
  o.weights = folder_ / "w";
  o.dimensions = {"subject_consistency", "temporal_flickering", "temporal_style"};
  o.cache = folder_ / "cache";
  const std::string first = report_json(evaluate(o));
  std::vector<std::string> entries;
  for (const auto& entry : std::filesystem::directory_iterator(o.cache)) entries.push_back(entry.path().string());
  ASSERT_GE(entries.size(), 4u);
  const auto stamp = std::filesystem::last_write_time(entries[0]);
  EXPECT_EQ(report_json(evaluate(o)), first);
  EXPECT_EQ(std::filesystem::last_write_time(entries[0]), stamp);
  write_file_atomic(entries[0], "{}");
  write_file_atomic(entries[1], "no json");
  EXPECT_EQ(report_json(evaluate(o)), first);
  folder_.copy(vbench_data("dino_hf"), "w/dino_vitb16.safetensors");
  evaluate(o);
  EXPECT_GT(std::distance(std::filesystem::directory_iterator(o.cache), {}), static_cast<std::ptrdiff_t>(entries.size()));
}

TEST_F(NetworkDimensions, FilesThatAreNoSuchNetworkEndTheRunBeforeAnyVideo) {
  const auto load = [&] {
    std::vector<std::string> all;
    for (std::string_view n : metric_names()) all.emplace_back(n);
    const EvalNetworks networks(inspect_weights(folder_ / "w", warnings_), all, DType::kF32, pool_);
  };
  EXPECT_EQ(error_of(load), "no error");
  AlteredWeights("dino_hub").rename("cls_token", "cls_tokn").write(folder_ / "w/dino_vitb16.safetensors");
  expect_contains(error_of(load), "missing: \"cls_token\"");
  folder_.write("w/dino_vitb16.safetensors", read_file(vbench_data("dino_hub")).substr(0, 5000));
  expect_contains(error_of(load), "dino_vitb16.safetensors");
  HostTensor token = vbench_golden("dino_hub", "cls_token");
  token.f32()[3] = std::numeric_limits<float>::quiet_NaN();
  AlteredWeights("dino_hub").drop("cls_token").add("cls_token", token).write(folder_ / "w/dino_vitb16.safetensors");
  expect_contains(error_of(load), "cls_token");
  folder_.copy(vbench_data("dino_hub"), "w/dino_vitb16.safetensors");
  folder_.write("w/merges.txt", "#version: 0.2\na b\n");
  expect_contains(error_of(load), "knows 600 ids, the vocabulary");
}

}  // namespace
}  // namespace megaslide
