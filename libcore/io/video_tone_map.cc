#include "io/video_tone_map.h"

#include <algorithm>
#include <cmath>

namespace megaslide {
namespace {

// SMPTE ST 2084.
constexpr double kM1 = 2610.0 / 16384, kM2 = 2523.0 / 4096 * 128, kC1 = 3424.0 / 4096, kC2 = 2413.0 / 4096 * 32, kC3 = 2392.0 / 4096 * 32;
constexpr double kPqPeak = 10000;

constexpr int kSignals = 1 << 16;
constexpr int kGainSteps = 64, kGainLow = -14, kGainHigh = 7;  // octaves around the reference white; 10000 / 203 < 2^6
constexpr int kDisplaySteps = 4095;

std::array<float, 9> to_bt709(Primaries p) {
  switch (p) {
    case Primaries::kBt709: return {1, 0, 0, 0, 1, 0, 0, 0, 1};
    case Primaries::kBt2020: return {1.6605f, -0.5876f, -0.0728f, -0.1246f, 1.1329f, -0.0083f, -0.0182f, -0.1006f, 1.1187f};  // BT.2087
    case Primaries::kDisplayP3: return {1.2249f, -0.2249f, 0, -0.0420f, 1.0420f, 0, -0.0197f, -0.0786f, 1.0983f};
  }
  return {};
}

// Rec. ITU-R BT.709 luminance.
float luminance(const float* v) { return 0.2126f * v[0] + 0.7152f * v[1] + 0.0722f * v[2]; }

// What passes 1 by less is rounding and is cut: near black the display's curve is so steep that moving it towards grey would
// show.
constexpr float kRounding = 1e-4f;

// Towards grey until every component lies between 0 and 1.
void into_gamut(float* v) {
  const float y = std::clamp(luminance(v), 0.0f, 1.0f);
  float keep = 1;
  for (int c = 0; c < 3; ++c) {
    const float d = v[c] - y;
    if (v[c] < 0 && d < 0) keep = std::min(keep, -y / d);
    if (v[c] > 1 + kRounding && d > 0) keep = std::min(keep, (1 + kRounding - y) / d);
  }
  for (int c = 0; c < 3; ++c) v[c] = std::clamp(y + keep * (v[c] - y), 0.0f, 1.0f);
}

std::vector<float> make_light(LightCurve curve) {
  std::vector<float> light(kSignals);
  for (int i = 0; i < kSignals; ++i) {
    const double s = i / double{kSignals - 1};
    double value = std::pow(s, 2.4);
    if (curve == LightCurve::kPq) value = pq_to_light(s) / ToneMapper::kReferenceWhite;
    if (curve == LightCurve::kHlg) value = hlg_to_scene(s);
    light[static_cast<size_t>(i)] = static_cast<float>(value);
  }
  return light;
}

// The tables that do not depend on a clip are made once: a set of them takes longer than a small clip's decoding.
const std::vector<float>& light_of(LightCurve curve) {
  if (curve == LightCurve::kPq) {
    static const std::vector<float> pq = make_light(curve);
    return pq;
  }
  if (curve == LightCurve::kHlg) {
    static const std::vector<float> hlg = make_light(curve);
    return hlg;
  }
  static const std::vector<float> sdr = make_light(LightCurve::kSdr);
  return sdr;
}

const std::vector<uint8_t>& display_of_root() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> display(kDisplaySteps + 1);
    for (int i = 0; i <= kDisplaySteps; ++i)
      display[static_cast<size_t>(i)] = static_cast<uint8_t>(std::lround(255 * std::pow(i / double{kDisplaySteps}, 2 / 2.4)));
    return display;
  }();
  return table;
}

}  // namespace

double pq_to_light(double signal) {
  const double p = std::pow(std::max(signal, 0.0), 1 / kM2);
  return kPqPeak * std::pow(std::max(p - kC1, 0.0) / (kC2 - kC3 * p), 1 / kM1);
}

double light_to_pq(double light) {
  const double p = std::pow(std::max(light, 0.0) / kPqPeak, kM1);
  return std::pow((kC1 + kC2 * p) / (1 + kC3 * p), kM2);
}

double hlg_to_scene(double signal) {
  constexpr double a = 0.17883277, b = 1 - 4 * a;
  const double c = 0.5 - a * std::log(4 * a);
  return signal <= 0.5 ? signal * signal / 3 : (std::exp((signal - c) / a) + b) / 12;
}

double compress_to_reference_white(double light, double peak) {
  const double white = ToneMapper::kReferenceWhite;
  if (peak <= white) return std::min(light, white);
  const double top = light_to_pq(peak), most = light_to_pq(white) / top, knee = 1.5 * most - 0.5;
  const double e = std::min(light_to_pq(light) / top, 1.0);
  if (e < knee) return light;
  const double t = (e - knee) / (1 - knee), t2 = t * t, t3 = t2 * t;
  const double p = (2 * t3 - 3 * t2 + 1) * knee + (t3 - 2 * t2 + t) * (1 - knee) + (-2 * t3 + 3 * t2) * most;
  return pq_to_light(p * top);
}

ToneMapper::ToneMapper(const ToneMapSpec& spec)
    : spec_(spec), matrix_(to_bt709(spec.primaries)), light_(light_of(spec.curve)), display_(display_of_root()) {
  if (spec.curve != LightCurve::kSdr) {
    const double peak = spec.curve == LightCurve::kHlg ? kHlgPeak : spec.peak;
    for (int i = 0; i <= (kGainHigh - kGainLow) * kGainSteps + 1; ++i) {
      const double light = std::exp2(kGainLow + i / double{kGainSteps}) * kReferenceWhite;
      gain_.push_back(static_cast<float>(compress_to_reference_white(light, peak) / light));
    }
  }
}

void ToneMapper::convert(const uint16_t* rgb, int64_t pixels, uint8_t* out) const {
  for (int64_t i = 0; i < pixels; ++i, rgb += 3, out += 3) {
    float v[3] = {light_[rgb[0]], light_[rgb[1]], light_[rgb[2]]};
    float gain = 1;
    if (spec_.curve == LightCurve::kHlg) {  // the OOTF, with BT.2020's luminance
      const float y = 0.2627f * v[0] + 0.6780f * v[1] + 0.0593f * v[2];
      gain = static_cast<float>(kHlgPeak / kReferenceWhite) * std::pow(y, 0.2f);
    }
    if (!gain_.empty()) {
      const float most = gain * std::max({v[0], v[1], v[2]});
      const float at = (std::log2(std::max(most, 1e-6f)) - kGainLow) * kGainSteps;
      const float clamped = std::clamp(at, 0.0f, float{(kGainHigh - kGainLow) * kGainSteps});
      const auto k = static_cast<size_t>(clamped);
      gain *= gain_[k] + (clamped - static_cast<float>(k)) * (gain_[k + 1] - gain_[k]);
    }
    const float* m = matrix_.data();
    float w[3];
    for (int c = 0; c < 3; ++c) w[c] = gain * (m[3 * c] * v[0] + m[3 * c + 1] * v[1] + m[3 * c + 2] * v[2]);
    into_gamut(w);
    for (int c = 0; c < 3; ++c) out[c] = display_[static_cast<size_t>(std::sqrt(w[c]) * kDisplaySteps + 0.5f)];
  }
}

}  // namespace megaslide
