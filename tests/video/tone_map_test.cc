#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "io/video_tone_map.h"

namespace megaslide {
namespace {

using Triple = std::array<double, 3>;

// The formulas of the header in doubles, without tables.
Triple plain(const ToneMapSpec& spec, const Triple& signal) {
  Triple v{};
  for (size_t c = 0; c < 3; ++c)
    v[c] = spec.curve == LightCurve::kPq ? pq_to_light(signal[c]) : spec.curve == LightCurve::kHlg ? hlg_to_scene(signal[c]) : std::pow(signal[c], 2.4);
  if (spec.curve == LightCurve::kHlg) {
    const double y = 0.2627 * v[0] + 0.6780 * v[1] + 0.0593 * v[2];
    for (double& x : v) x *= 1000 * std::pow(y, 0.2);
  }
  if (spec.curve != LightCurve::kSdr) {
    const double most = std::max({v[0], v[1], v[2], 1e-9}), to = compress_to_reference_white(most, spec.curve == LightCurve::kHlg ? 1000 : spec.peak);
    for (double& x : v) x *= to / most / ToneMapper::kReferenceWhite;
  }
  Triple w = v;
  if (spec.primaries == Primaries::kBt2020)
    w = {1.6605 * v[0] - 0.5876 * v[1] - 0.0728 * v[2], -0.1246 * v[0] + 1.1329 * v[1] - 0.0083 * v[2], -0.0182 * v[0] - 0.1006 * v[1] + 1.1187 * v[2]};
  if (spec.primaries == Primaries::kDisplayP3)
    w = {1.2249 * v[0] - 0.2249 * v[1], -0.0420 * v[0] + 1.0420 * v[1], -0.0197 * v[0] - 0.0786 * v[1] + 1.0983 * v[2]};
  const double y = std::clamp(0.2126 * w[0] + 0.7152 * w[1] + 0.0722 * w[2], 0.0, 1.0);
  double keep = 1;
  for (const double x : w) keep = std::min({keep, x < 0 ? y / (y - x) : 1, x > 1.0001 ? (1.0001 - y) / (x - y) : 1});
  for (double& x : w) x = 255 * std::pow(std::clamp(y + keep * (x - y), 0.0, 1.0), 1 / 2.4);
  return w;
}

TEST(ToneMap, KnownPoints) {
  EXPECT_NEAR(pq_to_light(1), 10000, 1e-6);
  EXPECT_NEAR(light_to_pq(100), 0.508, 5e-4);  // BT.2408's table: 100 cd/m2 is 51%, 203 is 58%
  EXPECT_NEAR(light_to_pq(203), 0.581, 5e-4);
  EXPECT_NEAR(pq_to_light(light_to_pq(37.5)), 37.5, 1e-9);
  EXPECT_NEAR(hlg_to_scene(0.5), 1.0 / 12, 1e-9);
  EXPECT_NEAR(hlg_to_scene(1), 1, 1e-6);
  EXPECT_NEAR(1000 * std::pow(hlg_to_scene(0.75), 1.2), 203, 1);  // BT.2408: 75% HLG is the reference white
}

TEST(ToneMap, CurveKeepsTheDarkAndEndsAtWhite) {
  for (const double peak : {400.0, 1000.0, 4000.0, 10000.0}) {
    EXPECT_NEAR(compress_to_reference_white(peak, peak), 203, 1e-6);
    EXPECT_NEAR(compress_to_reference_white(2 * peak, peak), 203, 1e-6);
    EXPECT_EQ(compress_to_reference_white(5, peak), 5) << "below the knee nothing changes";
    double before = 0;
    for (double light = 0.01; light < peak; light *= 1.05) {
      const double now = compress_to_reference_white(light, peak);
      EXPECT_GT(now, before);
      EXPECT_LE(now, light * (1 + 1e-9));
      before = now;
    }
  }
  EXPECT_EQ(compress_to_reference_white(150, 180), 150) << "a peak below the reference white";
}

TEST(ToneMap, TablesFollowTheFormulas) {
  for (const LightCurve curve : {LightCurve::kSdr, LightCurve::kPq, LightCurve::kHlg})
    for (const Primaries primaries : {Primaries::kBt709, Primaries::kBt2020, Primaries::kDisplayP3}) {
      const ToneMapSpec spec{curve, primaries, 1000};
      const ToneMapper mapper(spec);
      double worst = 0;
      uint32_t state = 7;
      for (int i = 0; i < 3000; ++i) {
        uint16_t in[3];
        for (uint16_t& x : in) x = static_cast<uint16_t>((state = state * 1664525u + 1013904223u) >> 16);
        uint8_t out[3];
        mapper.convert(in, 1, out);
        const Triple want = plain(spec, {in[0] / 65535.0, in[1] / 65535.0, in[2] / 65535.0});
        for (size_t c = 0; c < 3; ++c) worst = std::max(worst, std::abs(out[c] - want[c]));
      }
      // Half a level of rounding and one of the tables and floats, which show where the display's curve is steep, near black.
      EXPECT_LE(worst, 1.5) << static_cast<int>(curve) << static_cast<int>(primaries);
    }
}

TEST(ToneMap, GreyStaysGreyAndSdrStaysItself) {
  const ToneMapper wide({LightCurve::kSdr, Primaries::kBt2020, 0}), hlg({LightCurve::kHlg, Primaries::kBt2020, 0});
  for (int level = 0; level < 256; level += 5) {
    const auto s = static_cast<uint16_t>(level * 257);
    const uint16_t in[3] = {s, s, s};
    uint8_t out[3];
    wide.convert(in, 1, out);
    for (const uint8_t x : out) EXPECT_NEAR(x, level, 1);
    hlg.convert(in, 1, out);
    EXPECT_NEAR(out[0], out[1], 1);
    EXPECT_NEAR(out[1], out[2], 1);
  }
}

}  // namespace
}  // namespace megaslide
