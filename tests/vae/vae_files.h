// The tiny autoencoders of tests/data/vae (README there), and copies of them that a test may damage.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/philox.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/wan_vae.h"

namespace megaslide::testing_support {

inline std::string vae_data(const std::string& kind) { return std::string(MEGASLIDE_TEST_DATA) + "/vae/" + kind; }

// ‖a − b‖ / ‖b‖ over fp32 values.
inline double distance(const float* a, const float* b, int64_t n) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / norm);
}
inline double distance(const HostTensor& a, const HostTensor& b) {
  return a.elements() == b.elements() ? distance(a.f32(), b.f32(), b.elements()) : INFINITY;
}

// A tensor of a golden file without its batch axis of 1.
inline HostTensor golden(const SafetensorsFile& file, const std::string& name) {
  TensorView v = file.view(name);
  v.shape.erase(v.shape.begin());
  return HostTensor::from(v);
}

inline HostTensor clamped(HostTensor t) {
  for (int64_t i = 0; i < t.elements(); ++i) t.f32()[i] = std::min(1.0f, std::max(-1.0f, t.f32()[i]));
  return t;
}

inline HostTensor random_tensor(Shape shape, uint64_t series, double deviation = 1) {
  HostTensor t(DType::kF32, std::move(shape));
  const Random random(11, RandomPurpose::kTest);
  for (int64_t i = 0; i < t.elements(); ++i)
    t.f32()[i] = static_cast<float>(deviation * random.normal(series, static_cast<uint64_t>(i)));
  return t;
}

// The first `frames` of [C, T, H, W].
inline HostTensor first_frames(const HostTensor& t, int64_t frames) {
  const Shape& s = t.shape();
  HostTensor out(DType::kF32, {s[0], frames, s[2], s[3]});
  const int64_t plane = s[2] * s[3];
  for (int64_t c = 0; c < s[0]; ++c)
    std::copy_n(t.f32() + c * s[1] * plane, frames * plane, out.f32() + c * frames * plane);
  return out;
}

}  // namespace megaslide::testing_support
