#include "base/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/utf8.h"

namespace megaslide {
namespace {

constexpr std::string_view kFont = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif";
constexpr std::string_view kInk = "#1f2933", kSoft = "#616e7c", kGrid = "#e4e7eb", kAxis = "#9aa5b1";
constexpr double kPi = 3.14159265358979323846;

// A rough text width: what matters is that labels get enough room.
double text_width(std::string_view text, double size) {
  const auto letters =
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
  return 0.58 * size * static_cast<double>(letters);
}

struct TextStyle {
  double size = 12;
  std::string_view anchor = "start", color = kSoft;
  bool bold = false;
};

std::string text_at(double x, double y, std::string_view text, const TextStyle& s = {}) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:g}\" text-anchor=\"{}\" fill=\"{}\"{}>{}</text>\n",
                     x, y, s.size, s.anchor, s.color, s.bold ? " font-weight=\"600\"" : "", escape_xml(text));
}

std::string line_from(double x0, double y0, double x1, double y1, std::string_view color, double width = 1) {
  return fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"{}\" stroke-width=\"{:g}\" fill=\"none\"/>\n",
                     x0, y0, x1, y1, color, width);
}

std::string open_svg(const ChartOptions& o, double width, double height) {
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "role=\"img\" "
      "font-family=\"{2}\">\n",
      width, height, kFont);
  if (!o.title.empty()) out += fmt::format("<title>{}</title>\n", escape_xml(o.title));
  if (o.background) out += fmt::format("<rect width=\"{:.0f}\" height=\"{:.0f}\" fill=\"#ffffff\"/>\n", width, height);
  if (!o.title.empty()) out += text_at(16, 24, o.title, {.size = 15, .color = kInk, .bold = true});
  return out;
}

std::string color_of(const std::string& wanted, size_t index) {
  return wanted.empty() ? std::string(palette_color(index)) : escape_xml(wanted);
}

// The legend in rows from y on; returns the y below it.
double legend(std::string& out, const std::vector<std::pair<std::string, std::string>>& entries, double left,
              double right, double y) {
  double x = left;
  bool any = false;
  for (const auto& [name, color] : entries) {
    if (name.empty()) continue;
    const double w = 22 + text_width(name, 12) + 14;
    if (any && x + w > right) x = left, y += 18;
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"4\" rx=\"2\" fill=\"{}\"/>\n", x, y - 6,
                       color);
    out += text_at(x + 20, y, name, {.color = kInk});
    x += w, any = true;
  }
  return any ? y + 12 : y - 8;
}

// An axis: data range, scale, ticks. On a log axis the range is kept as log10.
struct Axis {
  double low = 0, high = 1;
  bool log = false;
  std::vector<double> ticks;  // in data units
  double step = 1;

  bool usable(double v) const { return std::isfinite(v) && (!log || v > 0); }
  double scaled(double v) const { return log ? std::log10(v) : v; }
  // 0 at low, 1 at high. Halves first, so that a range of the whole of double does not overflow.
  double unit(double v) const { return (scaled(v) / 2 - low / 2) / (high / 2 - low / 2); }
};

std::string tick_text(double v, const Axis& axis) {
  if (v == 0) return "0";
  const double a = std::fabs(v);
  if (axis.log) return a >= 1e5 || a < 1e-3 ? fmt::format("{:.0e}", v) : fmt::format("{:g}", v);
  if (a >= 1e6 || axis.step < 1e-5) {
    const int digits = std::clamp(static_cast<int>(std::ceil(std::log10(a) - std::log10(axis.step))) + 1, 1, 15);
    return fmt::format("{:.{}g}", v, digits);
  }
  return fmt::format("{:.{}f}", v, std::max(0, static_cast<int>(std::ceil(-std::log10(axis.step) - 1e-9))));
}

std::vector<double> log_ticks(double low, double high, int count) {
  std::vector<double> ticks;
  const int first = static_cast<int>(std::floor(low)), last = static_cast<int>(std::ceil(high));
  const int every = std::max(1, (last - first) / std::max(count, 1));
  const bool between = high - low < 2.5;
  for (int e = first; e <= last; e += every) {
    for (double m : {1.0, 2.0, 5.0}) {
      if (m > 1 && !between) break;
      const double v = m * std::pow(10.0, e);
      if (std::isfinite(v) && v > 0 && std::log10(v) >= low - 1e-9 && std::log10(v) <= high + 1e-9) ticks.push_back(v);
    }
  }
  return ticks;
}

// The axis over the usable values, widened a little, or to the ends that were asked for.
Axis make_axis(const std::vector<double>& values, bool log, std::optional<double> from, std::optional<double> to,
               double margin, int count) {
  Axis axis;
  axis.log = log;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (double v : values) {
    if (axis.usable(v)) low = std::min(low, axis.scaled(v)), high = std::max(high, axis.scaled(v));
  }
  if (low > high) low = 0, high = 1;
  if (low == high) {
    const double pad = log ? 0.5 : std::max(std::fabs(low) * 0.1, std::numeric_limits<double>::min() * 16);
    low -= low == 0 && !log ? 0.5 : pad, high += high == 0 && !log ? 0.5 : pad;
  } else {
    const double pad = (high / 2 - low / 2) * (2 * margin);
    low -= pad, high += pad;
  }
  constexpr double kMost = std::numeric_limits<double>::max();
  low = std::clamp(low, -kMost, kMost), high = std::clamp(high, -kMost, kMost);
  if (from && axis.usable(*from)) low = axis.scaled(*from);
  if (to && axis.usable(*to)) high = axis.scaled(*to);
  if (!(low < high)) high = low + std::max(std::fabs(low) * 1e-9, 1e-300);
  axis.low = low, axis.high = high;
  axis.ticks = log ? log_ticks(low, high, count) : nice_ticks(low, high, count);
  if (axis.ticks.size() > 1) axis.step = axis.ticks[1] - axis.ticks[0];
  return axis;
}

struct Frame {
  double left, top, right, bottom;
};
struct Point {
  double x, y;
  double data_x, data_y;
};

// Runs of neighbouring usable points, in pixels. Where many fall on one pixel column, each column keeps its first,
// lowest, highest and last one, so that a million steps stay a small file and no spike is lost.
std::vector<std::vector<Point>> runs_of(const Series& s, const std::vector<double>& y, const Axis& ax, const Axis& ay,
                                        const Frame& f) {
  std::vector<std::vector<Point>> runs(1);
  const size_t n = s.x.empty() ? y.size() : std::min(s.x.size(), y.size());
  std::vector<Point> column;
  const auto flush = [&] {
    if (column.size() > 4) {
      const auto [lo, hi] =
          std::minmax_element(column.begin(), column.end(), [](const Point& a, const Point& b) { return a.y < b.y; });
      std::array keep{size_t{0}, static_cast<size_t>(lo - column.begin()), static_cast<size_t>(hi - column.begin()),
                      column.size() - 1};
      std::sort(keep.begin(), keep.end());
      for (size_t i = 0; i < keep.size(); ++i) {
        if (i == 0 || keep[i] != keep[i - 1]) runs.back().push_back(column[keep[i]]);
      }
    } else {
      runs.back().insert(runs.back().end(), column.begin(), column.end());
    }
    column.clear();
  };
  for (size_t i = 0; i < n; ++i) {
    const double x = s.x.empty() ? static_cast<double>(i) : s.x[i];
    if (!ax.usable(x) || !ay.usable(y[i])) {
      flush();
      if (!runs.back().empty()) runs.emplace_back();
      continue;
    }
    // Cut far outside points to a few sheets away: the clip path hides the rest.
    const Point p{f.left + std::clamp(ax.unit(x), -4.0, 5.0) * (f.right - f.left),
                  f.bottom - std::clamp(ay.unit(y[i]), -4.0, 5.0) * (f.bottom - f.top), x, y[i]};
    if (!column.empty() && std::floor(column.back().x) != std::floor(p.x)) flush();
    column.push_back(p);
  }
  flush();
  if (runs.back().empty()) runs.pop_back();
  return runs;
}

std::string path_of(const std::vector<Point>& run) {
  std::string d;
  for (const Point& p : run) d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? "M" : "L", p.x, p.y);
  return d;
}

void draw_band(std::string& out, const Series& s, const Axis& ax, const Axis& ay, const Frame& f,
               const std::string& color) {
  if (s.low.size() != s.y.size() || s.high.size() != s.y.size() || s.y.empty()) return;
  std::vector<double> low = s.low, high = s.high;
  for (size_t i = 0; i < low.size(); ++i) {
    if (!ay.usable(low[i]) || !ay.usable(high[i])) low[i] = high[i] = std::numeric_limits<double>::quiet_NaN();
  }
  const auto lows = runs_of(s, low, ax, ay, f), highs = runs_of(s, high, ax, ay, f);
  for (size_t i = 0; i < std::min(lows.size(), highs.size()); ++i) {
    std::vector<Point> back(highs[i].rbegin(), highs[i].rend());
    std::string d = path_of(lows[i]), b = path_of(back);
    b[0] = 'L';
    out += fmt::format("<path d=\"{}{}Z\" fill=\"{}\" fill-opacity=\"0.15\" stroke=\"none\"/>\n", d, b, color);
  }
}

// Returns how many points were drawn.
size_t draw_series(std::string& out, const Series& s, const Axis& ax, const Axis& ay, const Frame& f,
                   const std::string& color, bool markers) {
  draw_band(out, s, ax, ay, f, color);
  size_t count = 0;
  for (const auto& run : runs_of(s, s.y, ax, ay, f)) {
    count += run.size();
    if (run.size() > 1) {
      out += fmt::format(
          "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.75\" stroke-linejoin=\"round\"{}/>\n",
          path_of(run), color, s.dashed ? " stroke-dasharray=\"6 4\"" : "");
    }
    if (!markers && run.size() > 1) continue;
    for (const Point& p : run) {
      out += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}{:.6g}, {:.6g}</title></circle>\n", p.x,
          p.y, color, s.name.empty() ? "" : escape_xml(s.name) + ": ", p.data_x, p.data_y);
    }
  }
  return count;
}

void draw_axes(std::string& out, const ChartOptions& o, const Axis& ax, const Axis& ay, const Frame& f) {
  for (double t : ay.ticks) {
    const double y = f.bottom - ay.unit(t) * (f.bottom - f.top);
    out += line_from(f.left, y, f.right, y, kGrid);
    out += text_at(f.left - 8, y + 4, tick_text(t, ay), {.anchor = "end"});
  }
  for (double t : ax.ticks) {
    const double x = f.left + ax.unit(t) * (f.right - f.left);
    out += line_from(x, f.bottom, x, f.bottom + 4, kAxis);
    out += text_at(x, f.bottom + 18, tick_text(t, ax), {.anchor = "middle"});
  }
  out += line_from(f.left, f.bottom, f.right, f.bottom, kAxis);
  if (!o.x_label.empty()) out += text_at((f.left + f.right) / 2, f.bottom + 38, o.x_label, {.anchor = "middle"});
}

}  // namespace

std::string_view palette_color(size_t index) {
  constexpr std::array<std::string_view, 8> kPalette{"#0b6bcb", "#d9480f", "#2b8a3e", "#9c36b5",
                                                     "#c99700", "#0c8599", "#c2255c", "#5c5f66"};
  return kPalette[index % kPalette.size()];
}

std::string escape_xml(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto [code, n] = code_point_at(text, 0);
    if (n == 0) {
      out += "\xEF\xBF\xBD";
    } else if (code == '&') {
      out += "&amp;";
    } else if (code == '<') {
      out += "&lt;";
    } else if (code == '>') {
      out += "&gt;";
    } else if (code == '"') {
      out += "&quot;";
    } else if (code == '\'') {
      out += "&#39;";
    } else if ((code >= 0x20 && code != 0x7F && code != 0xFFFE && code != 0xFFFF) || code == '\t' || code == '\n') {
      out += text.substr(0, n);
    }
    text.remove_prefix(std::max<size_t>(n, 1));
  }
  return out;
}

std::vector<double> nice_ticks(double low, double high, int count) {
  std::vector<double> ticks;
  if (!std::isfinite(low) || !std::isfinite(high) || !(low < high)) return ticks;
  const double rough = (high / 2 - low / 2) / std::max(count, 1) * 2;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  if (!std::isfinite(rough) || !(power > 0)) return {low, high};
  const double m = rough / power;
  const double step = (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10) * power;
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i <= 4 * count + 8; ++i) {
    const double v = (first + i) * step;
    if (!std::isfinite(v) || v > high + step * 1e-9) break;
    ticks.push_back(v);
  }
  return ticks;
}

std::string line_chart(const ChartOptions& options, const std::vector<Series>& series) {
  const double width = std::max(options.width, 160), height = std::max(options.height, 120);
  std::string out = open_svg(options, width, height);
  std::vector<std::pair<std::string, std::string>> entries;
  std::vector<double> xs, ys;
  for (size_t i = 0; i < series.size(); ++i) {
    const Series& s = series[i];
    entries.emplace_back(s.name, color_of(s.color, i));
    const size_t n = s.x.empty() ? s.y.size() : std::min(s.x.size(), s.y.size());
    for (size_t k = 0; k < n; ++k) {
      const double x = s.x.empty() ? static_cast<double>(k) : s.x[k];
      const auto usable = [](double v, bool log) { return std::isfinite(v) && (!log || v > 0); };
      if (!usable(x, options.log_x) || !usable(s.y[k], options.log_y)) continue;
      xs.push_back(x), ys.push_back(s.y[k]);
      if (s.low.size() == s.y.size() && s.high.size() == s.y.size()) ys.push_back(s.low[k]), ys.push_back(s.high[k]);
    }
  }
  double top = options.title.empty() ? 18 : 46;
  if (std::any_of(entries.begin(), entries.end(), [](const auto& e) { return !e.first.empty(); }))
    top = legend(out, entries, 18, width - 16, top);
  if (!options.y_label.empty()) out += text_at(16, top + 4, options.y_label), top += 12;
  const Axis ay = make_axis(ys, options.log_y, options.y_min, options.y_max, 0.05,
                            std::max(2, static_cast<int>((height - top - 40) / 48)));
  double widest = 0;
  for (double t : ay.ticks) widest = std::max(widest, text_width(tick_text(t, ay), 12));
  const double left = 20 + std::max(widest, 20.0);
  const Axis ax =
      make_axis(xs, options.log_x, options.x_min, options.x_max, 0, std::max(2, static_cast<int>((width - left) / 90)));
  const Frame f{left, top + 6, width - 24, std::max(height - (options.x_label.empty() ? 28 : 48), top + 16)};
  draw_axes(out, options, ax, ay, f);
  // A nested <svg> clips without an id, which must be unique when several charts stand in one page.
  out += fmt::format(
      "<svg x=\"{0:.1f}\" y=\"{1:.1f}\" width=\"{2:.1f}\" height=\"{3:.1f}\" viewBox=\"{0:.1f} {1:.1f} {2:.1f} "
      "{3:.1f}\">\n",
      f.left - 4, f.top - 4, f.right - f.left + 8, f.bottom - f.top + 8);
  size_t points = 0;
  for (size_t i = 0; i < series.size(); ++i)
    points += draw_series(out, series[i], ax, ay, f, entries[i].second, options.markers);
  out += "</svg>\n";
  if (points == 0)
    out += text_at((f.left + f.right) / 2, (f.top + f.bottom) / 2, "no data", {.size = 14, .anchor = "middle"});
  return out + "</svg>\n";
}

std::string bar_chart(const ChartOptions& options, const std::vector<Bar>& bars) {
  constexpr double kRow = 26;
  const double width = std::max(options.width, 160), top = options.title.empty() ? 12 : 40;
  const double height =
      top + kRow * static_cast<double>(std::max<size_t>(bars.size(), 1)) + (options.x_label.empty() ? 28 : 48);
  std::string out = open_svg(options, width, height);
  std::vector<double> values{0};
  double labels = 0, notes = 0;
  for (const Bar& b : bars) {
    labels = std::max(labels, text_width(b.label, 12));
    if (std::isfinite(b.value)) {
      notes = std::max(notes, text_width(b.note, 12));
      values.push_back(b.value);
      if (b.low && b.high) values.push_back(*b.low), values.push_back(*b.high);
    }
  }
  const double left = 24 + std::min(labels, width * 0.45);
  const Frame f{left, top, std::max(left + 40, width - 24 - std::min(notes, width * 0.3)),
                top + kRow * static_cast<double>(std::max<size_t>(bars.size(), 1))};
  const Axis ax =
      make_axis(values, false, options.x_min, options.x_max, 0, std::max(2, static_cast<int>((f.right - f.left) / 90)));
  for (double t : ax.ticks) {
    const double x = f.left + ax.unit(t) * (f.right - f.left);
    out += line_from(x, f.top, x, f.bottom, kGrid) + text_at(x, f.bottom + 16, tick_text(t, ax), {.anchor = "middle"});
  }
  const auto at = [&](double v) { return f.left + std::clamp(ax.unit(v), 0.0, 1.0) * (f.right - f.left); };
  for (size_t i = 0; i < bars.size(); ++i) {
    const Bar& b = bars[i];
    const double y = f.top + kRow * static_cast<double>(i), middle = y + kRow / 2;
    out += text_at(left - 10, middle + 4, b.label, {.anchor = "end", .color = kInk});
    if (!std::isfinite(b.value)) {
      out += text_at(f.left + 6, middle + 4, b.note);
      continue;
    }
    const double x0 = std::min(at(0), at(b.value)), x1 = std::max(at(0), at(b.value));
    double end = x1;
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"3\" fill=\"{}\"><title>{}: "
        "{:.6g}</title></rect>\n",
        x0, y + 5, std::max(x1 - x0, 1.0), kRow - 10, color_of(b.color, 0), escape_xml(b.label), b.value);
    if (b.low && b.high && std::isfinite(*b.low) && std::isfinite(*b.high)) {
      const double a = at(*b.low), z = at(*b.high);
      out += line_from(a, middle, z, middle, kInk, 1.5) + line_from(a, middle - 4, a, middle + 4, kInk, 1.5) +
             line_from(z, middle - 4, z, middle + 4, kInk, 1.5);
      end = std::max(end, z);
    }
    out += text_at(end + 6, middle + 4, b.note, {.color = kInk});
  }
  if (bars.empty()) out += text_at((f.left + f.right) / 2, (f.top + f.bottom) / 2 + 4, "no data", {.anchor = "middle"});
  out += line_from(at(0), f.top, at(0), f.bottom, kAxis);
  if (!options.x_label.empty())
    out += text_at((f.left + f.right) / 2, f.bottom + 38, options.x_label, {.anchor = "middle"});
  return out + "</svg>\n";
}

std::string radar_chart(const ChartOptions& options, const std::vector<RadarAxis>& axes,
                        const std::vector<RadarSeries>& series) {
  const double width = std::max(options.width, 160), height = std::max(options.height, 120);
  std::string out = open_svg(options, width, height);
  std::vector<std::pair<std::string, std::string>> entries;
  for (size_t i = 0; i < series.size(); ++i) entries.emplace_back(series[i].name, color_of(series[i].color, i));
  const double top = legend(out, entries, 18, width - 16, options.title.empty() ? 18 : 46);
  double labels = 0;
  for (const RadarAxis& a : axes) labels = std::max({labels, text_width(a.label, 12), text_width(a.note, 10)});
  const double cx = width / 2, cy = (top + height) / 2;
  const double radius =
      std::max(20.0, std::min((height - top) / 2 - 40, width / 2 - 18 - std::min(labels, width * 0.3)));
  const size_t n = axes.size();
  if (n == 0) return out + text_at(cx, cy, "no data", {.size = 14, .anchor = "middle"}) + "</svg>\n";
  const auto spot = [&](size_t i, double r) {
    const double angle = 2 * kPi * static_cast<double>(i) / static_cast<double>(n) - kPi / 2;
    return Point{cx + r * radius * std::cos(angle), cy + r * radius * std::sin(angle), 0, 0};
  };
  for (double ring : {0.25, 0.5, 0.75, 1.0}) {
    std::vector<Point> rim;
    for (size_t i = 0; i < n; ++i) rim.push_back(spot(i, ring));
    out += fmt::format("<path d=\"{}Z\" fill=\"none\" stroke=\"{}\"/>\n", path_of(rim), ring == 1.0 ? kAxis : kGrid);
    out += text_at(cx + 4, cy - ring * radius - 3, fmt::format("{:g}", ring), {.size = 10});
  }
  for (size_t i = 0; i < n; ++i) {
    const Point p = spot(i, 1);
    out += line_from(cx, cy, p.x, p.y, kGrid);
    const Point t = spot(i, 1 + 16 / radius);
    const std::string_view anchor = t.x > cx + 6 ? "start" : t.x < cx - 6 ? "end" : "middle";
    const double y = t.y + (t.y < cy - radius * 0.95 ? -16 : t.y < cy - radius * 0.6 ? -8 : 4);
    out += text_at(t.x, y, axes[i].label, {.anchor = anchor, .color = kInk}) +
           text_at(t.x, y + 13, axes[i].note, {.size = 10, .anchor = anchor});
  }
  for (size_t k = 0; k < series.size(); ++k) {
    std::vector<Point> all;
    std::string dots;
    for (size_t i = 0; i < std::min(n, series[k].values.size()); ++i) {
      const double v = series[k].values[i];
      if (std::isnan(v)) continue;
      all.push_back(spot(i, std::clamp(v, 0.0, 1.0)));
      dots +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}: {:.4f}</title></circle>\n",
                      all.back().x, all.back().y, entries[k].second, escape_xml(axes[i].label), v);
    }
    // A polygon only over a full set: across missing axes it would claim values that nobody measured.
    if (all.size() == n && n > 2) {
      out += fmt::format("<path d=\"{}Z\" fill=\"{}\" fill-opacity=\"0.18\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                         path_of(all), entries[k].second, entries[k].second);
    } else {
      for (const Point& p : all) out += line_from(cx, cy, p.x, p.y, entries[k].second, 3);
    }
    out += dots;
  }
  return out + "</svg>\n";
}

}  // namespace megaslide
