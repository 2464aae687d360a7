// Cases of kind "dataset" whose clips and captions come from tables.
#include <filesystem>

#include "clips.h"

namespace megaslide::cases {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> bucket_flags(Case& c, const std::string& text) {
  write_text(c.work("buckets"), text);
  return {"--buckets", c.work("buckets")};
}

std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

std::string trimmed(const std::string& s) {
  const size_t a = s.find_first_not_of(' '), b = s.find_last_not_of(' ');
  return a == std::string::npos ? "" : s.substr(a, b - a + 1);
}

// The entry of a table's line, in either form of path; null where there is none.
const Json* at_line(const Encoded& e, const std::string& place) {
  if (e.report.is_object())
    for (const Json& clip : e.report.at("clips"))
      if (clip.value("place", "") == place) return &clip;
  return nullptr;
}

const Json* by_name(const Encoded& e, const std::string& name) {
  if (e.report.is_object())
    for (const Json& clip : e.report.at("clips"))
      if (name_of(clip.at("path")) == name) return &clip;
  return nullptr;
}

void csv_quoting(Case& c) {
  const Encoded e = encode(c, "cache", {c.file() + "/metadata.csv"}, bucket_flags(c, "[5]"), {.folder = "/"});
  c.expect_status(e.run, 0, "encode-clips");
  if (!c.expect(e.report.is_object(), "no report")) return;
  c.expect(e.report.at("clips").size() == c.check().at("rows"), std::to_string(e.report.at("clips").size()) + " rows");
  for (const auto& [name, caption] : c.check().at("captions").items()) {
    const Json* clip = by_name(e, name);
    if (!c.expect(clip != nullptr && clip->at("status") != "dropped", name + " is not kept")) continue;
    c.expect(clip->at("caption") == caption || clip->at("caption") == trimmed(caption), name + ": " + clip->at("caption").dump());
  }
  c.saw(std::to_string(e.kept().size()) + " rows kept, read from another folder; captions as written");
}

void csv_bad_rows(Case& c) {
  const Encoded e = encode(c, "cache", {c.file() + "/bad-rows.csv"}, bucket_flags(c, "[5]"));
  c.expect_status(e.run, 0, "encode-clips");
  for (const Json& line : c.check().at("kept_lines")) {
    const Json* clip = at_line(e, "bad-rows.csv:" + line.dump());
    c.expect(clip != nullptr && clip->at("status") != "dropped", "line " + line.dump() + " is not kept");
  }
  for (const Json& line : c.check().at("problem_lines")) {
    const Json* clip = at_line(e, "bad-rows.csv:" + line.dump());
    c.expect(clip != nullptr && clip->at("status") == "dropped" && !reason_of(*clip).empty(), "line " + line.dump() + " is not reported");
    if (clip != nullptr) c.saw("line " + line.dump() + ": " + reason_of(*clip));
  }
  const Json* again = at_line(e, "bad-rows.csv:7");
  c.expect(again != nullptr && (again->at("status") == "dropped" || !warnings_of(*again).empty()), "line 7 repeats a clip without a word");
  const Encoded wrong = encode(c, "wrong", {c.file() + "/wrong-column.csv"}, bucket_flags(c, "[5]"));
  c.expect_status(wrong.run, c.check().at("wrong_column_exit"), "wrong-column.csv");
  c.expect(wrong.run.says("no caption column") && wrong.run.says("prompt") && wrong.run.says("promt"), wrong.run.err);
  c.expect(!fs::exists(wrong.cache + "/index.json"), "something was written");
}

void jsonl(Case& c) {
  const Encoded e = encode(c, "cache", {c.file() + "/metadata.jsonl"}, bucket_flags(c, "[5]"));
  c.expect_status(e.run, 0, "encode-clips");
  for (const auto& [name, caption] : c.check().at("captions").items()) {
    const Json* clip = by_name(e, name);
    c.expect(clip != nullptr && clip->at("status") != "dropped" && clip->at("caption") == caption, name + (clip ? ": " + clip->at("caption").dump() : " is missing"));
  }
  const Json* bad = at_line(e, "metadata.jsonl:" + c.check().at("error_line").dump());
  c.expect(bad != nullptr && bad->at("status") == "dropped" && reason_of(*bad).find(c.check().at("error_column").dump()) != std::string::npos, "line 4: " + (bad ? reason_of(*bad) : "missing"));
  if (bad != nullptr) c.saw("line 4: " + reason_of(*bad));
  for (const Json& name : c.check().at("dropped"))
    if (const Json* clip = by_name(e, name)) c.expect(clip->at("status") == "dropped", name.dump() + " is kept");
  size_t of_list = 0;
  for (const Json& clip : e.report.at("clips"))
    if (name_of(clip.at("path")) == "c3.mp4") {
      c.expect(clip.at("caption").get<std::string>().find('[') == std::string::npos, "a list in its printed form");
      ++of_list;
    }
  c.expect(of_list >= 1, "c3 is not reported");
  c.saw("c3's list of captions: " + std::to_string(of_list) + " entries");
}

void pairs(Case& c) {
  const std::vector<std::string> flags = bucket_flags(c, "[17]");
  const Encoded e = encode(c, "cache", {c.file() + "/prompts.txt+" + c.file() + "/videos.txt"}, flags);
  c.expect_status(e.run, 0, "encode-clips");
  const auto check_kept = [&](const Encoded& run, const std::string& name, const Json& caption) {
    const Json* clip = by_name(run, name);
    c.expect(clip != nullptr && clip->at("status") != "dropped" && clip->at("caption") == caption, name + (clip ? ": " + clip->dump() : " is missing"));
  };
  for (const auto& [name, caption] : c.check().at("kept").items()) check_kept(e, name, caption);
  const Json* v2 = by_name(e, "v2.mp4");
  c.expect(v2 != nullptr && v2->at("status") == "dropped" && reason_of(*v2).find("too short") != std::string::npos, "v2.mp4 is not dropped as too short");
  const Encoded s = encode(c, "short", {c.file() + "/prompts-short.txt+" + c.file() + "/videos.txt"}, flags);
  if (s.run.status == 0) check_kept(s, "v3.mp4", "caption of v3");
  else c.expect(s.run.status == 2, "exit " + std::to_string(s.run.status));
  c.saw(s.run.status == 0 ? "a blank line is an empty caption; v3 keeps its own" : "a blank line is refused");
  write_text(c.work("three.txt"), "a\nb\nc\n");
  const Encoded counts = encode(c, "counts", {c.work("three.txt") + "+" + c.file() + "/videos.txt"}, flags);
  c.expect_status(counts.run, 2, "3 captions for 4 clips");
  c.expect(counts.run.says("has 3 lines") && counts.run.says("has 4"), counts.run.err);
  c.saw("3 captions for 4 clips: refused with both counts");
}

}  // namespace

void add_table_cases(CaseTable& table) {
  table["csv-quoting"] = csv_quoting;
  table["csv-bad-rows"] = csv_bad_rows;
  table["jsonl"] = jsonl;
  table["pairs-stay-paired"] = pairs;
}

}  // namespace megaslide::cases
