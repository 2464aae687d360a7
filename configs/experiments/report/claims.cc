#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "experiment.h"

namespace megaslide {
namespace {

Found look_up(const Finding& finding, const std::vector<ExperimentResult>& results) {
  Found found{finding, {}, {}, false};
  const auto result = std::ranges::find(results, finding.target, &ExperimentResult::target);
  if (result == results.end()) return found;
  found.quick = result->quick;
  const ResultRow* row = result->find(finding.row);
  if (row == nullptr) return found;
  found.row = *row;
  const nlohmann::json::json_pointer at(finding.pointer);
  if (!found.row->values.contains(at)) return found;
  const nlohmann::json& value = found.row->values.at(at);
  if (value.is_boolean()) found.number = value.get<bool>() ? 1 : 0;
  if (value.is_number()) found.number = value.get<double>();
  return found;
}

bool satisfied(const Claim& c, double ours) {
  const double room = c.tolerance * std::abs(*c.value);
  switch (c.relation) {
    case Relation::kAtMost: return ours <= *c.value + room;
    case Relation::kAtLeast: return ours >= *c.value - room;
    case Relation::kAbout: return std::abs(ours - *c.value) <= room;
  }
  MS_CHECK(false, "relation");
  return false;
}

std::string bytes_text(double v) {
  const double a = std::abs(v);
  return a >= 1e12 ? fmt::format("{:.2f} TB", v / 1e12) : a >= 1e9 ? fmt::format("{:.1f} GB", v / 1e9) : a >= 1e6 ? fmt::format("{:.1f} MB", v / 1e6) : fmt::format("{:.0f} B", v);
}

std::string seconds_text(double v) {
  const double a = std::abs(v);
  return a >= 600 ? fmt::format("{:.1f} min", v / 60) : a >= 10 ? fmt::format("{:.1f} s", v) : a >= 0.1 ? fmt::format("{:.2f} s", v) : fmt::format("{:.1f} ms", 1e3 * v);
}

std::string counted(double v) {
  const std::string digits = fmt::format("{:.0f}", std::abs(v));
  std::string out = v < 0 ? "-" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

JudgedClaim judge(const Claim& claim, const std::vector<ExperimentResult>& results) {
  JudgedClaim judged{claim, Verdict::kOpen, {}};
  for (const Finding& f : claim.findings) judged.found.push_back(look_up(f, results));
  if (claim.bound) judged.found.push_back(look_up(*claim.bound, results));
  const Found& first = judged.found.front();
  if (claim.bound && claim.value && judged.found.back().number && *claim.value < *judged.found.back().number) {
    judged.verdict = Verdict::kRefuted;
  } else if (first.number && claim.value) {
    judged.verdict = satisfied(claim, *first.number) ? Verdict::kHolds : first.row->evidence == Evidence::kDerived ? Verdict::kRefuted : Verdict::kDiffers;
  }
  return judged;
}

std::string format_number(double v, const std::string& unit) {
  if (!std::isfinite(v)) return "–";
  if (unit == "bytes") return bytes_text(v);
  if (unit == "seconds") return seconds_text(v);
  if (unit == "share") return fmt::format("{:.0f}%", 100 * v);
  if (unit == "times") return fmt::format("{:.2f}x", v);
  if (unit == "yes") return v != 0 ? "yes" : "no";
  if (unit == "loss") return fmt::format("{:+.4f}", v);
  if (v == 1 && unit.starts_with("frames")) return "1 frame" + unit.substr(6);
  return counted(v) + (unit.empty() ? "" : " " + unit);
}

std::string evidence_text(Evidence evidence) {
  return evidence == Evidence::kMeasured ? "measured here" : evidence == Evidence::kSimulated ? "simulated with the planner" : "derived";
}

std::string mark_text(const JudgedClaim& judged) {
  if (judged.verdict == Verdict::kRefuted) return "refuted";
  const auto& row = judged.found.front().row;
  return row ? evidence_text(row->evidence) : "not run";
}

std::string verdict_text(Verdict verdict) {
  return verdict == Verdict::kHolds ? "holds" : verdict == Verdict::kDiffers ? "not borne out" : verdict == Verdict::kRefuted ? "ruled out" : "open";
}

std::string found_text(const Found& found) {
  const std::string value = found.number ? format_number(*found.number, found.finding.unit) : found.row ? "no number" : "not run";
  return value + (found.finding.label.empty() ? "" : " " + found.finding.label) + (found.quick && found.number && found.row->evidence == Evidence::kMeasured ? " (quick form)" : "");
}

std::string claims_markdown(const std::vector<JudgedClaim>& claims) {
  std::string out = "| claim of the paper | the paper | ours | mark | verdict |\n|---|---|---|---|---|\n";
  for (const JudgedClaim& j : claims) {
    std::vector<std::string> ours;
    for (const Found& f : j.found)
      ours.push_back(found_text(f) + (f.row ? ", " + evidence_text(f.row->evidence) : ""));
    out += fmt::format("| {} | {} | {}{} | *{}* | {} |\n", cell(j.claim.text), cell(j.claim.paper), cell(fmt::format("{}", fmt::join(ours, "; "))),
                       j.claim.note.empty() ? "" : ". " + cell(j.claim.note), mark_text(j), verdict_text(j.verdict));
  }
  return out;
}

}  // namespace megaslide
