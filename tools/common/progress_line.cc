#include "common/progress_line.h"

#include <cmath>
#include <map>
#include <memory>

#include "common/output.h"

namespace megaslide {
namespace {

constexpr double kFirstLine = 5, kLineInterval = 15;  // seconds between lines where nothing can be redrawn

std::string amount(double value, const std::string& unit) {
  if (unit == "bytes") {
    static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
    int i = 0;
    for (; value >= 1000 && i < 4; ++i) value /= 1000;
    return fmt::format("{:.{}f} {}", value, i == 0 ? 0 : 1, kUnits[i]);
  }
  return fmt::format("{} {}", std::floor(value), unit);
}

std::string clock_time(double seconds) {
  if (!(seconds < 360000)) return "days";
  const int s = static_cast<int>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

std::string format_progress(const ProgressEvent& e) {
  if (e.finished) return fmt::format("{} {} in {:.1f} s", e.label, amount(e.done, e.unit), e.seconds);
  std::string s = e.label + " ";
  if (e.total > 0 && e.unit != "bytes") s += fmt::format("{}/", std::floor(e.done));
  if (e.total > 0 && e.unit == "bytes") s += amount(e.done, e.unit) + "/";
  s += amount(e.total > 0 ? e.total : e.done, e.unit);
  if (e.total > 0) s += fmt::format(" ({:.0f}%)", 100 * e.done / e.total);
  if (e.rate > 0 && e.unit == "bytes") s += ", " + amount(e.rate, e.unit) + "/s";
  if (e.rate > 0 && e.unit != "bytes") s += fmt::format(", {:.3g} {}/s", e.rate, e.unit);
  if (e.eta >= 0) s += ", " + clock_time(e.eta) + " left";
  if (!e.detail.empty()) s += ", " + e.detail;
  return s;
}

ProgressSink make_progress_sink(ProgressMode mode, bool quiet) {
  if (mode == ProgressMode::kNever || (quiet && mode != ProgressMode::kAlways)) return {};
  if (stderr_is_terminal())
    return [](const ProgressEvent& e) {
      set_status_line(e.finished ? "" : format_progress(e));
      if (e.finished) write_stderr(format_progress(e) + "\n");
    };
  const bool always = mode == ProgressMode::kAlways;
  // When the last line of each label was written, in its own seconds.
  return [always, last = std::make_shared<std::map<std::string, double>>()](const ProgressEvent& e) {
    double& when = last->try_emplace(e.label, 0).first->second;
    const bool due = when == 0 ? e.seconds >= kFirstLine : e.seconds - when >= kLineInterval;
    if (e.finished) {
      if (always || e.seconds >= kFirstLine) write_stderr(format_progress(e) + "\n");
      last->erase(e.label);
    } else if (due) {
      when = e.seconds;
      write_stderr(format_progress(e) + "\n");
    }
  };
}

}  // namespace megaslide
