#include <algorithm>

#include <fmt/format.h>

#include "base/atomic_file.h"
#include "base/svg.h"
#include "eval/base64.h"
#include "experiment.h"

namespace megaslide {
namespace {

constexpr std::string_view kStyle = R"(
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0;background:#f3f5f7;color:#1f2933;font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0 0 4px}
h2{font-size:19px;margin:0 0 10px}
h3{font-size:15px;margin:18px 0 6px}
p{margin:0 0 10px;max-width:980px}
.soft{color:#616e7c}
section{background:#fff;border:1px solid #e4e7eb;border-radius:10px;padding:20px 22px;margin:0 0 18px;overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:0 0 8px}
.wide{width:100%}
th{text-align:left;color:#616e7c;font-weight:500;font-size:13px;vertical-align:bottom}
th,td{padding:5px 10px;border-bottom:1px solid #e4e7eb;vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap}
td ul{margin:0;padding:0;list-style:none}
.charts{display:flex;flex-wrap:wrap;gap:16px;align-items:flex-start;margin:12px 0}
svg{max-width:100%;height:auto;display:block}
figure{margin:0 0 14px}
figure img{display:block;max-width:100%;border:1px solid #cbd2d9;border-radius:6px}
figcaption{font-size:13px;color:#616e7c;margin-top:3px;max-width:340px}
code{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:12px;overflow-wrap:anywhere}
summary{cursor:pointer;color:#616e7c}
.claim td{border-bottom:none}
.how{padding-top:0;color:#616e7c}
.mark{display:inline-block;border-radius:9px;padding:1px 9px;font-size:13px;white-space:nowrap}
.measured{background:#d8f3dc;color:#14532d}
.simulated{background:#dbeafe;color:#1e3a8a}
.derived{background:#ede9fe;color:#4c1d95}
.refuted{background:#fee2e2;color:#7f1d1d}
.open{background:#e4e7eb;color:#3e4c59}
.warning{background:#fff7e0;border:1px solid #f0d28c;border-radius:8px;padding:8px 12px}
)";

std::string esc(std::string_view text) { return escape_xml(text); }

std::string first_word(const std::string& text) { return text.substr(0, text.find(' ')); }

std::string mark(const std::string& text) {
  const std::string word = first_word(text);
  return fmt::format("<span class=\"mark {}\">{}</span>", word == "not" ? "open" : word, esc(text));
}

// Columns whose cells begin with a digit or a sign, where they are not empty, stand at the right.
bool numeric(const std::string& text) {
  return text.empty() || (text.front() == '+' || text.front() == '-' || (text.front() >= '0' && text.front() <= '9') || text == "–");
}

std::string table_html(const ResultTable& table) {
  std::vector<bool> right(table.columns.size(), !table.rows.empty());
  for (const auto& row : table.rows)
    for (size_t i = 0; i < row.size(); ++i)
      if (!numeric(row[i])) right[i] = false;
  std::string out = fmt::format("<h3>{}</h3>\n<table><tr>", esc(table.title));
  for (size_t i = 0; i < table.columns.size(); ++i) out += fmt::format("<th{}>{}</th>", right[i] ? " class=\"n\"" : "", esc(table.columns[i]));
  for (const auto& row : table.rows) {
    out += "</tr>\n<tr>";
    for (size_t i = 0; i < row.size(); ++i) out += fmt::format("<td{}>{}</td>", right[i] ? " class=\"n\"" : "", esc(row[i]));
  }
  return out + "</tr></table>\n";
}

std::string claim_row(const JudgedClaim& j) {
  std::string ours;
  std::vector<std::string> commands;
  for (const Found& f : j.found) {
    ours += fmt::format("<li>{} {}</li>", esc(found_text(f)), f.row ? mark(first_word(evidence_text(f.row->evidence))) : "");
    if (!f.row) continue;
    const std::string line = fmt::format("<code>{}</code>", esc(f.row->command));
    if (std::ranges::find(commands, line) == commands.end()) commands.push_back(line);
  }
  std::string out = fmt::format("<tr class=\"claim\"><td>{}{}<br><span class=\"soft\">{}</span></td><td>{}</td><td><ul>{}</ul></td><td>{}</td><td>{}</td></tr>\n", esc(j.claim.text),
                                j.claim.note.empty() ? "" : "<br><span class=\"soft\">" + esc(j.claim.note) + "</span>", esc(j.claim.quoted_in), esc(j.claim.paper), ours,
                                mark(mark_text(j)), verdict_text(j.verdict));
  out += "<tr><td colspan=\"5\" class=\"how\">" + (commands.empty() ? std::string("its target has not run") : commands.front());
  if (commands.size() > 1) {
    commands.erase(commands.begin());
    out += fmt::format("<details><summary>and {} more</summary>{}</details>", commands.size(), fmt::join(commands, "<br>"));
  }
  return out + "</td></tr>\n";
}

std::string claims_section(const std::vector<JudgedClaim>& claims) {
  std::string out =
      "<section><h2>The paper's claims beside ours</h2>\n"
      "<p class=\"soft\">Measured here: a program ran on the machine named below. Simulated with the planner: plan-memory says so of a machine whose rates are "
      "estimated from data sheets. Derived: arithmetic on given numbers. Refuted: a derived bound rules the claim out. Verdicts compare the first of our numbers with the paper's, within the "
      "tolerance that claims.json gives.</p>\n<table class=\"wide\"><tr><th>claim</th><th>the paper</th><th>ours</th><th>mark</th><th>verdict</th></tr>\n";
  for (const JudgedClaim& j : claims) out += claim_row(j);
  return out + "</table></section>\n";
}

std::string rows_html(const ExperimentResult& r) {
  std::string out = fmt::format("<details><summary>all {} rows, with the command of each</summary>\n<table class=\"wide\"><tr><th>row</th><th>mark</th><th>date</th><th>command</th><th>values</th></tr>\n", r.rows.size());
  for (const ResultRow& row : r.rows)
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td><code>{}</code></td><td><code>{}</code></td></tr>\n", esc(row.id), mark(evidence_text(row.evidence)), esc(row.date), esc(row.command), esc(row.values.dump()));
  return out + "</table></details>\n";
}

std::string result_section(const ExperimentResult& r, const std::vector<std::string>& charts, const std::string& folder) {
  std::string out = fmt::format("<section id=\"{}\"><h2>{}</h2>\n<p class=\"soft\"><code>make -C configs/experiments {}{}</code> &middot; {} &middot; {} &middot; {}</p>\n", esc(r.target), esc(r.title), esc(r.target),
                                r.quick ? " QUICK=1" : "", esc(r.date), esc(r.machine), esc(r.version));
  for (const std::string& p : r.text) out += fmt::format("<p>{}</p>\n", esc(p));
  out += "<div class=\"charts\">\n";
  for (const std::string& svg : charts) out += svg;
  out += "</div>\n";
  for (const ResultTable& t : r.tables) out += table_html(t);
  if (!r.pictures.empty()) out += "<div class=\"charts\">\n";
  for (const ResultPicture& p : r.pictures)
    out += fmt::format("<figure><img src=\"data:image/png;base64,{}\" alt=\"{}\"><figcaption>{}</figcaption></figure>\n", base64(read_file(folder + "/" + p.file, 16 << 20)), esc(p.caption), esc(p.caption));
  if (!r.pictures.empty()) out += "</div>\n";
  if (r.pictures_left_out)
    out += fmt::format("<p class=\"soft\">Pictures of {} more rows are not here: their numbers come from an earlier run, and pictures of samples are not kept.</p>\n", r.pictures_left_out);
  return out + rows_html(r) + "</section>\n";
}

}  // namespace

std::string report_page(const std::vector<ExperimentResult>& results, const std::vector<JudgedClaim>& claims, const std::vector<std::vector<std::string>>& charts, const std::string& folder) {
  std::string out = fmt::format("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>MegaSlide: experiments</title>\n<style>{}</style></head>\n<body><main>\n<h1>Experiments</h1>\n", kStyle);
  bool quick = false;
  for (const ExperimentResult& r : results) quick = quick || r.quick;
  if (quick) out += "<p class=\"warning\">Parts of this page are of the quick form (QUICK=1): it tries the machinery, and what it measures of quality, convergence and speed means nothing.</p>\n";
  out += claims_section(claims);
  for (size_t i = 0; i < results.size(); ++i) out += result_section(results[i], charts[i], folder);
  return out + "</main></body></html>\n";
}

}  // namespace megaslide
