#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "eval/report.h"

namespace megaslide {
namespace {

// Lists of names for a person: all of a few, the first of many. `head` ends with ": " or is empty.
std::string listed(const std::vector<std::string>& names, const char* head) {
  constexpr size_t kShown = 10;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) out += fmt::format("  {}{}\n", head, printable(names[i]));
  if (names.size() > kShown) out += fmt::format("  {}and {} more\n", head, names.size() - kShown);
  return out;
}

std::string audit_text(const NameAudit& a, const std::vector<std::string>& ignored) {
  std::string out = fmt::format("Names: found {} of {} videos by name\n", a.matched, a.expected);
  std::vector<std::string> missing;
  for (const std::string& m : a.missing) {
    const auto near = a.near.find(m);
    missing.push_back(near == a.near.end() ? m : fmt::format("{}   (near name: {})", m, near->second));
  }
  out += listed(missing, "missing: ") + listed(a.extra, "extra: ") + listed(a.duplicates, "second file of one name: ");
  for (const auto& [x, y] : a.differ_in_case)
    out += fmt::format("  differ only in case: {} / {}\n", printable(x), printable(y));
  return out + listed(ignored, "not a video, ignored: ") + "\n";
}

// "  head a, b, c", further lines indented, at most 110 columns where the names allow it.
std::string wrapped(const std::string& head, const std::vector<std::string>& names) {
  constexpr size_t kColumns = 110;
  std::string out, line = fmt::format("  {}", head);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string word = fmt::format(" {}{}", names[i], i + 1 < names.size() ? "," : "");
    if (line.size() + word.size() > kColumns) {
      out += line + "\n";
      line = "   ";
    }
    line += word;
  }
  return out + line + "\n";
}

std::string table_text(const Evaluation& e) {
  if (e.dimensions.empty()) return "";
  std::string out = fmt::format("{:<24} {:>10} {:>10} {:>6} {:>5} {:>7}  {}\n", "dimension", "raw", "normalised",
                                "weight", "n", "skipped", "95% interval");
  for (const DimensionResult& r : e.dimensions) {
    out += fmt::format(
        "{:<24} {:>10} {:>10} {:>6} {:>5} {:>7}  {}{}\n", r.name, format_score(r.raw),
        r.normalised ? fmt::format("{:.4f}", *r.normalised) : "-", r.normalised ? fmt::format("{:g}", r.weight) : "-",
        r.count() > 0 || r.imported_from.empty() ? std::to_string(r.count()) : "-", r.skipped.size(),
        r.ci95 ? fmt::format("{} .. {}", format_score(r.ci95->first), format_score(r.ci95->second)) : "-",
        r.imported_from.empty() ? "" : "  (imported)");
  }
  return out;
}

std::string skipped_text(const Evaluation& e) {
  std::vector<std::string> lines;
  for (const DimensionResult& r : e.dimensions) {
    for (const SkippedVideo& s : r.skipped)
      lines.push_back(fmt::format("{}: {}: {}", r.name, e.videos[s.video].item.path, s.reason));
  }
  return lines.empty() ? "" : "\nSkipped\n" + listed(lines, "");
}

std::string withheld_text(const Evaluation& e) {
  std::string out;
  for (const auto& [reason, names] : withheld_groups(e)) out += wrapped(reason + ":", names);
  return out.empty() ? "" : "\nWithheld (scores from elsewhere: --import)\n" + out;
}

}  // namespace

std::string format_score(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (std::isnan(value)) return "-";
  return fmt::format("{:.6f}", value);
}

const char* compute_dtype_name(const EvalOptions& options) { return options.compute == DType::kBF16 ? "bf16" : "fp32"; }

const char* device_name(const EvalOptions& options) { return options.backend == Backend::kCuda ? "cuda" : "cpu"; }

std::string decoder_text(const EvalOptions& options) { return options.compat ? "libav, BT.601 as OpenCV" : "libav, by colour tags"; }

std::string static_filter_text(const EvalOptions& options) {
  return options.static_filter ? "applied: RAFT, the first five static videos of a prompt" : "not applied";
}

std::vector<std::pair<std::string, std::vector<std::string>>> withheld_groups(const Evaluation& e) {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  for (const Dimension& d : dimensions()) {
    const auto w = e.withheld.find(std::string(d.name));
    if (w == e.withheld.end()) continue;
    std::string name(d.name), reason = w->second;
    if (!d.missing.empty()) reason = "detectors and classifiers are not built in";
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == reason; });
    if (group == groups.end()) {
      groups.push_back({reason, {std::move(name)}});
    } else {
      group->second.push_back(std::move(name));
    }
  }
  return groups;
}

std::string report_text(const Evaluation& e) {
  std::string out;
  if (e.audit) out += audit_text(*e.audit, e.ignored);
  out += table_text(e) + skipped_text(e) + withheld_text(e) + "\n";
  for (const std::string& line : e.aggregate.arithmetic) out += line + "\n";
  const auto drift = mean_drift(e);
  if (!drift.empty()) {
    out += "\nDrift (mean difference of frames so many apart, 0..1)\n ";
    for (const auto& [gap, d] : drift) out += fmt::format(" {}:{:.4f}", gap, d);
    out += "\n";
  }
  std::vector<std::string> alarms;
  for (const EvaluatedVideo& v : e.videos) {
    for (const Alarm& a : v.measures.alarms) alarms.push_back(fmt::format("{}: {}", v.item.path, a.text));
  }
  if (!alarms.empty()) out += "\nAlarms\n" + listed(alarms, "");
  for (const DimensionResult& r : e.dimensions) {
    if (r.worst.empty() || r.videos.size() < 2) continue;
    out += fmt::format("\nLowest {}\n", r.name);
    for (size_t i : r.worst)
      out += fmt::format("  {:>10}  {}\n", format_score(*e.videos[i].measures.scores.at(r.name).value),
                         printable(e.videos[i].item.path));
  }
  return out;
}

}  // namespace megaslide
