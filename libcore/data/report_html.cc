#include <map>

#include <fmt/format.h>

#include "data/report.h"

namespace megaslide {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; color: #1d2530; background: #fff }}
h1 {{ font-size: 1.5rem; overflow-wrap: anywhere }} h2 {{ font-size: 1.1rem; margin: 1.6rem 0 .4rem }}
.sum {{ display: flex; gap: 2.4rem; flex-wrap: wrap; margin: 1rem 0 }} .sum div {{ font-size: 1.6rem; font-weight: 600 }}
.sum small {{ display: block; font-weight: 400; font-size: .8rem; color: #5a6675 }}
.clip {{ border: 1px solid #d5dbe3; border-radius: 6px; margin: .8rem 0; padding: .8rem 1rem }}
.clip b {{ overflow-wrap: anywhere }} .place {{ color: #5a6675; margin-left: .4rem }}
.tag {{ display: inline-block; border-radius: 4px; padding: 0 .5em; color: #fff; font-size: .8rem; min-width: 4.2em; text-align: center }}
.kept {{ background: #26734d }} .cut {{ background: #2b5f9e }} .retimed {{ background: #6a4ca0 }} .dropped {{ background: #a8362f }}
.caption {{ font-style: italic; white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0 }}
.strip {{ display: grid; grid-template-columns: 5.6rem 1fr; gap: .6rem; align-items: center; margin: .35rem 0 }}
.strip span {{ color: #5a6675; font-size: .8rem; text-align: right; white-space: nowrap }} .strip img {{ height: 5.4rem; max-width: 100%; object-fit: contain; object-position: left; display: block; border-radius: 3px }}
.facts {{ margin-top: .3rem }} .why {{ color: #37414e }} .note {{ color: #7a5300 }} .note::before {{ content: "⚠ " }}
table {{ border-collapse: collapse }} td, th {{ padding: .25rem 1rem .25rem 0; border-bottom: 1px solid #d5dbe3; text-align: right; font-variant-numeric: tabular-nums }}
td:first-child, th:first-child {{ text-align: left }} ul {{ margin: .3rem 0; padding-left: 1.2rem }} li {{ overflow-wrap: anywhere }}
</style></head><body><h1>{title}</h1>
)";

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return out;
}

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t v = 0;
    for (size_t k = 0; k < 3; ++k) v = v << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k > bytes.size() ? '=' : kDigits[v >> (18 - 6 * k) & 63];
  }
  return out;
}

std::string strip_html(const char* label, const char* alt, const std::string& png) {
  if (png.empty()) return {};
  return fmt::format("<div class=\"strip\"><span>{}</span><img alt=\"{}\" src=\"data:image/png;base64,{}\"></div>\n", label, alt, base64(png));
}

std::string rate(double fps) { return fps > 0 ? fmt::format(" at {:.5g} a second", fps) : std::string(); }
const char* plural(int64_t n) { return n == 1 ? "" : "s"; }

std::string facts_html(const ClipFacts& f) {
  if (f.frames_decoded == 0) return {};
  std::string out = fmt::format("<div class=\"facts\">{} frame{} of {}×{}{}", f.frames_decoded, plural(f.frames_decoded), f.width, f.height, rate(f.fps));
  if (f.status != ClipStatus::kDropped) out += fmt::format(" → {} frame{} of {}×{}{}", f.frames_used, plural(f.frames_used), f.used_width, f.used_height, rate(f.used_fps));
  return out + "</div>\n";
}

std::string clip_html(const ClipReport& c) {
  const ClipFacts& f = c.facts;
  std::string out = fmt::format("<section class=\"clip\"><div><span class=\"tag {0}\">{0}</span> <b>{1}</b><span class=\"place\">{2}</span></div>\n", clip_status_name(f.status),
                                escape(c.path), escape(c.place));
  if (!c.caption.empty()) out += fmt::format("<div class=\"caption\">{}</div>\n", escape(c.caption));
  out += strip_html("the clip", "pictures of the whole clip; what is cut is dark", c.source_strip);
  out += strip_html("what is kept", "pictures of what is kept", c.used_strip);
  out += facts_html(f);
  if (!f.reason.empty()) out += fmt::format("<div class=\"why\">{}</div>\n", escape(f.reason));
  for (const std::string& n : f.notes) out += fmt::format("<div class=\"note\">{}</div>\n", escape(n));
  return out + "</section>\n";
}

struct BucketSum {
  int64_t clips = 0, frames = 0, left_over = 0, retimed = 0, cut = 0;
};

std::string buckets_html(const EncodeReport& report) {
  std::map<std::string, BucketSum> buckets;
  for (const ClipReport& c : report.clips) {
    if (c.facts.status == ClipStatus::kDropped) continue;
    BucketSum& b = buckets[c.facts.bucket()];
    ++b.clips;
    b.frames += c.facts.frames_used;
    b.left_over += c.facts.frames_retimed - c.facts.frames_used;
    b.retimed += c.facts.status == ClipStatus::kRetimed ? 1 : 0;
    b.cut += c.facts.status == ClipStatus::kCut ? 1 : 0;
  }
  if (buckets.empty()) return {};
  std::string out = "<h2>Buckets</h2>\n<table><tr><th>width×height×frames</th><th>clips</th><th>cut</th><th>re-timed</th><th>frames used</th><th>left over</th></tr>\n";
  for (const auto& [name, b] : buckets)
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", escape(name), b.clips, b.cut, b.retimed, b.frames, b.left_over);
  return out + "</table>\n";
}

}  // namespace

std::string report_html(const EncodeReport& report, const std::string& title) {
  std::string out = fmt::format(kHead, fmt::arg("title", escape(title)));
  int64_t frames = 0, retimed = 0, cut = 0;
  size_t without_strip = 0;
  for (const ClipReport& c : report.clips) {
    if (c.facts.status != ClipStatus::kDropped) {
      frames += c.facts.frames_used;
      without_strip += c.source_strip.empty() ? 1 : 0;
    }
    retimed += c.facts.status == ClipStatus::kRetimed ? 1 : 0;
    cut += c.facts.status == ClipStatus::kCut ? 1 : 0;
  }
  out += fmt::format("<div class=\"sum\"><div>{}<small>clips used</small></div><div>{}<small>of them cut</small></div><div>{}<small>of them re-timed</small></div>"
                     "<div>{}<small>dropped</small></div><div>{}<small>frames used</small></div></div>\n",
                     report.kept, cut, retimed, report.dropped, frames);
  out += buckets_html(report);
  std::string general;  // what is said of a clip stands with it
  for (size_t i = 0; i < report.dataset_warnings; ++i) general += fmt::format("<li>{}</li>\n", escape(report.warnings[i]));
  if (!general.empty()) out += "<h2>About the dataset</h2>\n<ul>" + general + "</ul>\n";
  std::string dropped, used;
  for (const ClipReport& c : report.clips) (c.facts.status == ClipStatus::kDropped ? dropped : used) += clip_html(c);
  if (!dropped.empty()) out += fmt::format("<h2>Dropped ({})</h2>\n", report.dropped) + dropped;
  if (!used.empty()) out += fmt::format("<h2>Used ({})</h2>\n", report.kept) + used;
  if (without_strip > 0 && static_cast<int64_t>(without_strip) < report.kept) out += fmt::format("<p>{} further clips are shown without pictures.</p>\n", without_strip);
  return out + "</body></html>\n";
}

}  // namespace megaslide
