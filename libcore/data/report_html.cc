#include <map>

#include <fmt/format.h>

#include "data/report.h"
#include "io/contact_sheet.h"

namespace megaslide {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1d2530; background: #fff }}
h1 {{ font-size: 1.4rem }} .sum {{ display: flex; gap: 2rem; flex-wrap: wrap; margin: 1rem 0 }}
.sum div {{ font-size: 1.5rem; font-weight: 600 }} .sum small {{ display: block; font-weight: 400; font-size: .8rem; color: #5a6675 }}
.clip {{ border: 1px solid #d5dbe3; border-radius: 6px; margin: .8rem 0; padding: .8rem 1rem }} .clip img {{ max-width: 100%; image-rendering: pixelated }}
.tag {{ display: inline-block; border-radius: 4px; padding: 0 .5em; color: #fff; font-size: .8rem }}
.kept {{ background: #26734d }} .cut {{ background: #2b5f9e }} .retimed {{ background: #6a4ca0 }} .dropped {{ background: #a8362f }}
.caption {{ font-style: italic; white-space: pre-wrap }} .why, .note {{ color: #5a6675 }} .note::before {{ content: "⚠ " }}
table {{ border-collapse: collapse }} td, th {{ padding: .2rem .8rem; border-bottom: 1px solid #d5dbe3; text-align: left }}
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

std::string clip_html(const ClipReport& c) {
  const ClipFacts& f = c.facts;
  const char* status = clip_status_name(f.status);
  std::string out = fmt::format("<section class=\"clip\"><div><span class=\"tag {0}\">{0}</span> <b>{1}</b> {2}</div>\n", status, escape(c.path), escape(c.place));
  if (!c.caption.empty()) out += fmt::format("<div class=\"caption\">{}</div>\n", escape(c.caption));
  if (!c.thumbnails.empty())
    out += fmt::format("<img alt=\"pictures of the clip, decoded from the cache\" src=\"data:image/png;base64,{}\">\n",
                       base64(encode_png(contact_sheet({c.thumbnails}, static_cast<int64_t>(c.thumbnails.size())))));
  if (f.frames_decoded > 0)
    out += fmt::format("<div>{} frames of {}×{} at {:.5g} a second{}</div>\n", f.frames_decoded, f.width, f.height, f.fps,
                       f.status == ClipStatus::kDropped ? "" : fmt::format(" → {} of {}×{}", f.frames_used, f.used_width, f.used_height));
  if (!f.reason.empty()) out += fmt::format("<div class=\"why\">{}</div>\n", escape(f.reason));
  for (const std::string& n : f.notes) out += fmt::format("<div class=\"note\">{}</div>\n", escape(n));
  return out + "</section>\n";
}

}  // namespace

std::string report_html(const EncodeReport& report, const std::string& title) {
  std::string out = fmt::format(kHead, fmt::arg("title", escape(title)));
  int64_t frames = 0;
  std::map<std::string, std::pair<int64_t, int64_t>> buckets;  // clips, frames left over
  for (const ClipReport& c : report.clips)
    if (c.facts.status != ClipStatus::kDropped) {
      frames += c.facts.frames_used;
      auto& b = buckets[c.facts.bucket()];
      ++b.first;
      b.second += c.facts.frames_retimed - c.facts.frames_used;
    }
  out += fmt::format("<div class=\"sum\"><div>{}<small>clips used</small></div><div>{}<small>dropped</small></div><div>{}<small>frames used</small></div></div>\n",
                     report.kept, report.dropped, frames);
  out += "<table><tr><th>bucket</th><th>clips</th><th>frames left over</th></tr>\n";
  for (const auto& [name, b] : buckets) out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", escape(name), b.first, b.second);
  out += "</table>\n";
  for (const std::string& w : report.warnings) out += fmt::format("<div class=\"note\">{}</div>\n", escape(w));
  for (const ClipReport& c : report.clips) out += clip_html(c);
  return out + "</body></html>\n";
}

}  // namespace megaslide
