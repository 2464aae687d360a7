#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "data/dataset.h"
#include "data/dataset_parts.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

std::string data(const std::string& name) { return std::string(MEGASLIDE_TEST_DATA) + "/cases/" + name; }

void put(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::map<std::string, std::string> captions(const Dataset& d) {
  std::map<std::string, std::string> out;
  for (const DatasetEntry& e : d.entries)
    if (e.problem.empty()) out[fs::path(e.path).filename().string()] = e.caption;
  return out;
}

const DatasetEntry& entry(const Dataset& d, const std::string& path) {
  for (const DatasetEntry& e : d.entries)
    if (e.path == path) return e;
  static const DatasetEntry none{"", "", "", "", "not listed", {}};
  return none;
}

using Captions = std::map<std::string, std::string>;

TEST(Folder, CaptionEncodings) {
  const Dataset d = read_datasets({data("caption-encodings")});
  EXPECT_EQ(captions(d), (Captions{{"bom.mp4", "a red kite over dunes"}, {"crlf.mp4", "a red kite\nover dunes"}, {"utf16.mp4", "a red kite, façade"},
                                   {"no-newline.mp4", "a red kite"}, {"emoji.mp4", "a red kite 🪁 over dunes"}, {"spaces.mp4", "a red kite"},
                                   {"cp1252.mp4", "a child’s kite"}, {"nul.mp4", entry(d, "nul.mp4").caption}}));
  EXPECT_EQ(entry(d, "cp1252.mp4").notes.size(), 1u);
  EXPECT_EQ(entry(d, "nul.mp4").notes.size(), 1u);
  EXPECT_EQ(entry(d, "nul.mp4").caption.find('\0'), std::string::npos);
  EXPECT_TRUE(entry(d, "bom.mp4").notes.empty());
}

TEST(Folder, MissingAndBlankCaptions) {
  const Dataset d = read_datasets({data("captions-missing")});
  EXPECT_EQ(entry(d, "both.mp4").caption, "both are here");
  EXPECT_EQ(entry(d, "nested/deep/both.mp4").caption, "the nested one");
  EXPECT_NE(entry(d, "no-caption.mp4").problem.find("no-caption.txt is missing"), std::string::npos);
  EXPECT_NE(entry(d, "empty-caption.mp4").problem.find("empty"), std::string::npos);
  EXPECT_NE(entry(d, "blank-caption.mp4").problem.find("blank"), std::string::npos);
  ASSERT_EQ(d.warnings.size(), 1u);
  EXPECT_EQ(d.warnings[0], "no-clip.txt: a caption without a clip");
  const Dataset allowed = read_datasets({data("captions-missing")}, {.allow_empty_captions = true});
  EXPECT_EQ(captions(allowed).size(), 4u);  // both.mp4 twice under one base name
  for (const DatasetEntry& e : allowed.entries) EXPECT_EQ(e.problem, "") << e.path;
}

TEST(Folder, SameBaseNameSharesItsCaption) {
  const Dataset d = read_datasets({data("same-name")});
  EXPECT_EQ(d.entries.size(), 4u);
  for (const char* name : {"clip.mp4", "clip.mov", "clip.png"}) {
    ASSERT_EQ(entry(d, name).notes.size(), 1u) << name;
    EXPECT_NE(entry(d, name).notes[0].find("shares its caption"), std::string::npos);
  }
  EXPECT_TRUE(entry(d, "clip_0.mp4").notes.empty());
}

TEST(Folder, FrameFoldersAndStills) {
  const Dataset d = read_datasets({data("mixed")});
  ASSERT_EQ(d.entries.size(), 3u);  // notes.md is none
  EXPECT_EQ(entry(d, "frames-as-clip").problem, "");
  EXPECT_EQ(entry(d, "still.jpg").problem, "");
}

TEST(Folder, OddNamesAndHiddenFiles) {
  const TemporaryFolder folder;
  const std::string& dir = folder.path();
  const std::vector<std::string> names = {"-dash.mp4", "with space.mp4", "quote'\"s.mp4", "percent%20d.mp4", "été.mp4", "日本語.mp4", "UPPER.MP4", "a.b.c.mp4", "semi;colon&.mp4", "new\nline.mp4", "bad\xff.mp4"};
  for (const std::string& n : names) {
    put(dir + "/" + n, "x");
    put(dir + "/" + fs::path(n).stem().string() + ".txt", "caption of " + std::to_string(n.size()));
  }
  for (const char* n : {"._UPPER.MP4", ".DS_Store", "Thumbs.db", "notes.md"}) put(dir + "/" + n, "x");
  const Dataset d = read_datasets({dir});
  EXPECT_EQ(d.entries.size(), names.size());
  for (const std::string& n : names) EXPECT_EQ(entry(d, n).caption, "caption of " + std::to_string(n.size()));
  EXPECT_TRUE(d.warnings.empty());
}

TEST(Folder, NamesInOtherUnicodeForms) {
  const TemporaryFolder temporary;
  const std::string dir = temporary.path(), composed = "caf\xc3\xa9", decomposed = "cafe\xcc\x81";
  put(dir + "/" + decomposed + ".mp4", "x");
  put(dir + "/" + composed + ".txt", "a caption");
  put(dir + "/t.csv", "video,caption\n" + composed + ".mp4,from a table\n" + composed + "2.mp4,none\n");
  const Dataset folder = read_datasets({dir});
  ASSERT_EQ(folder.entries.size(), 1u);
  EXPECT_EQ(folder.entries[0].path, decomposed + ".mp4") << "names stay as they are";
  EXPECT_EQ(folder.entries[0].caption, "a caption");
  EXPECT_EQ(folder.entries[0].notes.size(), 1u);
  EXPECT_TRUE(folder.warnings.empty());
  const Dataset table = read_datasets({dir + "/t.csv"});
  ASSERT_EQ(table.entries.size(), 2u);
  EXPECT_EQ(table.entries[0].problem, "");
  EXPECT_EQ(table.entries[0].file, dir + "/" + decomposed + ".mp4");
  EXPECT_EQ(table.entries[1].problem, "no such file or folder");
}

TEST(Folder, Links) {
  const TemporaryFolder folder;
  const std::string& dir = folder.path();
  fs::create_directories(dir + "/real");
  put(dir + "/real/a.mp4", "x");
  put(dir + "/real/a.txt", "caption");
  fs::create_symlink("..", dir + "/real/up");
  fs::create_symlink("real", dir + "/alias");
  fs::create_symlink("real/a.mp4", dir + "/again.mp4");
  fs::create_symlink("gone.mp4", dir + "/dangling.mp4");
  fs::create_symlink("self.mp4", dir + "/self.mp4");
  const Dataset d = read_datasets({dir});
  EXPECT_EQ(entry(d, "real/a.mp4").problem, "");
  EXPECT_EQ(entry(d, "again.mp4").problem, "the same file as real/a.mp4");
  EXPECT_EQ(entry(d, "dangling.mp4").problem, "broken link");
  EXPECT_EQ(entry(d, "self.mp4").problem, "broken link");
  EXPECT_EQ(d.entries.size(), 4u);
  EXPECT_EQ(d.warnings.size(), 2u);  // the two links to folders that were read already
}

TEST(CsvTable, Quoting) {
  const Dataset d = read_datasets({data("csv/metadata.csv")});
  EXPECT_EQ(captions(d), (Captions{{"c0.mp4", "a sign says \"stop\", then \"go\""}, {"c1.mp4", "first line\nsecond line"}, {"c2.mp4", "comma, comma, comma"},
                                   {"c3.mp4", "façade — 日本"}, {"c4.mp4", "leading and trailing"}, {"c5.mp4", "NA"}}));
  EXPECT_EQ(d.entries.size(), 6u);
  EXPECT_EQ(d.entries[4].path, "clips/c4.mp4");
}

TEST(CsvTable, BadRowsAreNamed) {
  const Dataset d = read_datasets({data("csv/bad-rows.csv")});
  ASSERT_EQ(d.entries.size(), 7u);
  const auto problem = [&](size_t i) { return d.entries[i].problem; };
  EXPECT_EQ(problem(0), "");
  EXPECT_EQ(problem(1), "4 fields where the header has 3");
  EXPECT_EQ(problem(2), "1 field where the header has 3");
  EXPECT_EQ(problem(3), "no such file or folder");
  EXPECT_EQ(problem(4), "repeats bad-rows.csv:2");
  EXPECT_EQ(problem(5), "");
  EXPECT_EQ(d.entries[5].notes.size(), 1u);
  EXPECT_EQ(problem(6), "a quote is never closed");
  EXPECT_EQ(d.entries[6].place, "bad-rows.csv:8");
}

TEST(CsvTable, WrongColumnIsAUsageError) {
  try {
    read_datasets({data("csv/wrong-column.csv")});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(e.message().find("did you mean \"prompt\" for \"promt\""), std::string::npos) << e.message();
  }
}

TEST(CsvTable, Dialects) {
  const TemporaryFolder folder;
  const std::string& dir = folder.path();
  put(dir + "/a.mp4", "x");
  put(dir + "/t.tsv", "Prompt\tFile_Name\r\na, b; c\ta.mp4\r\n");
  put(dir + "/s.csv", "file;text\na.mp4;\"x;y\"\n");
  EXPECT_EQ(captions(read_datasets({dir + "/t.tsv"})), (Captions{{"a.mp4", "a, b; c"}}));
  EXPECT_EQ(captions(read_datasets({dir + "/s.csv"})), (Captions{{"a.mp4", "x;y"}}));
  put(dir + "/e.csv", "\n\n");
  EXPECT_THROW(read_datasets({dir + "/e.csv"}), Error);
}

TEST(JsonTable, Lines) {
  const Dataset d = read_datasets({data("jsonl/metadata.jsonl")});
  ASSERT_EQ(d.entries.size(), 6u);
  EXPECT_EQ(d.entries[0].caption, "plain");
  EXPECT_EQ(d.entries[1].caption, "kite 🪁 and é");
  EXPECT_EQ(d.entries[2].place, "metadata.jsonl:4");
  EXPECT_EQ(d.entries[2].path, "c2.mp4");
  EXPECT_EQ(d.entries[2].problem.compare(0, 10, "column 43:"), 0) << d.entries[2].problem;
  EXPECT_EQ(d.entries[3].caption, "first");  // a list: the clip is used with each
  EXPECT_EQ(d.entries[4].caption, "second");
  EXPECT_EQ(d.entries[5].problem, "no caption");
}

TEST(JsonTable, Documents) {
  const TemporaryFolder folder;
  const std::string& dir = folder.path();
  for (const char* n : {"a.mp4", "b.mp4"}) put(dir + "/" + n, "x");
  const Captions wanted = {{"a.mp4", "one"}, {"b.mp4", "two"}};
  put(dir + "/list.json", R"([{"path": "a.mp4", "caption": "one"}, {"caption": "two", "path": "b.mp4", "x": {"y": [1]}}])");
  put(dir + "/map.json", R"({"a.mp4": "one", "b.mp4": {"caption": "two"}})");
  put(dir + "/clips.json", R"({"version": 3, "clips": [{"video": "a.mp4", "prompt": "one"}, {"video": "b.mp4", "prompt": "two"}]})");
  for (const char* n : {"list.json", "map.json", "clips.json"}) EXPECT_EQ(captions(read_datasets({dir + "/" + n})), wanted) << n;
  put(dir + "/broken.json", "[{\"path\": \"a.mp4\",\n \"caption\" \"one\"}]");
  try {
    read_datasets({dir + "/broken.json"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("broken.json:2:12"), std::string::npos) << e.message();
  }
}

// Places are found in one pass: counting lines from the start for each row would take minutes here.
TEST(JsonTable, ManyRowsAreReadInTime) {
  std::string text = "[";
  for (int i = 0; i < 200'000; ++i) text += fmt::format("{}\n{{\"video\": \"clip-{}.mp4\", \"caption\": \"a fox runs across a snowy field\"}}", i ? "," : "", i);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<TableRow> rows = parse_json_rows(text + "]", "x.json");
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 60.0);
  ASSERT_EQ(rows.size(), 200'000u);
  EXPECT_EQ(rows.back().place, "x.json:200001");
}

TEST(Pairs, CaptionsNeverSlide) {
  const Captions wanted = {{"v0.mp4", "caption of v0"}, {"v1.mp4", "caption of v1"}, {"v3.mp4", "caption of v3"}};
  Captions all = wanted;
  all["v2.mp4"] = "caption of v2";
  EXPECT_EQ(captions(read_datasets({data("pairs")})), all);
  EXPECT_EQ(captions(read_datasets({data("pairs/prompts.txt") + "+" + data("pairs/videos.txt")})), all);
  EXPECT_EQ(captions(read_datasets({data("pairs/videos.txt"), data("pairs/prompts.txt")})), all);
  const Dataset d = read_datasets({data("pairs/prompts-short.txt"), data("pairs/videos.txt")});
  EXPECT_EQ(captions(d), wanted);
  EXPECT_EQ(d.entries[2].problem, "the caption is empty");
  const TemporaryFolder folder;
  const std::string& dir = folder.path();
  put(dir + "/prompts.txt", "one\ntwo\n");
  put(dir + "/videos.txt", "a.mp4\n");
  try {
    read_datasets({dir});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("has 2 lines"), std::string::npos) << e.message();
    EXPECT_NE(e.message().find("has 1: "), std::string::npos) << e.message();
  }
}

TEST(Arguments, WhatIsNoDataset) {
  const TemporaryFolder folder;
  const std::string& dir = folder.path();
  put(dir + "/a.xyz", "x");
  put(dir + "/p.txt", "x");
  for (const char* n : {"/a.xyz", "/p.txt", "/none"}) EXPECT_THROW(read_datasets({dir + n}), Error) << n;
  EXPECT_TRUE(read_datasets({dir}).entries.empty());
}

TEST(Arguments, SeveralDatasetsKeepTheirNames) {
  const Dataset d = read_datasets({data("mixed"), data("same-name")});
  EXPECT_EQ(d.entries.size(), 7u);
  EXPECT_EQ(d.entries[0].path, data("mixed") + "/frames-as-clip");
}

}  // namespace
}  // namespace megaslide
