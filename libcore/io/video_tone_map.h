// HDR and wide-gamut pictures to SDR BT.709, the colours that 8-bit training clips have.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace megaslide {

enum class LightCurve { kSdr, kPq, kHlg };            // BT.1886; SMPTE ST 2084; ARIB STD-B67
enum class Primaries { kBt709, kBt2020, kDisplayP3 };

struct ToneMapSpec {
  LightCurve curve = LightCurve::kSdr;
  Primaries primaries = Primaries::kBt709;
  double peak = 1000;  // brightest light of the clip in cd/m²; what is brighter is cut. Used with kPq
};

// Each pixel, R'G'B' of 16 bits at full range, becomes 8 bits of BT.709 for a BT.1886 display:
//   1. to light: PQ absolute; HLG through the OOTF of a 1000 cd/m² display (system gamma 1.2, BT.2100); SDR relative
//   2. HDR: the largest of R, G, B goes through BT.2390's EETF (a Hermite spline in PQ values) from the peak to
//      203 cd/m², BT.2408's reference white, which becomes SDR white; R, G, B keep their ratios, hence their hue
//   3. to BT.709's primaries (BT.2087); what lies outside moves towards the grey of its own luminance until it fits
//   4. light^(1/2.4), rounded
// Tables are interpolated: within one level of the formulas.
class ToneMapper {
 public:
  explicit ToneMapper(const ToneMapSpec& spec);
  void convert(const uint16_t* rgb, int64_t pixels, uint8_t* out) const;

  static constexpr double kReferenceWhite = 203;  // cd/m²
  static constexpr double kHlgPeak = 1000;

 private:
  ToneMapSpec spec_;
  std::array<float, 9> matrix_{};         // to BT.709, row by row
  const std::vector<float>& light_;       // of a 16-bit signal; HDR in units of the reference white, HLG before its OOTF
  std::vector<float> gain_;               // of the largest component, by log2
  const std::vector<uint8_t>& display_;   // 8-bit signal by the square root of light
};

// The formulas behind the tables, in cd/m² and signals from 0 to 1.
double pq_to_light(double signal);
double light_to_pq(double light);
double hlg_to_scene(double signal);  // 0 … 1
double compress_to_reference_white(double light, double peak);  // BT.2390's EETF

}  // namespace megaslide
