#include "base/svg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace megaslide {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Every tag closed, no number that SVG does not know.
void expect_sound(const std::string& svg) {
  EXPECT_EQ(svg.rfind("<svg xmlns=", 0), 0u);
  EXPECT_EQ(count(svg, "<svg"), count(svg, "</svg>"));
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_EQ(count(svg, "nan"), 0u) << svg;
  EXPECT_EQ(count(svg, "inf"), 0u) << svg;
}

TEST(Svg, LineChartCopesWithWhatMeasurementsHold) {
  const double most = std::numeric_limits<double>::max();
  const std::vector<std::vector<Series>> sets{
      {},
      {{"empty", {}, {}}},
      {{"one", {3}, {5}}},
      {{"equal", {}, {2, 2, 2}}},
      {{"zero", {}, {0, 0}}},
      {{"gaps", {}, {1, kNaN, kInf, 2, -kInf, 3, kNaN}}},
      {{"none", {kNaN}, {kNaN}}},
      {{"huge", {}, {most, -most, 0}}},
      {{"tiny", {}, {5e-324, 1e-323, 0}}},
      {{"close", {}, {1e15, 1e15 + 1}}},
      {{"ragged", {1, 2, 3}, {1}}},
      {{"band", {}, {1, 2, 3}, "", false, {0.5, kNaN, 2.5}, {1.5, 2.5, kInf}}},
      {{"x huge", {-most, most}, {1, 2}}},
  };
  for (const auto& set : sets) {
    for (const bool log : {false, true}) {
      SCOPED_TRACE(set.empty() ? "no series" : set[0].name);
      expect_sound(line_chart({.title = "T", .x_label = "x", .y_label = "y", .log_x = log, .log_y = log}, set));
      expect_sound(line_chart({.width = 1, .height = 1, .log_y = log, .markers = true}, set));
    }
  }
  EXPECT_NE(line_chart({}, {}).find("no data"), std::string::npos);
  EXPECT_NE(line_chart({.log_y = true}, {{"", {}, {-1, 0}}}).find("no data"), std::string::npos);
}

TEST(Svg, GapsSplitTheLineAndLonePointsShow) {
  const std::string svg = line_chart({}, {{"", {}, {1, 2, kNaN, 3, kNaN, 4, 5}}});
  EXPECT_EQ(count(svg, "stroke-linejoin"), 2u);  // two runs of two points
  EXPECT_EQ(count(svg, "<circle"), 1u);          // and one point between gaps
}

TEST(Svg, AMillionPointsStaySmallAndKeepTheSpike) {
  Series s{"loss"};
  for (int i = 0; i < 1000000; ++i) s.y.push_back(i == 654321 ? 100.0 : 1.0 + (i % 7) * 0.01);
  const std::string svg = line_chart({.y_min = 0.0, .y_max = 100.0}, {s});
  EXPECT_LT(svg.size(), 100000u);
  // The spike touches the top of the plot: y of 100, which is the upper end of the axis.
  const Series low{"loss", {}, {0, 100}};
  const std::string two = line_chart({.y_min = 0.0, .y_max = 100.0}, {low});
  const std::string y = two.substr(two.rfind(' ', two.find("\" fill=\"none\" stroke=\"#0b6bcb\"")));
  EXPECT_NE(svg.find(y.substr(0, y.find('"'))), std::string::npos);
}

TEST(Svg, TextIsEscaped) {
  EXPECT_EQ(escape_xml("<a href=\"x\">&'\x01\x07</a>"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(escape_xml("\xC3\xA9 \xFF"), "\xC3\xA9 \xEF\xBF\xBD");
  const std::string svg = line_chart({.title = "</svg><script>"}, {{"<b>", {}, {1}, "\"/><x"}});
  EXPECT_EQ(svg.find("<script>"), std::string::npos);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_EQ(svg.find("<x"), std::string::npos);
}

TEST(Svg, BarsAndRadarCopeToo) {
  expect_sound(bar_chart({}, {}));
  expect_sound(bar_chart({.title = "b"},
                         {{"a", kNaN, "withheld"}, {"b", -0.5, "", -0.7, -0.1}, {"c", 1e300}, {"d", kInf, "x"}}));
  expect_sound(radar_chart({}, {}, {}));
  expect_sound(radar_chart({}, {{"a", ""}}, {{"s", {0.5}}}));
  const std::vector<RadarAxis> axes{{"a", "0 - 1"}, {"b", ""}, {"c", ""}};
  expect_sound(radar_chart({}, axes, {{"s", {0.5, 7, -3}}, {"t", {kNaN, 0.5}}, {"u", {0.1, 0.2, 0.3, 0.4}}}));
  // A polygon claims all axes: with one missing there is none.
  EXPECT_EQ(count(radar_chart({}, axes, {{"s", {0.5, 0.5, 0.5}}}), "fill-opacity"), 1u);
  EXPECT_EQ(count(radar_chart({}, axes, {{"s", {0.5, kNaN, 0.5}}}), "fill-opacity"), 0u);
}

TEST(Svg, TicksAreRoundAndInside) {
  EXPECT_EQ(nice_ticks(0, 1, 5), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0}));
  EXPECT_EQ(nice_ticks(-3, 7, 4), (std::vector<double>{0, 5}));
  EXPECT_TRUE(nice_ticks(1, 1, 4).empty());
  EXPECT_TRUE(nice_ticks(kNaN, 1, 4).empty());
  for (double span : {1e-300, 1e-9, 1.0, 12345.0, 1e300}) {
    const auto ticks = nice_ticks(-span, span, 5);
    EXPECT_GE(ticks.size(), 2u) << span;
    EXPECT_LE(ticks.size(), 12u) << span;
    for (double t : ticks) EXPECT_LE(std::fabs(t), span * 1.001);
  }
}

}  // namespace
}  // namespace megaslide
