#include "eval/names.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/unicode.h"
#include "eval/manifest.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

using Names = std::vector<std::string>;

Names paths_of(const InputSet& set, const TemporaryFolder& t) {
  Names names;
  for (const VideoItem& i : set.items) names.push_back(i.path.substr(t.path().size() + 1));
  return names;
}

TEST(VideoName, IndexIsCutAndTheDotStays) {
  EXPECT_EQ(parse_video_name("ends with a dot.-3").prompt, "ends with a dot.");
  EXPECT_EQ(parse_video_name("ends with a dot.-3").index, 3);
  EXPECT_EQ(parse_video_name("a well-known fox-12").prompt, "a well-known fox");
  EXPECT_FALSE(parse_video_name("a well-known fox").index);
  EXPECT_FALSE(parse_video_name("a-b").index);
  EXPECT_FALSE(parse_video_name("fox-").index);
  EXPECT_FALSE(parse_video_name("-3").index);
  EXPECT_FALSE(parse_video_name("fox-99999999999999999999").index);
}

TEST(Inputs, FoldersInNaturalOrderWithoutStrayFiles) {
  const TemporaryFolder t;
  for (const char* name : {"set/clip-10.mp4", "set/clip-2.MKV", "set/.DS_Store", "set/.hidden.mp4", "set/notes.txt",
                           "set/deep/er/x.webm", "set/frames-1/f_2.png", "set/frames-1/f_10.png", "set/readme"}) {
    t.write(name, "x");
  }
  const InputSet set = collect_inputs({t / "set"});
  EXPECT_EQ(paths_of(set, t), (Names{"set/clip-2.MKV", "set/clip-10.mp4", "set/deep/er/x.webm", "set/frames-1"}));
  EXPECT_EQ(set.ignored.size(), 2u);
  EXPECT_EQ(set.items[3].prompt, "frames");
  EXPECT_EQ(set.items[3].index, 1);
}

TEST(Inputs, TheSameVideoTwiceCountsOnce) {
  const TemporaryFolder t;
  t.write("a.mp4", "x");
  const InputSet set = collect_inputs({t / "a.mp4", t.path(), t / "./a.mp4"});
  EXPECT_EQ(set.items.size(), 1u);
  EXPECT_EQ(set.warnings.size(), 2u);
}

TEST(Inputs, ManifestsOfEveryKind) {
  const TemporaryFolder t;
  t.write("v/a.mp4", "x");
  const std::string json =
      t.write("m.json", R"([{"path": "v/a.mp4", "prompt": "a fox", "index": 4, "reference": "v/a.mp4"}, "v/b.mp4"])");
  const std::string jsonl =
      t.write("m.jsonl", "\xEF\xBB\xBF{\"video\": \"v/a.mp4\", \"caption\": \"a, fox\"}\r\n\r\n\"v/b.mp4\"\n");
  const std::string csv = t.write("m.csv", "file,prompt\r\nv/a.mp4,\"a \"\"fox\"\",\nrunning\"\r\nv/b.mp4,\r\n");
  const std::string txt = t.write("m.txt", "v/a.mp4\n\nv/b.mp4");
  for (const std::string& m : {json, jsonl, csv, txt}) {
    SCOPED_TRACE(m);
    const InputSet set = collect_inputs({m});
    EXPECT_EQ(paths_of(set, t), (Names{"v/a.mp4", "v/b.mp4"}));
    EXPECT_EQ(set.items[1].prompt, "b");
  }
  EXPECT_EQ(collect_inputs({json}).items[0].index, 4);
  EXPECT_EQ(collect_inputs({json}).items[0].reference, t / "v/a.mp4");
  EXPECT_EQ(collect_inputs({csv}).items[0].prompt, "a \"fox\",\nrunning");
  const std::string info =
      t.write("r_full_info.json",
              R"([{"prompt_en": "a fox", "dimension": ["scene", "color"], "video_list": ["v/a.mp4", "v/b.mp4"]}])");
  const InputSet set = collect_inputs({info});
  EXPECT_EQ(paths_of(set, t), (Names{"v/a.mp4", "v/b.mp4"}));
  EXPECT_EQ(set.items[1].prompt, "a fox");
  EXPECT_EQ(set.items[1].dimensions, (Names{"scene", "color"}));
}

TEST(Inputs, DamagedManifestsSayWhere) {
  const TemporaryFolder t;
  const std::vector<std::pair<std::string, std::string>> cases{{"a.json", "[{\"path\": "},
                                                               {"b.json", "{}"},
                                                               {"c.json", "[{\"prompt_en\": \"x\"}]"},
                                                               {"d.json", "[3]"},
                                                               {"e.csv", "prompt\nx\n"},
                                                               {"f.csv", "path\n\"x"},
                                                               {"g.csv", ""},
                                                               {"h.txt", "\n\n"},
                                                               {"i.jsonl", "{\"path\": 1.5}"},
                                                               {"j.json", std::string(100000, '[')},
                                                               {"k.json", "[{\"path\": \"x\", \"index\": -1}]"},
                                                               {"l.json", "[\"\xFF\"]"}};
  for (const auto& [name, text] : cases) {
    SCOPED_TRACE(name);
    t.write(name, text);
    try {
      collect_inputs({t / name});
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(collect_inputs({t / "absent.json"}), Error);
}

TEST(Inputs, ReferencesByName) {
  const TemporaryFolder t;
  for (const char* name :
       {"refs/a fox.mp4", "refs/b-1.webm", "out/a fox-0.mp4", "out/a fox-1.mp4", "out/b-1.mkv", "out/c-0.mkv"})
    t.write(name, "x");
  InputSet set = collect_inputs({t / "out"});
  EXPECT_EQ(assign_references(set.items, t / "refs"), Names{t / "out/c-0.mkv"});
  EXPECT_EQ(set.items[0].reference, t / "refs/a fox.mp4");
  EXPECT_EQ(set.items[1].reference, t / "refs/a fox.mp4");
  EXPECT_EQ(set.items[2].reference, t / "refs/b-1.webm");
  EXPECT_THROW(assign_references(set.items, t / "nowhere"), Error);
  t.write("refs/b-1.txt", "\xEF\xBB\xBF c \r\n");  // the caption is the prompt of c-0
  set = collect_inputs({t / "out"});
  EXPECT_TRUE(assign_references(set.items, t / "refs").empty());
  EXPECT_EQ(set.items[3].reference, t / "refs/b-1.webm");
  set = collect_inputs({t / "out"});
  EXPECT_TRUE(assign_references(set.items, t / "refs/b-1.webm").empty());
  EXPECT_EQ(set.items[3].reference, t / "refs/b-1.webm");
}

std::vector<VideoItem> items_of(const Names& files) {
  std::vector<VideoItem> items;
  for (const std::string& f : files) {
    VideoItem i;
    i.path = "v/" + f;
    i.name = to_nfc(f.substr(0, f.rfind('.')));
    const VideoName n = parse_video_name(i.name);
    i.prompt = n.prompt, i.index = n.index;
    items.push_back(i);
  }
  return items;
}

TEST(Audit, TheKnownTrapsOfFileNames) {
  // One file decomposed (c + cedilla), an upper-case extension, a lost final dot, prompts that differ in case.
  std::vector<VideoItem> items =
      items_of({"A fantasy landscape-0.mkv", "A fantasy landscape-1.mkv", "a fantasy landscape-0.mkv",
                "ends with a dot-1.mkv", "ends with a dot.-0.mkv", "extra clip-0.mkv",
                "fac\u0327ades at dusk-0.mkv", "fa\u00E7ades at dusk-1.MKV"});
  const std::vector<PromptEntry> prompts{{"A fantasy landscape", {}},
                                         {"a fantasy landscape", {}},
                                         {"fa\xC3\xA7"
                                          "ades at dusk",
                                          {}},
                                         {"ends with a dot.", {"temporal_flickering"}}};
  const NameAudit a = audit_names(items, prompts, 2);
  EXPECT_EQ(a.expected, 8);
  EXPECT_EQ(a.matched, 6);
  EXPECT_EQ(a.missing, (Names{"a fantasy landscape-1", "ends with a dot.-1"}));
  EXPECT_EQ(a.extra, Names{"extra clip-0.mkv"});
  ASSERT_EQ(a.near.size(), 1u);
  EXPECT_EQ(a.near.at("ends with a dot.-1"), "ends with a dot-1.mkv");
  ASSERT_EQ(a.differ_in_case.size(), 1u);
  EXPECT_FALSE(a.complete());
  ASSERT_EQ(items.size(), 6u);
  EXPECT_EQ(items[5].dimensions, Names{"temporal_flickering"});
}

TEST(Audit, UnderscoresAndTyposAreNearNames) {
  std::vector<VideoItem> items =
      items_of({"a_red_fox_runs-0.mp4", "a blue brid sings-0.mp4", "something else entirely-0.mp4"});
  const NameAudit a = audit_names(items, {{"a red fox runs", {}}, {"a blue bird sings", {}}}, 1);
  EXPECT_EQ(a.near.at("a red fox runs-0"), "a_red_fox_runs-0.mp4");
  EXPECT_EQ(a.near.at("a blue bird sings-0"), "a blue brid sings-0.mp4");
  EXPECT_EQ(a.extra, Names{"something else entirely-0.mp4"});
}

TEST(Audit, TwoFilesOfOneName) {
  std::vector<VideoItem> items = items_of({"fox-0.mkv", "fox-0.mp4"});
  const NameAudit a = audit_names(items, {{"fox", {}}}, 1);
  EXPECT_EQ(a.matched, 1);
  EXPECT_EQ(a.duplicates, Names{"fox-0.mp4"});
  EXPECT_FALSE(a.complete());
  EXPECT_EQ(items[0].path, "v/fox-0.mkv");
}

TEST(Audit, AWholeSuiteOfWrongNamesIsFast) {
  std::vector<PromptEntry> prompts;
  Names files;
  for (int i = 0; i < 950; ++i) {
    prompts.push_back(
        {fmt::format("a photograph of thing number {} standing in a wide green field under a cloudy sky {}", i, i * i),
         {}});
    for (int k = 0; k < 5; ++k)
      files.push_back(fmt::format(
          "another name {} of {} videos that nobody can recognise in this rather long list-{}.mp4", i * 7, i, k));
  }
  std::vector<VideoItem> items = items_of(files);
  const NameAudit a = audit_names(items, prompts, 5);
  EXPECT_EQ(a.matched, 0);
  EXPECT_EQ(a.missing.size(), 4750u);
}

TEST(Audit, DistanceIsTheEditDistanceUpToItsLimit) {
  EXPECT_EQ(bounded_distance(U"kitten", U"sitting", 5), 3);
  EXPECT_EQ(bounded_distance(U"kitten", U"sitting", 3), 3);
  EXPECT_EQ(bounded_distance(U"kitten", U"sitting", 2), 3);
  EXPECT_EQ(bounded_distance(U"", U"ab", 2), 2);
  EXPECT_EQ(bounded_distance(U"ab", U"", 1), 2);
  EXPECT_EQ(bounded_distance(U"same", U"same", 0), 0);
}

TEST(Prompts, SuitesAndTexts) {
  const TemporaryFolder t;
  const auto suite = read_prompts(t.write(
      "s.json",
      R"([{"prompt_en": "a fox", "dimension": ["scene"]}, {"prompt_en": "a fox", "dimension": ["color", "scene"]}, "b"])"));
  ASSERT_EQ(suite.size(), 2u);
  EXPECT_EQ(suite[0].dimensions, (Names{"scene", "color"}));
  const auto text = read_prompts(t.write("p.txt",
                                         "\xEF\xBB\xBF"
                                         "a fox\r\n\r\n# no comment\nlast"));
  ASSERT_EQ(text.size(), 3u);
  EXPECT_EQ(text[0].prompt, "a fox");
  EXPECT_EQ(text[1].prompt, "# no comment");
  EXPECT_THROW(read_prompts(t.write("e.txt", "\n")), Error);
  EXPECT_THROW(read_prompts(t.write("f.json", "[{\"dimension\": []}]")), Error);
  EXPECT_THROW(read_prompts(t / "absent"), Error);
}

}  // namespace
}  // namespace megaslide
