// Whole evaluations of real files, as eval-vbench runs them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "eval/compare.h"
#include "eval/import.h"
#include "eval/report.h"
#include "io/video.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

using Json = nlohmann::json;
using Names = std::vector<std::string>;

const std::string kData = MEGASLIDE_TEST_DATA "/eval/", kMixed = kData + "mixed";

Evaluation run(const Names& inputs, EvalOptions o = {}) {
  o.inputs = inputs;
  return evaluate(o);
}

bool says(const Names& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& l) { return l.find(part) != std::string::npos; });
}

Picture gradient(int64_t width, int64_t height, int shift) {
  Picture p{width, height, {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) p.rgb.push_back(static_cast<uint8_t>((x * 3 + y * 2 + shift * 5 + c * 40) & 255));
    }
  }
  return p;
}

void write_frames(const std::string& folder, int n, int extra = 0) {
  std::filesystem::create_directories(folder);
  for (int i = 0; i < n; ++i)
    write_png(fmt::format("{}/frame_{}.png", folder, i + 1), gradient(24, 16, i + (i == 1 ? extra : 0)));
}

TEST(Evaluate, MixedSetOfLosslessClips) {
  const Evaluation e = run({kMixed});
  const DimensionResult* r = e.find("temporal_flickering");
  ASSERT_NE(r, nullptr);
  // Lossless RGB: the bytes are exact, so are the sums; the stated values have eight digits.
  const std::map<std::string, double> want{
      {"small.mkv", 0.92160895}, {"large.mkv", 0.92970448}, {"long.mkv", 0.92181471}, {"still.mkv", 1.0}};
  ASSERT_EQ(r->videos.size(), 4u);
  for (const ScoredVideo& v : r->videos) {
    EXPECT_NEAR(v.value, want.at(std::filesystem::path(e.videos[v.video].item.path).filename().string()), 5e-9);
  }
  EXPECT_NEAR(r->raw, 0.94328203, 1e-8);
  ASSERT_EQ(r->skipped.size(), 1u);
  EXPECT_EQ(r->skipped[0].reason, "n/a: needs at least 2 frames");
  EXPECT_NE(e.videos[r->skipped[0].video].item.path.find("one.mkv"), std::string::npos);
  ASSERT_EQ(e.alarms.at("frozen").size(), 1u);
  EXPECT_NE(e.videos[e.alarms.at("frozen")[0]].item.path.find("still.mkv"), std::string::npos);
  EXPECT_TRUE(says(e.warnings, "mixed sizes: 160x120 (1 video), 96x64 (4 videos)"));
  EXPECT_TRUE(says(e.warnings, "mixed frame rates"));
  EXPECT_TRUE(says(e.warnings, "mixed frame counts"));
  EXPECT_EQ(e.withheld.at("total"), "partial: 1/16, total withheld");
  EXPECT_EQ(finish_evaluation(e, {}, false), 0);
}

TEST(Evaluate, ThreadsDoNotChangeTheReport) {
  EvalOptions one, four;
  four.threads = 4;
  one.thumbnails = four.thumbnails = true;
  one.reference = four.reference = kMixed;
  EXPECT_EQ(report_json(run({kMixed}, one)), report_json(run({kMixed}, four)));
  EXPECT_EQ(report_html(run({kMixed}, one)), report_html(run({kMixed}, four)));
}

TEST(Evaluate, NamesAreAuditedFirst) {
  const TemporaryFolder t;
  for (const char* name : {"A fantasy landscape-0.mkv", "A fantasy landscape-1.mkv", "a fantasy landscape-0.mkv",
                           "ends with a dot-1.mkv", "ends with a dot.-0.mkv", "extra clip-0.mkv",
                           "fac\xCC\xA7"
                           "ades-0.mkv",
                           "fa\xC3\xA7"
                           "ades-1.MKV"}) {
    t.copy(kData + "named.mkv", std::string("v/") + name);
  }
  t.write("v/readme.txt", "no video");
  EvalOptions o;
  o.prompts = t.write("prompts.json",
                      "[\"A fantasy landscape\", \"a fantasy landscape\", \"fa\xC3\xA7"
                      "ades\", \"ends with a dot.\"]");
  o.videos_a_prompt = 2;
  const Evaluation e = run({t / "v"}, o);
  ASSERT_TRUE(e.audit);
  EXPECT_EQ(e.audit->matched, 6);
  EXPECT_EQ(e.find("temporal_flickering")->videos.size(), 6u);
  EXPECT_EQ(finish_evaluation(e, {}, false), 3);
  EXPECT_EQ(finish_evaluation(e, {}, true), 0);
  const std::string text = report_text(e);
  EXPECT_EQ(text.rfind("Names: found 6 of 8 videos by name\n", 0), 0u) << text;
  EXPECT_NE(text.find("near name: ends with a dot-1.mkv"), std::string::npos);
  EXPECT_NE(text.find("not a video, ignored: "), std::string::npos);
  const Json j = Json::parse(report_json(e));
  EXPECT_EQ(j["audit"]["extra"], Json::array({"extra clip-0.mkv"}));
  EXPECT_EQ(j["dimensions"]["temporal_flickering"]["n"], 6);
}

TEST(Evaluate, PromptsScoreOnlyTheirDimensions) {
  const TemporaryFolder t;
  t.copy(kData + "named.mkv", "v/fox-0.mkv");
  t.copy(kData + "mixed/small.mkv", "v/scene-0.mkv");
  EvalOptions o;
  o.videos_a_prompt = 1;
  o.prompts = t.write(
      "p.json",
      R"([{"prompt_en": "fox", "dimension": ["temporal_flickering"]}, {"prompt_en": "scene", "dimension": ["scene"]}])");
  const Evaluation e = run({t / "v"}, o);
  ASSERT_EQ(e.find("temporal_flickering")->videos.size(), 1u);
  EXPECT_TRUE(e.find("temporal_flickering")->skipped.empty());
  o.prompts = t.write(
      "q.json", R"([{"prompt_en": "fox", "dimension": ["color"]}, {"prompt_en": "scene", "dimension": ["scene"]}])");
  const Evaluation none = run({t / "v"}, o);
  EXPECT_EQ(none.withheld.at("temporal_flickering"), "no video of the set belongs to it");
  EXPECT_THROW(finish_evaluation(none, {}, false), Error);
}

TEST(Evaluate, BadVideosAreSkippedByName) {
  const TemporaryFolder t;
  t.copy(kData + "mixed/small.mkv", "v/good.mkv");
  t.write("v/text.mp4", "this is a text");
  t.write("v/empty.mp4", "");
  const Evaluation e = run({t / "v", t / "absent.mp4"});
  const DimensionResult* r = e.find("temporal_flickering");
  EXPECT_EQ(r->videos.size(), 1u);
  EXPECT_EQ(r->skipped.size(), 3u);
  EXPECT_TRUE(says(e.warnings, "text.mp4: skipped: "));
  EXPECT_TRUE(says(e.warnings, "absent.mp4: skipped: "));
  EXPECT_EQ(finish_evaluation(e, {}, false), 0);
  const Evaluation nothing = run({t / "v/text.mp4"});
  EXPECT_THROW(finish_evaluation(nothing, {}, false), Error);
  std::filesystem::create_directories(t / "hollow");
  EXPECT_THROW(run({t / "hollow"}), Error);
}

TEST(Evaluate, AFolderOfFramesIsAVideo) {
  const TemporaryFolder t;
  write_frames(t / "set/clip-0", 12);
  const Evaluation e = run({t / "set"});
  ASSERT_EQ(e.videos.size(), 1u);
  EXPECT_EQ(e.videos[0].measures.facts.frames, 12);
  EXPECT_EQ(e.videos[0].measures.facts.fps, 0);
  EXPECT_EQ(e.videos[0].item.prompt, "clip");
  EXPECT_EQ(e.find("temporal_flickering")->videos.size(), 1u);
}

TEST(Evaluate, ReferencesGivePsnrAndSsim) {
  const TemporaryFolder t;
  write_frames(t / "ref/a", 4);
  write_frames(t / "out/a", 4, 1);
  write_frames(t / "out/b", 4);
  EvalOptions o;
  o.reference = t / "ref";
  const Evaluation e = run({t / "out"}, o);
  const DimensionResult* r = e.find("psnr");
  ASSERT_NE(r, nullptr);
  ASSERT_EQ(r->videos.size(), 1u);
  EXPECT_TRUE(std::isinf(r->raw));  // three of four frames are equal
  EXPECT_TRUE(std::isfinite(e.videos[0].measures.scores.at("psnr").extra.at("pooled")));
  EXPECT_EQ(r->skipped[0].reason, "n/a: no reference");
  EXPECT_FALSE(r->normalised);
  EXPECT_TRUE(says(e.warnings, "no video of this name"));
  const Json j = Json::parse(report_json(e));
  EXPECT_EQ(j["dimensions"]["psnr"]["raw"], "inf");
  EXPECT_TRUE(j["dimensions"]["psnr"]["ci95"].is_null());
  EXPECT_TRUE(j["dimensions"]["psnr"]["normalised"].is_null());
  EXPECT_EQ(e.aggregate.present, 1);
}

TEST(Evaluate, DimensionsAskedForAreWithheldByName) {
  EvalOptions o;
  o.dimensions = {"motion_smoothness", "human_action"};
  const Evaluation e = run({kMixed}, o);
  EXPECT_TRUE(e.dimensions.empty());
  EXPECT_NE(e.withheld.at("motion_smoothness").find("needs amt_s"), std::string::npos);
  EXPECT_EQ(e.withheld.count("color"), 0u);
  try {
    finish_evaluation(e, {}, false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFailure);
    EXPECT_NE(error.message().find("human_action"), std::string::npos);
  }
  o.dimensions = {"flicker"};
  EXPECT_THROW(run({kMixed}, o), Error);
}

TEST(Evaluate, AbsentNetworksAreSaidWithWhatToFetch) {
  const TemporaryFolder t;
  t.write("w/readme.txt", "x");
  EvalOptions o;
  o.weights = t / "w";
  const Evaluation e = run({kMixed}, o);
  EXPECT_TRUE(says(e.warnings, "none of the known networks is in it"));
  EXPECT_NE(e.withheld.at("subject_consistency").find("needs dino_vitb16 (facebook/dino-vitb16"), std::string::npos);
  EXPECT_NE(e.withheld.at("aesthetic_quality").find("clip_vit_l14"), std::string::npos);
  EXPECT_NE(e.withheld.at("aesthetic_quality").find("aesthetic_head"), std::string::npos);
  o.weights = t / "nowhere";
  EXPECT_THROW(run({kMixed}, o), Error);
}

TEST(Import, ScoresOfOtherProgramsCompleteTheTotal) {
  const TemporaryFolder t;
  // The example of the aggregate arithmetic, without flicker.
  const std::string file = t.write(
      "d_eval_results.json", R"({"subject_consistency": [0.95, [{"video_path": "a-0.mp4", "video_results": 0.95}]],
    "background_consistency": [0.96, []], "motion_smoothness": [0.985], "dynamic_degree": [0.5, [{"video_path": "a-0.mp4", "video_results": true},
    {"video_path": "b-0.mp4", "video_results": false}]], "aesthetic_quality": 0.6, "imaging_quality": [65, [{"video_path": "a-0.mp4", "video_results": 65}]],
    "object_class": 0.9, "multiple_objects": 0.6, "human_action": 0.95, "color": 0.85, "spatial_relationship": 0.7, "scene": 0.5,
    "appearance_style": 0.24, "temporal_style": 0.25, "overall_consistency": 0.27})");
  EvalOptions o;
  o.imports = {file};
  const Evaluation e = run({kMixed}, o);
  ASSERT_TRUE(e.aggregate.total);
  EXPECT_EQ(e.aggregate.present, 16);
  EXPECT_TRUE(says(e.warnings, "imaging_quality 65 is on the 0-100 scale"));
  EXPECT_NEAR(*e.aggregate.semantic, 0.7640913850891093, 1e-14);
  // The published sum has flicker .98; here it is measured.
  const double flicker = (e.find("temporal_flickering")->raw - 0.98) / (1 - 0.6293) / 6.5;
  EXPECT_NEAR(*e.aggregate.quality, 0.8139139693721855 + flicker, 1e-14);
  EXPECT_NEAR(*e.aggregate.total, (4 * *e.aggregate.quality + *e.aggregate.semantic) / 5, 1e-15);
  EXPECT_EQ(e.find("dynamic_degree")->imported[0].second, 1);
  EXPECT_NE(report_text(e).find("total = (4 x "), std::string::npos);
  EXPECT_EQ(failed_thresholds(e, {parse_threshold("total=0.99")}).size(), 1u);
}

TEST(Import, WhatIsNoScoreIsRefused) {
  const TemporaryFolder t;
  Names warnings;
  int n = 0;
  for (const char* text : {"[]", "{}", "{\"scene\": \"x\"}", "{\"scene\": []}", "{\"scenery\": 0.5}",
                           "{\"scene\": 324}", "{\"scene\": [null]}", "{\"scene\": NaN}"}) {
    SCOPED_TRACE(text);
    EXPECT_THROW(import_scores({t.write(fmt::format("{}.json", n++), text)}, warnings), Error);
  }
  const std::string good = t.write("good.json", "{\"scene\": [0.5]}");
  EXPECT_EQ(import_scores({good}, warnings).at("scene").raw, 0.5);
  EXPECT_THROW(import_scores({good, good}, warnings), Error);
}

TEST(Thresholds, RawScoresAndWithheldOnes) {
  const Evaluation e = run({kMixed});
  const auto failed = [&](const char* text) { return failed_thresholds(e, {parse_threshold(text)}).size(); };
  EXPECT_EQ(failed("temporal_flickering=0.9"), 0u);
  EXPECT_EQ(failed("temporal_flickering=0.95"), 1u);
  EXPECT_EQ(failed("scene=0"), 1u);
  EXPECT_EQ(failed("quality=-5"), 1u);
  EXPECT_EQ(finish_evaluation(e, {{"temporal_flickering", 0.99}}, false), 3);
  for (const char* bad : {"temporal_flickering", "flicker=1", "temporal_flickering=", "temporal_flickering=x",
                          "temporal_flickering=1x", "=1", "scene=nan"}) {
    EXPECT_THROW(parse_threshold(bad), Error) << bad;
  }
}

TEST(Results, FilesAsVBenchWritesThem) {
  const TemporaryFolder t;
  EvalOptions o;
  o.reference = kMixed;
  const Evaluation e = run({kMixed}, o);
  write_results(e, t / "out/deep", "run");
  const Json results = Json::parse(read_file(t / "out/deep/run_eval_results.json"));
  ASSERT_EQ(results.size(), 1u);  // psnr and ssim are no dimensions of VBench
  EXPECT_EQ(results["temporal_flickering"][0].get<double>(), e.find("temporal_flickering")->raw);
  ASSERT_EQ(results["temporal_flickering"][1].size(), 4u);
  EXPECT_TRUE(results["temporal_flickering"][1][0].contains("video_path"));
  EXPECT_TRUE(results["temporal_flickering"][1][0].contains("video_results"));
  const Json info = Json::parse(read_file(t / "out/deep/run_full_info.json"));
  ASSERT_EQ(info.size(), 5u);
  EXPECT_EQ(info[0]["dimension"], Json::array({"temporal_flickering"}));
  EXPECT_EQ(info[0]["video_list"].size(), 1u);
  const Json provenance = Json::parse(read_file(t / "out/deep/run_provenance.json"));
  EXPECT_EQ(provenance["videos"].size(), 5u);
  EXPECT_EQ(provenance["videos"][0]["width"], 160);
  const std::string videos = read_file(t / "out/deep/run_videos.csv"),
                    frames = read_file(t / "out/deep/run_frames.csv");
  EXPECT_EQ(std::count(videos.begin(), videos.end(), '\n'), 6);
  EXPECT_EQ(std::count(frames.begin(), frames.end(), '\n'), 1 + 12 + 20 + 1 + 9 + 6);
  EXPECT_EQ(frames.rfind("path,frame,seconds,brightness,from_first,difference,psnr,ssim\n", 0), 0u);
  EXPECT_EQ(Json::parse(read_file(t / "out/deep/run.json")), Json::parse(report_json(e)));
  // What was written can be evaluated again by its own list of videos.
  const Evaluation again = run({t / "out/deep/run_full_info.json"});
  EXPECT_EQ(again.find("temporal_flickering")->raw, e.find("temporal_flickering")->raw);
}

TEST(Report, JsonHasTheContractsFields) {
  const Json j = Json::parse(report_json(run({kMixed})));
  for (const char* key : {"dimensions", "quality", "semantic", "total", "withheld", "provenance"})
    EXPECT_TRUE(j.contains(key)) << key;
  const Json& d = j["dimensions"]["temporal_flickering"];
  for (const char* key : {"raw", "normalised", "weight", "n", "skipped", "ci95", "videos"})
    EXPECT_TRUE(d.contains(key)) << key;
  EXPECT_EQ(d["n"], 4);
  EXPECT_EQ(d["skipped"], 1);
  EXPECT_EQ(d["ci95"].size(), 2u);
  EXPECT_TRUE(j["total"].is_null());
  EXPECT_EQ(j["withheld"].size(), 18u);  // fifteen dimensions, quality, semantic, total
}

TEST(Report, HtmlStandsAloneAndEscapesNames) {
  const TemporaryFolder t;
  t.copy(kData + "mixed/small.mkv", "v/<script>alert(1)<&\"'.mkv");
  t.copy(kData + "mixed/still.mkv", "v/bad\xFFutf\x01.mkv");
  EvalOptions o;
  o.thumbnails = true;
  const Evaluation e = run({t / "v"}, o);
  const std::string html = report_html(e);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find('\xFF'), std::string::npos);
  EXPECT_EQ(html.find('\x01'), std::string::npos);
  for (const char* outside : {"src=\"http", "href=", "url(", "@import"})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  EXPECT_NE(html.find("data:image/png;base64,iVBORw0KGgo"), std::string::npos);
  EXPECT_NE(html.find("frozen: all 6 frames are equal"), std::string::npos);
  EXPECT_TRUE(Json::accept(report_json(e)));
  EXPECT_EQ(report_text(e).find('\x01'), std::string::npos);
}

TEST(Report, OnlyTheWorstFiveKeepPictures) {
  const TemporaryFolder t;
  for (int i = 0; i < 9; ++i) write_frames(t / fmt::format("v/clip-{}", i), 3, i * 4);
  EvalOptions o;
  o.thumbnails = true;
  const Evaluation e = run({t / "v"}, o);
  EXPECT_EQ(std::count_if(e.videos.begin(), e.videos.end(),
                          [](const EvaluatedVideo& v) { return !v.measures.thumbnails.empty(); }),
            5);
  for (size_t i : e.find("temporal_flickering")->worst) EXPECT_FALSE(e.videos[i].measures.thumbnails.empty());
}

TEST(Compare, PairsByNameWithIntervals) {
  const TemporaryFolder t;
  for (int i = 0; i < 6; ++i) {
    write_frames(t / fmt::format("a/clip-{}", i), 3, 2);
    write_frames(t / fmt::format("b/clip-{}", i), 3, 2 + 3 * i);
  }
  write_frames(t / "b/alone-0", 3);
  const ScoreSet a = load_scores(t / "a", {}, {}), b = load_scores(t / "b", {}, {});
  const Comparison c = compare_scores(a, b, 0);
  ASSERT_EQ(c.dimensions.size(), 1u);
  const PairedDifference& d = c.dimensions[0];
  EXPECT_EQ(d.pairs.size(), 6u);
  EXPECT_EQ(d.only_b, 1);
  EXPECT_EQ(d.equal, 1);
  EXPECT_EQ(d.lower, 5);
  EXPECT_LT(d.difference, 0);
  ASSERT_TRUE(d.ci95);
  EXPECT_LT(d.ci95->second, 0);
  EXPECT_NEAR(d.difference, d.mean_b - d.mean_a, 1e-15);
  EXPECT_TRUE(says(c.warnings, "1 only in"));
  // The same from stored results, whichever form they have.
  EvalOptions o;
  write_results(run({t / "a"}, o), t / "ra", "x");
  t.write("b.json", report_json(run({t / "b"}, o)));
  for (const std::string& first : {t / "ra", t / "ra/x_eval_results.json", t / "ra/x.json"}) {
    const Comparison same = compare_scores(load_scores(first, {}, {}), load_scores(t / "b.json", {}, {}), 0);
    EXPECT_EQ(same.dimensions.at(0).difference, d.difference) << first;
    EXPECT_EQ(same.dimensions.at(0).ci95, d.ci95) << first;
  }
  EXPECT_TRUE(Json::accept(comparison_json(c)));
  EXPECT_NE(comparison_text(c).find("temporal_flickering"), std::string::npos);
}

TEST(Compare, NothingInCommonIsAnError) {
  const TemporaryFolder t;
  write_frames(t / "a/x-0", 3);
  write_frames(t / "b/y-0", 3);
  EXPECT_THROW(compare_scores(load_scores(t / "a", {}, {}), load_scores(t / "b", {}, {}), 0), Error);
  EXPECT_THROW(load_scores(t / "absent", {}, {}), Error);
  EXPECT_THROW(load_scores(t.write("bad.json", "{\"dimensions\": {\"scene\": 3}}"), {}, {}), Error);
}

}  // namespace
}  // namespace megaslide
