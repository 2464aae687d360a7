// The report of configs/experiments: verdicts follow from the numbers, nothing simulated is called measured, and damaged documents
// are named.
#include <gtest/gtest.h>

#include "base/error.h"
#include "experiment.h"
#include "tests/support/temporary_folder.h"

using namespace megaslide;
using megaslide::testing_support::TemporaryFolder;
using nlohmann::json;

namespace {

ExperimentResult result_of(const char* target, std::vector<ResultRow> rows) {
  ExperimentResult r;
  r.target = target, r.title = "A <title>", r.date = "2020-01-01", r.machine = "a machine", r.version = "v";
  r.rows = std::move(rows);
  r.charts = json::array();
  return r;
}

Claim claim_of(double value, Relation relation, double tolerance, const char* unit = "bytes") {
  Claim c;
  c.id = "c", c.text = "claims | this", c.paper = "so much", c.value = value, c.relation = relation, c.tolerance = tolerance;
  c.findings.push_back({"", "memory", "a", "/x", unit});
  return c;
}

Verdict verdict_of(const Claim& claim, Evidence evidence, const json& values) {
  return judge(claim, {result_of("memory", {{"a", "plan-memory", "", evidence, values}})}).verdict;
}

std::string message_of(const std::string& folder) {
  try {
    read_results(folder);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST(Claims, VerdictFollowsFromTheRelation) {
  const json ours{{"x", 104}};
  EXPECT_EQ(verdict_of(claim_of(100, Relation::kAbout, 0.05), Evidence::kSimulated, ours), Verdict::kHolds);
  EXPECT_EQ(verdict_of(claim_of(100, Relation::kAbout, 0.03), Evidence::kSimulated, ours), Verdict::kDiffers);
  EXPECT_EQ(verdict_of(claim_of(100, Relation::kAtMost, 0), Evidence::kSimulated, ours), Verdict::kDiffers);
  EXPECT_EQ(verdict_of(claim_of(100, Relation::kAtLeast, 0), Evidence::kSimulated, ours), Verdict::kHolds);
  // Only arithmetic refutes: another implementation may do better than a simulation of ours.
  EXPECT_EQ(verdict_of(claim_of(100, Relation::kAtMost, 0), Evidence::kMeasured, ours), Verdict::kDiffers);
  EXPECT_EQ(verdict_of(claim_of(100, Relation::kAtMost, 0), Evidence::kDerived, ours), Verdict::kRefuted);
  EXPECT_EQ(verdict_of(claim_of(-100, Relation::kAbout, 0.05), Evidence::kMeasured, {{"x", -104}}), Verdict::kHolds);
}

TEST(Claims, ANumberThatIsNotThereJudgesNothing) {
  const Claim claim = claim_of(100, Relation::kAtMost, 0);
  EXPECT_EQ(verdict_of(claim, Evidence::kMeasured, {{"y", 1}}), Verdict::kOpen);
  EXPECT_EQ(verdict_of(claim, Evidence::kMeasured, {{"x", nullptr}}), Verdict::kOpen);
  EXPECT_EQ(verdict_of(claim, Evidence::kMeasured, json{{"x", "text"}}), Verdict::kOpen);
  const JudgedClaim none = judge(claim, {});
  EXPECT_EQ(none.verdict, Verdict::kOpen);
  EXPECT_EQ(mark_text(none), "not run");
  EXPECT_EQ(found_text(none.found[0]), "not run");
}

TEST(Claims, ABoundAboveTheClaimRefutesIt) {
  Claim claim = claim_of(3.1, Relation::kAbout, 0.25, "seconds");
  claim.bound = Finding{"bound", "memory", "b", "/x", "seconds"};
  const auto judged_with = [&](double bound) {
    return judge(claim, {result_of("memory", {{"a", "plan-memory", "", Evidence::kSimulated, {{"x", 3.0}}}, {"b", "jq", "", Evidence::kDerived, {{"x", bound}}}})});
  };
  EXPECT_EQ(judged_with(3.9).verdict, Verdict::kRefuted);
  EXPECT_EQ(mark_text(judged_with(3.9)), "refuted");
  EXPECT_EQ(judged_with(2).verdict, Verdict::kHolds);
  EXPECT_EQ(mark_text(judged_with(2)), "simulated with the planner");
}

TEST(Claims, MarkdownKeepsItsColumns) {
  const Claim claim = claim_of(100, Relation::kAbout, 0);
  const std::string table = claims_markdown({judge(claim, {result_of("memory", {{"a", "c", "", Evidence::kMeasured, {{"x", 100}}}})})});
  EXPECT_NE(table.find("| claims \\| this | so much | 100 B, measured here | *measured here* | holds |"), std::string::npos) << table;
}

TEST(Claims, MeasurementsOfTheQuickFormSaySo) {
  const Claim claim = claim_of(100, Relation::kAbout, 0);
  auto result = result_of("memory", {{"a", "c", "", Evidence::kMeasured, {{"x", 100}}}});
  result.quick = true;
  EXPECT_EQ(found_text(judge(claim, {result}).found[0]), "100 B (quick form)");
  result.rows[0].evidence = Evidence::kSimulated;
  EXPECT_EQ(found_text(judge(claim, {result}).found[0]), "100 B");
}

TEST(Numbers, ReadAsPeopleWriteThem) {
  EXPECT_EQ(format_number(1.4812e12, "bytes"), "1.48 TB");
  EXPECT_EQ(format_number(111.9e9, "bytes"), "111.9 GB");
  EXPECT_EQ(format_number(2796, "seconds"), "46.6 min");
  EXPECT_EQ(format_number(0.0123, "seconds"), "12.3 ms");
  EXPECT_EQ(format_number(0.61, "share"), "61%");
  EXPECT_EQ(format_number(2.106, "times"), "2.11x");
  EXPECT_EQ(format_number(2088960, "tokens"), "2,088,960 tokens");
  EXPECT_EQ(format_number(-0.0123, "loss"), "-0.0123");
  EXPECT_EQ(format_number(1, "yes"), "yes");
}

TEST(Charts, UnknownKindsAndMissingPartsAreNamed) {
  const auto error = [](const json& chart) -> std::string {
    try {
      chart_svg(chart, ".");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error({{"kind", "pie"}, {"name", "p"}}).find("\"pie\""), std::string::npos);
  EXPECT_NE(error({{"kind", "line"}, {"name", "losses"}}).find("losses"), std::string::npos);
  // A gap where there is no value.
  const std::string svg = chart_svg({{"kind", "line"}, {"name", "l"}, {"markers", true}, {"series", {{{"name", "s"}, {"x", {1, 2, 3}}, {"y", {1, nullptr, 3}}}}}}, ".");
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find("s: 3, 3"), std::string::npos);
}

TEST(Charts, TimelineCountsTheLastStepOnly) {
  const json track = {{"ph", "M"}, {"tid", 2}, {"name", "thread_name"}, {"args", {{"name", "compute"}}}};
  const auto event = [](int tid, const char* name, const char* cat, double ts, double dur) { return json{{"ph", "X"}, {"tid", tid}, {"name", name}, {"cat", cat}, {"ts", ts}, {"dur", dur}}; };
  json up = track;
  up["tid"] = 3, up["args"]["name"] = "upload";
  const json trace = {{"traceEvents", {track, up, event(1, "step 0", "step", 0, 100), event(1, "step 1", "step", 100, 200), event(2, "early", "compute", 0, 90), event(2, "k", "compute", 150, 50),
                                       event(2, "k", "compute", 180, 70), event(3, "upload weights", "upload", 280, 90)}}};
  const std::string svg = timeline_svg(trace, "a step", 600);
  EXPECT_NE(svg.find(">50%<"), std::string::npos) << svg;  // 150 to 250 of 200, counted once where two overlap
  EXPECT_NE(svg.find(">10%<"), std::string::npos) << svg;  // an upload that goes on into the next step is cut at its end
  // On one stream transfers are told by their names.
  const json sync = {{"traceEvents", {track, event(1, "step 0", "step", 0, 100), event(2, "upload weights", "compute", 0, 25), event(2, "k", "compute", 25, 60)}}};
  EXPECT_NE(timeline_svg(sync, "a step", 600).find(">25%<"), std::string::npos);
  EXPECT_NE(timeline_svg({{"traceEvents", json::array()}}, "none", 600).find("no step"), std::string::npos);
}

TEST(Page, EscapesAndStandsAlone) {
  const TemporaryFolder folder;
  const auto result = result_of("memory", {{"a", "plan-memory <x>", "", Evidence::kSimulated, {{"x", 1}}}});
  const std::string page = report_page({result}, {judge(claim_of(1, Relation::kAbout, 0), {result})}, {{}}, folder.path());
  EXPECT_NE(page.find("A &lt;title&gt;"), std::string::npos);
  EXPECT_NE(page.find("plan-memory &lt;x&gt;"), std::string::npos);
  EXPECT_EQ(page.find("<x>"), std::string::npos);
  EXPECT_EQ(page.find("src=\"http"), std::string::npos);
}

TEST(Documents, DamageIsNamedWithItsFile) {
  const TemporaryFolder folder;
  EXPECT_NE(message_of(folder.path()).find("no TARGET.json"), std::string::npos);
  folder.write("memory.json", "{");
  EXPECT_NE(message_of(folder.path()).find("memory.json"), std::string::npos);
  folder.write("memory.json", R"({"target": "memory"})");
  EXPECT_NE(message_of(folder.path()).find("memory.json"), std::string::npos);
  const std::string start = R"({"target": "memory", "title": "", "date": "", "machine": "", "version": "", "quick": false, "seconds": 1, )";
  folder.write("memory.json", start + R"("rows": [{"id": "a", "kind": "guessed", "command": "c", "values": {}}]})");
  EXPECT_NE(message_of(folder.path()).find("\"guessed\" is none of measured, simulated, derived"), std::string::npos);
  folder.write("memory.json", start + R"("rows": [], "tables": [{"title": "t", "columns": ["a", "b"], "rows": [["1"]]}]})");
  EXPECT_NE(message_of(folder.path()).find("a row of 1 cells under 2 columns"), std::string::npos);
  folder.write("memory.json", start + R"("rows": [{"id": "a", "kind": "derived", "command": "c", "values": {}}]})");
  EXPECT_EQ(read_results(folder.path()).at(0).rows.at(0).evidence, Evidence::kDerived);
}

TEST(Documents, PicturesThatAreNotThereAreCounted) {
  const TemporaryFolder folder;
  folder.write("here.png", "png");
  folder.write("quality.json", R"({"target": "quality", "title": "", "date": "", "machine": "", "version": "", "quick": false, "seconds": 1, "rows": [],
    "pictures": [{"file": "gone.png", "caption": "g"}, {"file": "here.png", "caption": "h"}, {"file": "gone-too.png", "caption": "t"}]})");
  const auto results = read_results(folder.path());
  ASSERT_EQ(results.at(0).pictures.size(), 1u);
  EXPECT_EQ(results[0].pictures[0].caption, "h");
  EXPECT_EQ(results[0].pictures_left_out, 2u);
  EXPECT_NE(report_page(results, {}, {{}}, folder.path()).find("Pictures of 2 more rows"), std::string::npos);
}

TEST(Documents, TheClaimsOfTheTreeAreRead) {
  const auto claims = read_claims(MEGASLIDE_SOURCE_DIR "/configs/experiments/claims.json");
  EXPECT_GE(claims.size(), 10u);
  for (const Claim& c : claims) {
    EXPECT_TRUE(c.value.has_value()) << c.id;
    EXPECT_FALSE(c.quoted_in.empty()) << c.id;
  }
}
