// Small charts as SVG text: for loss curves, benchmark plots and HTML reports. The text is self-contained (no script,
// no style sheet, no outside reference), so it can be a file of its own or stand inside an HTML page.
//
// Every function copes with what measurements really hold: no series, series without points, x and y of different
// length (the shorter counts), NaN and infinite values (a gap in the line), one point, equal values, ranges up to the
// limits of double, zero or negative values on a log axis (a gap). Text is escaped; bytes that are no UTF-8 become
// U+FFFD.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megaslide {

struct ChartOptions {
  std::string title = {}, x_label = {}, y_label = {};
  int width = 720, height = 360;  // CSS pixels; at least 160 x 120 is used
  bool log_x = false, log_y = false;
  bool markers = false;    // a dot at each point, with its value as a tooltip; always for lone points
  bool background = true;  // a white sheet behind the chart
  std::optional<double> x_min = {}, x_max = {}, y_min = {}, y_max = {};  // fixed ends of an axis; else from the data
};

// One line of a chart. Without x the points stand at 0, 1, 2 ...
struct Series {
  std::string name = {};  // in the legend; an empty one is left out
  std::vector<double> x = {}, y = {};
  std::string color = {};  // "#rrggbb"; empty takes the next of the palette
  bool dashed = false;
  std::vector<double> low = {}, high = {};  // a shaded band around the line, as long as y, or empty
};

std::string line_chart(const ChartOptions& options, const std::vector<Series>& series);

// A horizontal bar with an optional interval [low, high] as a whisker. A value that is not finite draws no bar, only
// the note. `note` stands right of the bar ("0.9702", "withheld: ...").
struct Bar {
  std::string label = {};
  double value = 0;
  std::string note = {};
  std::optional<double> low = {}, high = {};
  std::string color = {};
};

// Bars from zero, one a row. options.height is ignored: the height follows from the number of bars.
std::string bar_chart(const ChartOptions& options, const std::vector<Bar>& bars);

// An axis of a radar chart, from `centre` to `rim`; `note` is printed under the label (the bounds of a score).
struct RadarAxis {
  std::string label = {}, note = {};
};
struct RadarSeries {
  std::string name = {};
  std::vector<double> values = {};  // one an axis, cut to 0 (centre) .. 1 (rim); NaN: no value
  std::string color = {};
};

std::string radar_chart(const ChartOptions& options, const std::vector<RadarAxis>& axes,
                        const std::vector<RadarSeries>& series);

// "&<>\"'" escaped, characters that XML forbids dropped, bytes that are no UTF-8 replaced by U+FFFD.
std::string escape_xml(std::string_view text);

// Round values (1, 2, 5 times a power of ten) within [low, high], about `count` of them; low < high, both finite.
std::vector<double> nice_ticks(double low, double high, int count);

// The colour of series `index`, "#rrggbb": eight that stay apart for the colour-blind, then again.
std::string_view palette_color(size_t index);

}  // namespace megaslide
