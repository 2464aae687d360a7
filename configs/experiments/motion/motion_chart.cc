// Four charts in one picture.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "base/svg.h"
#include "motion_report.h"

namespace megaslide {
namespace {

constexpr double kWidth = 1180, kHeight = 800, kSplit = 600;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr const char* kInk = "#1f2933", *kSoft = "#616e7c", *kGrid = "#e4e7eb", *kAxis = "#9aa5b1";

// Families share a hue: what is fixed in greys, zero offsets blue, the net alone orange, motion green, the truth red.
std::string colour_of(const std::string& variant) {
  static const std::map<std::string, std::string> colours{
      {"dense", "#1f2933"},    {"window", "#9aa5b1"}, {"zero-333", "#9cc4ee"}, {"zero-355", "#4f93d8"},     {"zero-377", "#1d5aa6"},   {"rigid", "#f2c14e"},
      {"slice", "#e8871e"},    {"full", "#b5500b"},   {"slice-motion", "#5cbf82"}, {"full-motion", "#11703d"}, {"oracle", "#c2185b"}};
  const auto found = colours.find(variant);
  return found == colours.end() ? "#7b61a8" : found->second;
}

std::string place(const std::string& svg, double x, double y) {
  return fmt::format("<svg x=\"{:.0f}\" y=\"{:.0f}\"{}", x, y, svg.substr(4));
}

std::string text_at(double x, double y, const std::string& text, const char* colour, const char* anchor = "start", int size = 12, bool bold = false) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\" fill=\"{}\"{}>{}</text>\n", x, y, size, anchor, colour, bold ? " font-weight=\"600\"" : "", escape_xml(text));
}

// The held-out loss of a run at its k-th validation less the mean of all runs of its seed: which clips are held out depends on
// the seed, and some are harder. Nothing where a run of the seed has no such validation.
double against_seed(const std::vector<VariantRuns>& variants, const MotionRun& run, size_t k) {
  double sum = 0;
  for (const VariantRuns& v : variants) {
    const auto same = std::ranges::find_if(v.runs, [&](const MotionRun* r) { return r->seed == run.seed; });
    if (same == v.runs.end() || k >= (*same)->validation.size()) return kNan;
    sum += (*same)->validation[k];
  }
  return run.validation[k] - sum / static_cast<double>(variants.size());
}

// A line a variant: the mean of `value` over its runs, with a band from the lowest to the highest.
template <class Value>
std::vector<Series> lines_of(const std::vector<VariantRuns>& variants, bool names, const Value& value) {
  std::vector<Series> series;
  for (const VariantRuns& v : variants) {
    Series s;
    s.name = names ? v.variant : "";
    s.color = colour_of(v.variant);
    s.dashed = v.variant == "oracle";
    for (size_t k = 0; k < v.runs.front()->steps.size(); ++k) {
      std::vector<double> at;
      for (const MotionRun* run : v.runs)
        if (k < run->validation.size())
          if (const double y = value(*run, k); std::isfinite(y)) at.push_back(y);
      if (at.empty()) continue;
      s.x.push_back(v.runs.front()->steps[k]);
      s.y.push_back(interval_of(at).mean);
      s.low.push_back(*std::ranges::min_element(at)), s.high.push_back(*std::ranges::max_element(at));
    }
    series.push_back(std::move(s));
  }
  return series;
}

ChartOptions over_steps(const char* title, const char* y_label, double height) {
  ChartOptions o;
  o.title = title;
  o.x_label = "step (log)";
  o.y_label = y_label;
  o.width = static_cast<int>(kSplit), o.height = static_cast<int>(height);
  o.log_x = true;
  return o;
}

std::string curves(const std::vector<VariantRuns>& variants, double height) {
  const auto mean = [&](size_t k) {
    MeanOf all;
    for (const VariantRuns& v : variants)
      for (const MotionRun* run : v.runs)
        if (k < run->validation.size()) all.add(run->validation[k]);
    return all.mean();
  };
  const ChartOptions o = over_steps("Loss of held-out clips while training", "mean over seeds; band: lowest to highest, less the seed's own level", height);
  return line_chart(o, lines_of(variants, true, [&](const MotionRun& run, size_t k) { return against_seed(variants, run, k) + mean(k); }));
}

std::string differences(const std::vector<VariantRuns>& variants, double height) {
  const auto base = std::ranges::find(variants, std::string("zero-377"), &VariantRuns::variant);
  const ChartOptions o = over_steps("The same, less that of zero-377 with the same seed", "below 0: better", height);
  return line_chart(o, lines_of(variants, false, [&](const MotionRun& run, size_t k) {
    if (base != variants.end())
      for (const MotionRun* other : base->runs)
        if (other->seed == run.seed && k < other->validation.size()) return run.validation[k] - other->validation[k];
    return kNan;
  }));
}

struct Dot {
  std::string name;
  double x = 0, y = 0, low = 0, high = 0;
};

// The heights at which the labels of dots stand without lying on each other, from the highest down.
std::vector<double> label_heights(std::vector<double> wanted, double line) {
  for (int round = 0; round < 400; ++round)
    for (size_t i = 0; i + 1 < wanted.size(); ++i)
      if (const double gap = wanted[i + 1] - wanted[i]; gap < line) wanted[i] -= (line - gap) / 2, wanted[i + 1] += (line - gap) / 2;
  return wanted;
}

// Loss against work, a dot a variant with its interval, its name at the right and a thin line between them.
std::string scatter(const std::string& title, std::vector<Dot> dots, double width, double height) {
  constexpr double kNames = 96;
  const double left = 52, right = width - kNames - 34, top = 40, bottom = height - 44;
  std::ranges::sort(dots, {}, [](const Dot& d) { return -d.y; });
  double x0 = 1e300, x1 = 0, y0 = 1e300, y1 = -1e300;
  for (const Dot& d : dots) x0 = std::min(x0, d.x), x1 = std::max(x1, d.x), y0 = std::min(y0, d.low), y1 = std::max(y1, d.high);
  x0 = std::log10(x0) - 0.1, x1 = std::log10(x1) + 0.1;
  const double room = std::max(0.05 * (y1 - y0), 1e-3);
  y0 -= room, y1 += room;
  const auto at_x = [&](double x) { return left + (std::log10(x) - x0) / (x1 - x0) * (right - left); };
  const auto at_y = [&](double y) { return bottom - (y - y0) / (y1 - y0) * (bottom - top); };
  std::string out = fmt::format("<svg width=\"{:.0f}\" height=\"{:.0f}\">\n", width, height) + text_at(0, 18, title, kInk, "start", 15, true);
  for (const double y : nice_ticks(y0, y1, 5))
    out += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"{}\"/>\n", left, at_y(y), right, kGrid) + text_at(left - 8, at_y(y) + 4, fmt::format("{:.4g}", y), kSoft, "end");
  for (const double x : {5e3, 1e4, 2e4, 5e4, 1e5, 2e5})
    if (std::log10(x) > x0 && std::log10(x) < x1)
      out += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}\" stroke=\"{}\"/>\n", at_x(x), top, bottom, kGrid) + text_at(at_x(x), bottom + 16, fmt::format("{:g}", x / 1000), kSoft, "middle");
  out += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" stroke=\"{}\" fill=\"none\"/>\n", left, top, bottom, right, kAxis);
  out += text_at((left + right) / 2, bottom + 36, "attention, kflop a token and layer (log)", kSoft, "middle");
  std::vector<double> wanted;
  wanted.reserve(dots.size());
  for (const Dot& d : dots) wanted.push_back(at_y(d.y));
  const std::vector<double> heights = label_heights(wanted, 15);
  for (size_t i = 0; i < dots.size(); ++i) {
    const Dot& d = dots[i];
    const std::string colour = colour_of(d.name);
    const double x = at_x(d.x), y = at_y(d.y);
    out += fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}H{:.1f}\" stroke=\"{}\" stroke-opacity=\"0.35\" fill=\"none\"/>\n", x, y, right + 12, heights[i], right + 24, colour);
    out += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}\" stroke=\"{}\" stroke-width=\"1.5\"/>\n", x, at_y(d.low), at_y(d.high), colour);
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" fill=\"{}\"/>\n", x, y, colour) + text_at(right + 28, heights[i] + 4, d.name, kInk);
  }
  return out + "</svg>\n";
}

template <class Value>
std::vector<Dot> dots_of(const std::vector<VariantRuns>& variants, const Value& value) {
  std::vector<Dot> dots;
  for (const VariantRuns& v : variants) {
    std::vector<double> all;
    for (const MotionRun* run : v.runs)
      if (const double loss = value(*run); std::isfinite(loss)) all.push_back(loss);
    if (all.empty()) continue;
    dots.push_back({v.variant, v.runs.front()->attention_flops, interval_of(all).mean, *std::ranges::min_element(all), *std::ranges::max_element(all)});
  }
  return dots;
}

}  // namespace

std::string motion_chart(const MotionExperiment& e) {
  const std::vector<VariantRuns> variants = by_variant(e);
  std::string out = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
                                "font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif\">\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n", kWidth, kHeight);
  out += place(curves(variants, kHeight / 2 + 40), 0, 0) + place(differences(variants, kHeight / 2 - 40), 0, kHeight / 2 + 40);
  const double width = kWidth - kSplit - 30, height = kHeight / 2 - 12;
  const auto fast = [](const MotionRun& r) { return r.losses.kinds[static_cast<size_t>(TokenKind::kFast)].mean(); };
  out += place(scatter("Final loss, all tokens; lines: lowest to highest", dots_of(variants, [](const MotionRun& r) { return r.losses.all.mean(); }), width, height), kSplit + 20, 6);
  out += place(scatter("Final loss, tokens of fast sprites", dots_of(variants, fast), width, height), kSplit + 20, kHeight / 2 + 6);
  return out + "</svg>\n";
}

}  // namespace megaslide
