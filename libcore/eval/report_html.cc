#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/svg.h"
#include "eval/base64.h"
#include "eval/report.h"

namespace megaslide {
namespace {

constexpr size_t kTraces = 8;  // lines in one chart before nobody can tell them apart
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

constexpr std::string_view kStyle = R"(
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0;background:#f3f5f7;color:#1f2933;font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0 0 4px}
h2{font-size:18px;margin:0 0 12px}
p{margin:0 0 10px}
.soft{color:#616e7c}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:12px;margin:20px 0}
.tile,section{background:#fff;border:1px solid #e4e7eb;border-radius:10px}
.tile{padding:14px 16px}
.tile b{display:block;font-size:22px;line-height:1.3;font-variant-numeric:tabular-nums}
.tile span{color:#616e7c;font-size:13px}
section{padding:20px 22px;margin:0 0 18px;overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{text-align:left;color:#616e7c;font-weight:500;font-size:13px}
th,td{padding:6px 10px;border-bottom:1px solid #e4e7eb;vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap}
.charts{display:flex;flex-wrap:wrap;gap:16px;align-items:flex-start}
svg{max-width:100%;height:auto;display:block}
.strip{display:flex;flex-wrap:wrap;gap:10px;margin:6px 0 18px}
figure{margin:0}
figure img{display:block;height:120px;border-radius:6px;border:1px solid #cbd2d9;image-rendering:auto;background:#000}
figcaption{font-size:12px;color:#616e7c;margin-top:3px}
.alarm{color:#9b2c00;font-weight:600}
code,.path{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:13px;overflow-wrap:anywhere}
ul{margin:0;padding-left:20px}
)";

std::string esc(std::string_view text) { return escape_xml(text); }

std::string section(const std::string& title, const std::string& body) {
  return body.empty() ? "" : fmt::format("<section><h2>{}</h2>\n{}</section>\n", esc(title), body);
}

std::string bullet_list(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += fmt::format("<li>{}</li>\n", esc(line));
  return out.empty() ? "" : "<ul>" + out + "</ul>\n";
}

// The last part of a path, shortened in the middle: for legends and labels.
std::string short_name(const std::string& path) {
  constexpr size_t kMost = 34;
  const size_t end = path.find_last_not_of('/');
  const size_t slash = path.rfind('/', end);
  std::string name =
      path.substr(slash == std::string::npos ? 0 : slash + 1,
                  end == std::string::npos ? end : end - (slash == std::string::npos ? 0 : slash + 1) + 1);
  if (name.size() <= kMost) return name;
  // Cut between characters, not inside one.
  const auto inside = [&](size_t i) { return (static_cast<unsigned char>(name[i]) & 0xC0) == 0x80; };
  size_t a = kMost / 2, b = name.size() - kMost / 2;
  while (a > 0 && inside(a)) --a;
  while (b < name.size() && inside(b)) ++b;
  return name.substr(0, a) + "\xE2\x80\xA6" + name.substr(b);
}

std::string tile(const std::string& value, const std::string& label) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", esc(value), esc(label));
}

std::string header(const Evaluation& e) {
  size_t read = 0, alarmed = 0;
  int64_t frames = 0;
  for (const EvaluatedVideo& v : e.videos) {
    read += v.skipped.empty();
    alarmed += !v.measures.alarms.empty();
    frames += v.measures.facts.frames;
  }
  std::string out = "<h1>Video evaluation</h1>\n";
  out += fmt::format("<p class=\"soft\">eval-vbench {} &middot; {}</p>\n", esc(megaslide_version()),
                     esc(fmt::format("{}", fmt::join(e.options.inputs, ", "))));
  out += "<div class=\"tiles\">\n" +
         tile(fmt::format("{}", read),
              read == e.videos.size() ? "videos" : fmt::format("of {} videos could be read", e.videos.size())) +
         tile(fmt::format("{}", frames), "frames decoded");
  for (const char* name : {"temporal_flickering", "psnr", "ssim"}) {
    if (const DimensionResult* r = e.find(name)) {
      out += tile(std::isfinite(r->raw)
                      ? (r->name == "psnr" ? fmt::format("{:.2f} dB", r->raw) : fmt::format("{:.4f}", r->raw))
                      : format_score(r->raw),
                  name);
    }
  }
  out += tile(e.aggregate.total ? fmt::format("{:.4f}", *e.aggregate.total) : "withheld",
              fmt::format("total, from {}/16 dimensions", e.aggregate.present));
  out += tile(fmt::format("{}", alarmed), alarmed == 1 ? "video with an alarm" : "videos with alarms");
  return out + "</div>\n";
}

std::string score_table(const Evaluation& e) {
  std::string out =
      "<table><tr><th>dimension</th><th class=\"n\">raw</th><th class=\"n\">95% interval</th><th "
      "class=\"n\">bounds</th>"
      "<th class=\"n\">normalised</th><th class=\"n\">weight</th><th class=\"n\">n</th><th "
      "class=\"n\">skipped</th></tr>\n";
  for (const Dimension& d : dimensions()) {
    const std::string name(d.name);
    if (const DimensionResult* r = e.find(name)) {
      const std::string interval =
          r->ci95 ? fmt::format("{:.4f} &ndash; {:.4f}", r->ci95->first, r->ci95->second) : "&ndash;";
      out += fmt::format("<tr><td>{}{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>", name,
                         r->imported_from.empty() ? "" : " <span class=\"soft\">imported</span>", format_score(r->raw),
                         interval);
      out += r->normalised
                 ? fmt::format(
                       "<td class=\"n\">{:g} &ndash; {:g}</td><td class=\"n\">{:.4f}</td><td class=\"n\">{:g}</td>",
                       d.low, d.high, *r->normalised, d.weight)
                 : std::string("<td class=\"n\">&ndash;</td><td class=\"n\">&ndash;</td><td class=\"n\">&ndash;</td>");
      out += fmt::format("<td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n", r->count(), r->skipped.size());
    }
  }
  out += "</table>\n<p></p>\n";
  for (const auto& [reason, names] : withheld_groups(e)) {
    out += fmt::format("<p class=\"soft\"><b>Withheld, {}:</b> {}</p>\n", esc(reason),
                       esc(fmt::format("{}", fmt::join(names, ", "))));
  }
  for (const std::string& line : e.aggregate.arithmetic)
    out += fmt::format("<p class=\"soft\"><code>{}</code></p>\n", esc(line));
  return out;
}

std::string overview_charts(const Evaluation& e) {
  std::vector<RadarAxis> axes;
  RadarSeries values{"normalised score"};
  std::vector<Bar> bars;
  for (const Dimension& d : dimensions()) {
    if (d.family == DimensionFamily::kReference) continue;
    const DimensionResult* r = e.find(std::string(d.name));
    axes.push_back(
        {std::string(d.name), fmt::format("{:g} \xE2\x80\x93 {:g}{}", d.low, d.high, r ? "" : ", withheld")});
    values.values.push_back(r && r->normalised ? *r->normalised : kNone);
    Bar bar{std::string(d.name),
            kNone,
            "withheld",
            {},
            {},
            d.family == DimensionFamily::kQuality ? std::string(palette_color(0)) : std::string(palette_color(5))};
    if (r && r->normalised) {
      bar.value = *r->normalised;
      bar.note = fmt::format("{:.4f}", *r->normalised);
      if (r->ci95) bar.low = normalised_score(d, r->ci95->first), bar.high = normalised_score(d, r->ci95->second);
    }
    bars.push_back(std::move(bar));
  }
  ChartOptions radar{.width = 610, .height = 470};
  ChartOptions bar{.x_label = "normalised score with the 95% interval over videos", .width = 460};
  bar.x_min = 0.0, bar.x_max = 1.0;
  for (const Bar& b : bars) {
    if (b.value > 1) bar.x_max = std::max(*bar.x_max, b.value);
    if (b.value < 0) bar.x_min = std::min(*bar.x_min, b.value);
  }
  return "<p class=\"soft\">The rim is 1, the centre 0; under each name the raw scores that stand for 0 and 1.</p><div "
         "class=\"charts\">\n" +
         radar_chart(radar, axes, {values}) + bar_chart(bar, bars) + "</div>\n";
}

// The videos whose traces are drawn: all of a few, else the worst of each metric.
std::vector<size_t> drawn_videos(const Evaluation& e) {
  std::vector<size_t> all;
  for (size_t i = 0; i < e.videos.size(); ++i) {
    if (e.videos[i].skipped.empty()) all.push_back(i);
  }
  if (all.size() <= kTraces) return all;
  std::set<size_t> worst;
  for (const DimensionResult& r : e.dimensions) worst.insert(r.worst.begin(), r.worst.end());
  std::vector<size_t> some(worst.begin(), worst.end());
  if (some.size() > kTraces) some.resize(kTraces);
  return some;
}

// One line of one video: the colour is the video's in every chart of the page.
Series line_of(const Evaluation& e, const std::vector<size_t>& drawn, size_t k, const std::vector<double>& y) {
  return {short_name(e.videos[drawn[k]].item.path), {}, y, std::string(palette_color(k))};
}

std::string trace_charts(const Evaluation& e, const std::vector<size_t>& drawn) {
  std::string out;
  for (const DimensionResult& r : e.dimensions) {
    if (!r.imported_from.empty()) continue;
    std::vector<Series> lines;
    std::string label;
    for (size_t k = 0; k < drawn.size(); ++k) {
      const auto& scores = e.videos[drawn[k]].measures.scores;
      const auto s = scores.find(r.name);
      if (s == scores.end() || !s->second.value) continue;
      lines.push_back(line_of(e, drawn, k, s->second.trace));
      label = s->second.trace_label;
    }
    out += line_chart({.title = r.name, .x_label = "frame", .y_label = label, .width = 1080, .height = 320}, lines);
  }
  std::vector<Series> light;
  for (size_t k = 0; k < drawn.size(); ++k)
    light.push_back(line_of(e, drawn, k, e.videos[drawn[k]].measures.brightness));
  if (!light.empty())
    out += line_chart(
        {.title = "brightness", .x_label = "frame", .y_label = "mean level of 255", .width = 1080, .height = 280},
        light);
  return out;
}

std::string drift_charts(const Evaluation& e, const std::vector<size_t>& drawn) {
  std::vector<Series> curves, first;
  for (size_t k = 0; k < drawn.size(); ++k) {
    const DriftCurve& d = e.videos[drawn[k]].measures.drift;
    if (d.gaps.empty()) continue;
    Series s = line_of(e, drawn, k, d.difference);
    for (int64_t gap : d.gaps) s.x.push_back(static_cast<double>(gap));
    curves.push_back(std::move(s));
    first.push_back(line_of(e, drawn, k, d.from_first));
  }
  const auto mean = mean_drift(e);
  if (mean.empty()) return "";
  if (e.videos.size() > 1) {
    Series s{"mean of all videos", {}, {}, "#1f2933", true};
    for (const auto& [gap, d] : mean) s.x.push_back(static_cast<double>(gap)), s.y.push_back(d);
    curves.push_back(std::move(s));
  }
  return "<p class=\"soft\">Scores between neighbours saturate near 1; the difference over growing distances shows how "
         "a clip wanders. Frames are "
         "averaged down to 64 cells a side first, so noise counts little.</p>\n" +
         line_chart({.title = "Drift over distance",
                     .x_label = "frames apart",
                     .y_label = "mean difference, 0..1",
                     .width = 1080,
                     .height = 320,
                     .markers = true,
                     .y_min = 0.0},
                    curves) +
         line_chart({.title = "Distance from the first frame",
                     .x_label = "frame",
                     .y_label = "mean difference, 0..1",
                     .width = 1080,
                     .height = 300,
                     .y_min = 0.0},
                    first);
}

std::string worst_strips(const Evaluation& e) {
  std::string out;
  for (const DimensionResult& r : e.dimensions) {
    if (r.worst.empty()) continue;
    out += fmt::format("<p><b>Lowest {}</b></p>\n", r.name);
    for (size_t i : r.worst) {
      const EvaluatedVideo& v = e.videos[i];
      out += fmt::format("<div><span class=\"path\">{}</span> &nbsp; <b>{}</b>", esc(v.item.path),
                         format_score(*v.measures.scores.at(r.name).value));
      for (const Alarm& a : v.measures.alarms)
        out += fmt::format(" &nbsp; <span class=\"alarm\">{}</span>", esc(a.text));
      out += "</div>\n<div class=\"strip\">";
      for (const Thumbnail& t : v.measures.thumbnails) {
        out += fmt::format(
            "<figure><img alt=\"{0}\" src=\"data:image/png;base64,{1}\"><figcaption>{0}</figcaption></figure>",
            esc(t.caption), base64(encode_png(t.picture)));
      }
      out += "</div>\n";
    }
  }
  return out;
}

std::string video_bars(const Evaluation& e) {
  std::string out;
  for (const DimensionResult& r : e.dimensions) {
    if (r.videos.size() < 2) continue;
    std::vector<ScoredVideo> order = r.videos;
    std::stable_sort(order.begin(), order.end(),
                     [](const ScoredVideo& a, const ScoredVideo& b) { return a.value < b.value; });
    const size_t shown = std::min<size_t>(order.size(), 20);
    std::vector<Bar> bars;
    double least = std::numeric_limits<double>::infinity(), most = -least;
    for (size_t i = 0; i < shown; ++i) {
      bars.push_back({short_name(e.videos[order[i].video].item.path), order[i].value, format_score(order[i].value)});
      if (std::isfinite(order[i].value)) least = std::min(least, order[i].value), most = std::max(most, order[i].value);
    }
    ChartOptions o{
        .title = shown < order.size() ? fmt::format("{}: the lowest {} of {}", r.name, shown, order.size()) : r.name,
        .width = 1080};
    if (least >= 0 && most <= 1) o.x_min = 0.0, o.x_max = 1.0;
    out += bar_chart(o, bars);
  }
  return out;
}

std::string audit_section(const Evaluation& e) {
  if (!e.audit) return "";
  const NameAudit& a = *e.audit;
  std::vector<std::string> lines;
  for (const std::string& m : a.missing) {
    const auto near = a.near.find(m);
    lines.push_back(near == a.near.end() ? "missing: " + m
                                         : fmt::format("missing: {} (near name: {})", m, near->second));
  }
  for (const std::string& x : a.extra) lines.push_back("extra: " + x);
  for (const std::string& x : a.duplicates) lines.push_back("second file of one name: " + x);
  for (const auto& [x, y] : a.differ_in_case) lines.push_back(fmt::format("differ only in case: {} / {}", x, y));
  constexpr size_t kShown = 200;
  const size_t all = lines.size();
  if (all > kShown) lines.resize(kShown), lines.push_back(fmt::format("and {} more", all - kShown));
  return fmt::format("<p>Found {} of {} videos by name.</p>\n", a.matched, a.expected) + bullet_list(lines);
}

std::string video_table(const Evaluation& e) {
  constexpr size_t kShown = 500;
  std::string out =
      "<table><tr><th>video</th><th class=\"n\">size</th><th class=\"n\">frames</th><th "
      "class=\"n\">fps</th><th>codec</th><th>remarks</th></tr>\n";
  for (size_t i = 0; i < std::min(kShown, e.videos.size()); ++i) {
    const EvaluatedVideo& v = e.videos[i];
    const VideoFacts& f = v.measures.facts;
    std::string remarks;
    for (const Alarm& a : v.measures.alarms) remarks += fmt::format("<div class=\"alarm\">{}</div>", esc(a.text));
    if (!v.skipped.empty()) remarks += fmt::format("<div class=\"alarm\">skipped: {}</div>", esc(v.skipped));
    for (const auto& [name, s] : v.measures.scores) {
      if (!s.value) remarks += fmt::format("<div>{}: {}</div>", esc(name), esc(s.reason));
    }
    for (const std::string& w : v.measures.warnings) remarks += fmt::format("<div>{}</div>", esc(w));
    if (f.declared_frames > 0 && f.declared_frames != f.frames)
      remarks += fmt::format("<div class=\"soft\">the header says {} frames</div>", f.declared_frames);
    out += fmt::format("<tr><td class=\"path\">{}</td>", esc(v.item.path));
    out += v.skipped.empty()
               ? fmt::format(
                     "<td class=\"n\">{}&times;{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td>",
                     f.width, f.height, f.frames, f.fps > 0 ? fmt::format("{:.4g}", f.fps) : "&ndash;", esc(f.codec))
               : std::string("<td></td><td></td><td></td><td></td>");
    out += fmt::format("<td>{}</td></tr>\n", remarks);
  }
  out += "</table>\n";
  if (e.videos.size() > kShown)
    out += fmt::format("<p class=\"soft\">and {} more, in the CSV file</p>\n", e.videos.size() - kShown);
  return out;
}

std::string provenance_section(const Evaluation& e) {
  std::vector<std::string> lines{
      fmt::format("eval-vbench {}, decoder {}", megaslide_version(), decoder_text(e.options)),
      fmt::format("bootstrap: 2000 resamples over videos, percentile interval, seed {}", e.options.seed),
      fmt::format("VBench's static filter before temporal_flickering: {}", static_filter_text(e.options)), "bounds and weights: VBench at 45e79ec"};
  if (!e.options.prompts.empty())
    lines.push_back(fmt::format("prompts: {}, {} videos each", e.options.prompts, e.options.videos_a_prompt));
  if (!e.options.reference.empty()) lines.push_back("reference: " + e.options.reference);
  for (const auto& [name, n] : e.networks)
    lines.push_back(fmt::format("{}: {}, SHA-256 {}, published under {}", name, n.path, n.sha256, n.licence));
  if (!e.networks.empty()) lines.push_back(fmt::format("products of networks in {} on {}", compute_dtype_name(e.options), device_name(e.options)));
  for (const DimensionResult& r : e.dimensions) {
    if (!r.imported_from.empty()) lines.push_back(fmt::format("{}: imported from {}", r.name, r.imported_from));
  }
  return bullet_list(lines);
}

}  // namespace

std::string report_html(const Evaluation& e) {
  const std::vector<size_t> drawn = drawn_videos(e);
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">"
      "<title>Video evaluation</title><style>{}</style></head>\n<body><main>\n",
      kStyle);
  out += header(e);
  out += section("Names", audit_section(e));
  out += section("Warnings", bullet_list(e.warnings));
  out += section("Scores", score_table(e));
  out += section("Normalised scores", overview_charts(e));
  out += section("Video by video", video_bars(e));
  out += section("The lowest five", worst_strips(e));
  out += section("Frame by frame", trace_charts(e, drawn));
  out += section("Drift", drift_charts(e, drawn));
  out += section("Videos", video_table(e));
  out += section("Provenance", provenance_section(e));
  return out + "</main></body></html>\n";
}

}  // namespace megaslide
