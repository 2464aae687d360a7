// What the recipes of configs/experiments leave behind, and the claims that it is compared with.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace megaslide {

// How a number came about. Simulated: plan-memory's; derived: arithmetic on given numbers.
enum class Evidence { kMeasured, kSimulated, kDerived };

struct ResultRow {
  std::string id, command, date;
  Evidence evidence = Evidence::kMeasured;
  nlohmann::json values;
};

struct ResultTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

// A PNG file, or an SVG that some other program drew; relative to the folder of the documents.
struct ResultPicture {
  std::string file, caption;
};

// TARGET.json: what one target found.
struct ExperimentResult {
  std::string target, title, date, machine, version;
  bool quick = false;
  double seconds = 0;  // of the run that wrote it; an earlier, interrupted one is not in it
  std::vector<std::string> text;
  std::vector<ResultRow> rows;
  nlohmann::json charts;  // an array, see chart_svg()
  std::vector<ResultTable> tables;
  std::vector<ResultPicture> pictures;  // those whose files are there
  size_t pictures_left_out = 0;         // those whose files are not

  const ResultRow* find(const std::string& id) const;
};

// All TARGET.json of a folder, in the order of the experiments' README; of targets that it does not name, by name. Throws Error
// with the file where one is not such a document, or where there is none.
std::vector<ExperimentResult> read_results(const std::string& folder);

// A number of a row: "ROW.ID" of target TARGET, and the place of the number in its values, as a JSON pointer.
struct Finding {
  std::string label, target, row, pointer, unit;
};

enum class Relation { kAtMost, kAtLeast, kAbout };

// A claim of the paper, with the findings that speak to it. The first one is judged.
struct Claim {
  std::string id, text, paper, quoted_in, note;
  std::optional<double> value;  // the paper's number, in the unit of the first finding
  Relation relation = Relation::kAbout;
  double tolerance = 0;  // relative
  std::vector<Finding> findings;
  // A bound that no implementation can be under: where the paper's number is lower, the claim is refuted.
  std::optional<Finding> bound;
};

std::vector<Claim> read_claims(const std::string& path);

enum class Verdict { kHolds, kDiffers, kRefuted, kOpen };  // open: the number is not there

struct Found {
  Finding finding;
  std::optional<ResultRow> row;  // none where its target has not run
  std::optional<double> number;
  bool quick = false;
};

struct JudgedClaim {
  Claim claim;
  Verdict verdict = Verdict::kOpen;
  std::vector<Found> found;  // one a finding, the bound last
};

// Differs: the first finding is measured or simulated and does not bear the claim out, which an implementation may. Refuted: it
// is derived, or the bound is, and rules the claim out.
JudgedClaim judge(const Claim& claim, const std::vector<ExperimentResult>& results);

// A number for people: "1.48 TB", "46.6 min", "43%", "2.1x".
std::string format_number(double value, const std::string& unit);

// A chart of a document as SVG. `folder`: where the files that it names lie. Kinds: line and bar, as base/svg.h draws them, and
// timeline, the streams of one step out of a trace of finetune or plan-memory.
std::string chart_svg(const nlohmann::json& chart, const std::string& folder);
std::string timeline_svg(const nlohmann::json& trace, const std::string& title, int width);

// The page, self-contained. `charts`: the SVG of each chart of each result.
std::string report_page(const std::vector<ExperimentResult>& results, const std::vector<JudgedClaim>& claims,
                        const std::vector<std::vector<std::string>>& charts, const std::string& folder);
// The table of claims as Markdown.
std::string claims_markdown(const std::vector<JudgedClaim>& claims);

std::string evidence_text(Evidence evidence);
// The mark of a claim: how its number came about, or refuted.
std::string mark_text(const JudgedClaim& judged);
std::string verdict_text(Verdict verdict);
// "1.48 TB (dense attention); ..." of all findings.
std::string found_text(const Found& found);

}  // namespace megaslide
