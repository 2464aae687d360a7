// Frames of golden videos as the networks take them, in fp64 and term by term (spec vbench.md, "Preprocessing").
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "tests/vision/golden_networks.h"

namespace megaslide {

struct ReferencePixels {
  bool cubic;               // else linear, whose source is clamped at 0
  int64_t short_side;
  bool crop;                // the middle square
  double mean[3], deviation[3];
};
inline const ReferencePixels kClipFloat{true, 224, true, {0.48145466, 0.4578275, 0.40821073}, {0.26862954, 0.26130258, 0.27577711}};
inline const ReferencePixels kDino{false, 224, false, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};

inline std::vector<std::pair<int64_t, double>> reference_taps(bool cubic, int64_t i, int64_t from, int64_t to) {
  double source = (static_cast<double>(i) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5;
  if (!cubic) source = std::max(source, 0.0);
  const auto base = static_cast<int64_t>(std::floor(source));
  std::vector<std::pair<int64_t, double>> taps;
  for (int64_t k = -1; k <= 2; ++k) {
    const double x = std::abs(source - static_cast<double>(base + k)), a = -0.75;
    const double weight = !cubic ? std::max(0.0, 1 - x) : x <= 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
    taps.emplace_back(std::clamp<int64_t>(base + k, 0, from - 1), weight);
  }
  return taps;
}

// F32 (frames, 3, h, w) of a uint8 tensor (frames, H, W, 3).
inline HostTensor reference_pixels(const TensorView& video, const ReferencePixels& p) {
  const int64_t frames = video.shape[0], height = video.shape[1], width = video.shape[2], shorter = std::min(height, width);
  const int64_t h = p.short_side * height / shorter, w = p.short_side * width / shorter;
  const int64_t out_h = p.crop ? p.short_side : h, out_w = p.crop ? p.short_side : w;
  const int64_t top = (h - out_h) / 2, left = (w - out_w) / 2;  // even differences: nothing to round
  EXPECT_TRUE((h - out_h) % 2 == 0 && (w - out_w) % 2 == 0);
  const auto* bytes = reinterpret_cast<const uint8_t*>(video.data);
  HostTensor out(DType::kF32, {frames, 3, out_h, out_w});
  for (int64_t y = 0; y < out_h; ++y) {
    const auto rows = reference_taps(p.cubic, y + top, height, h);
    for (int64_t x = 0; x < out_w; ++x) {
      const auto columns = reference_taps(p.cubic, x + left, width, w);
      for (int64_t f = 0; f < frames; ++f)
        for (int64_t c = 0; c < 3; ++c) {
          double sum = 0;
          for (const auto& [row, a] : rows)
            for (const auto& [column, b] : columns) sum += a * b * bytes[((f * height + row) * width + column) * 3 + c];
          out.f32()[((f * 3 + c) * out_h + y) * out_w + x] = static_cast<float>((sum / 255 - p.mean[c]) / p.deviation[c]);
        }
    }
  }
  return out;
}

inline HostTensor golden_pixels(const std::string& file, const ReferencePixels& p) {
  const SafetensorsFile f = SafetensorsFile::open(vbench_data(file));
  return reference_pixels(f.view("video"), p);
}

inline double cosine(const float* a, const float* b, int64_t n) {
  double ab = 0, aa = 0, bb = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    ab += x * y, aa += x * x, bb += y * y;
  }
  return ab / std::sqrt(aa * bb);
}

// One row of ids of a golden's `ids` (n, context).
inline std::vector<int64_t> golden_ids(const std::string& file, int64_t row) {
  const SafetensorsFile f = SafetensorsFile::open(vbench_data(file));
  const TensorView v = f.view("ids");
  EXPECT_EQ(v.dtype, DType::kI32);
  const auto* ids = reinterpret_cast<const int32_t*>(v.data) + row * v.shape[1];
  return {ids, ids + v.shape[1]};
}

}  // namespace megaslide
