#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/svg.h"
#include "experiment.h"
#include "io/json.h"

namespace megaslide {
namespace {

using nlohmann::json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// null: no value there, a gap.
std::vector<double> numbers_of(const json& chart, const char* key) {
  std::vector<double> all;
  for (const json& v : chart.value(key, json::array())) all.push_back(v.is_null() ? kNan : v.get<double>());
  return all;
}

std::optional<double> number_of(const json& j, const char* key) {
  return j.contains(key) && j.at(key).is_number() ? std::optional(j.at(key).get<double>()) : std::nullopt;
}

ChartOptions options_of(const json& j) {
  ChartOptions o;
  o.title = j.value("title", ""), o.x_label = j.value("x_label", ""), o.y_label = j.value("y_label", "");
  o.width = j.value("width", 560), o.height = j.value("height", 360);
  o.log_x = j.value("log_x", false), o.log_y = j.value("log_y", false), o.markers = j.value("markers", false);
  o.x_min = number_of(j, "x_min"), o.x_max = number_of(j, "x_max"), o.y_min = number_of(j, "y_min"), o.y_max = number_of(j, "y_max");
  return o;
}

std::string lines(const json& chart) {
  std::vector<Series> all;
  for (const json& s : chart.at("series"))
    all.push_back({s.value("name", ""), numbers_of(s, "x"), numbers_of(s, "y"), s.value("color", ""), s.value("dashed", false), numbers_of(s, "low"), numbers_of(s, "high")});
  return line_chart(options_of(chart), all);
}

std::string bars(const json& chart) {
  std::vector<Bar> all;
  for (const json& b : chart.at("bars"))
    all.push_back({b.at("label"), number_of(b, "value").value_or(kNan), b.value("note", ""), number_of(b, "low"), number_of(b, "high"), b.value("color", "")});
  return bar_chart(options_of(chart), all);
}

struct Block {
  double start = 0, end = 0;
};

// Neighbours that no eye could tell apart become one block: a trace has thousands of kernels.
std::vector<Block> merged(std::vector<Block> all, double nearness) {
  std::ranges::sort(all, {}, &Block::start);
  std::vector<Block> out;
  for (const Block& b : all) {
    if (!out.empty() && b.start - out.back().end <= nearness) out.back().end = std::max(out.back().end, b.end);
    else out.push_back(b);
  }
  return out;
}

constexpr std::array kLanes{"compute", "upload", "download", "host", "disk"};

// The events of the last whole step of a trace: microseconds since it began.
struct StepTrace {
  double start = 0, length = 0, loss = kNan;
  std::map<std::string, std::vector<Block>> lanes;
};

// Synchronous runs have all on one stream: what it does in place of the others.
const char* stream_of(const std::string& event) {
  if (event.starts_with("upload") || event == "unstash") return "upload";
  if (event.starts_with("download") || event == "stash") return "download";
  return event == "adamw" || event == "gradient norm" || event == "step end" ? "host" : "compute";
}

StepTrace last_step(const json& trace) {
  StepTrace step;
  std::map<int64_t, std::string> names;
  const json& events = trace.at("traceEvents");
  bool one_stream = true;
  for (const json& e : events) {
    if (e.value("name", "") == "thread_name") names[e.at("tid").get<int64_t>()] = e.at("args").at("name").get<std::string>();
    if (e.value("ph", "") == "X" && e.value("cat", "") == "step" && e.at("ts").get<double>() >= step.start)
      step.start = e.at("ts").get<double>(), step.length = e.at("dur").get<double>();
    if (e.value("cat", "") == "upload") one_stream = false;
  }
  for (const json& e : events) {
    if (e.value("ph", "") != "X" || e.value("cat", "") == "step") continue;
    const double start = e.at("ts").get<double>() - step.start, end = start + e.at("dur").get<double>();
    if (end <= 0 || start >= step.length) continue;
    if (e.value("name", "") == "velocity_loss") step.loss = start;
    step.lanes[one_stream ? stream_of(e.value("name", "")) : names[e.at("tid").get<int64_t>()]].push_back({std::max(start, 0.0), std::min(end, step.length)});
  }
  return step;
}

}  // namespace

std::string timeline_svg(const json& trace, const std::string& title, int width) {
  constexpr double kLeft = 92, kRow = 26, kTop = 50;
  const StepTrace step = last_step(trace);
  std::vector<std::string> shown;
  for (const char* lane : kLanes)
    if (step.lanes.contains(lane)) shown.emplace_back(lane);
  const double right = width - 60, bottom = kTop + kRow * static_cast<double>(shown.size()), height = bottom + 44;
  std::string out = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" viewBox=\"0 0 {0} {1:.0f}\" role=\"img\" "
                                "font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif\" font-size=\"12\">\n"
                                "<rect width=\"{0}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n"
                                "<text x=\"16\" y=\"24\" font-size=\"15\" font-weight=\"600\" fill=\"#1f2933\">{2}</text>\n", width, height, escape_xml(title));
  if (step.length <= 0) return out + "<text x=\"16\" y=\"60\" fill=\"#616e7c\">no step</text></svg>\n";
  const double scale = (right - kLeft) / step.length;
  const bool seconds = step.length >= 2e6;
  for (const double t : nice_ticks(0, step.length / (seconds ? 1e6 : 1e3), 6)) {
    const double x = kLeft + t * (seconds ? 1e6 : 1e3) * scale;
    out += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#e4e7eb\"/><text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\" fill=\"#616e7c\">{4:g}</text>\n", x, kTop, bottom, bottom + 16, t);
  }
  out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#616e7c\">{}</text>\n", (kLeft + right) / 2, bottom + 34, seconds ? "seconds since the step began" : "milliseconds since the step began");
  for (size_t i = 0; i < shown.size(); ++i) {
    const double y = kTop + kRow * static_cast<double>(i);
    double busy = 0;
    for (const Block& b : merged(step.lanes.at(shown[i]), 0)) busy += b.end - b.start;
    std::string path;
    for (const Block& b : merged(step.lanes.at(shown[i]), 0.5 / scale))
      path += fmt::format("M{:.1f} {:.1f}h{:.1f}v16h-{:.1f}z", kLeft + b.start * scale, y + 5, std::max((b.end - b.start) * scale, 0.4), std::max((b.end - b.start) * scale, 0.4));
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#1f2933\">{}</text><path d=\"{}\" fill=\"{}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#616e7c\">{:.0f}%</text>\n",
                       kLeft - 8, y + 17, shown[i], path, palette_color(i), right + 8, y + 17, 100 * busy / step.length);
  }
  if (std::isfinite(step.loss)) {
    const double x = kLeft + step.loss * scale;
    out += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#1f2933\" stroke-dasharray=\"3 3\"/><text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\" fill=\"#1f2933\" font-size=\"11\">loss</text>\n", x, kTop - 2, bottom, kTop - 5);
  }
  return out + "</svg>\n";
}

std::string chart_svg(const json& chart, const std::string& folder) {
  try {
    const std::string kind = chart.at("kind");
    if (kind == "line") return lines(chart);
    if (kind == "bar") return bars(chart);
    if (kind == "timeline") return timeline_svg(read_json(folder + "/" + chart.at("trace").get<std::string>()), chart.value("title", ""), chart.value("width", 1080));
    if (kind == "svg") return read_file(folder + "/" + chart.at("file").get<std::string>(), 4 << 20);
    throw Error(fmt::format("chart of kind \"{}\"", kind), "line, bar, timeline and svg are drawn");
  } catch (const json::exception& e) {
    throw Error(fmt::format("chart \"{}\": {}", chart.value("name", "?"), e.what()), "make its target again");
  }
}

}  // namespace megaslide
