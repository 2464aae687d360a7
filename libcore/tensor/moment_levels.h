// Values of the levels in which 8-bit moments are kept: blocks of consecutive elements of a parameter with an fp32 scale each
// (kernels/adamw/adamw.h has the codec, io/model_directory.h the tensors of a checkpoint).
#pragma once
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace megaslide {

inline constexpr int64_t kMomentBlock = 256;
constexpr int64_t moment_blocks(int64_t n) { return (n + kMomentBlock - 1) / kMomentBlock; }

inline constexpr float kMLevels = 127, kVLevels = 255;
// levels² times this is exactly 1: the value of the largest level is the scale itself.
inline constexpr float kMUnit = 1 / (kMLevels * kMLevels), kVUnit = 1 / (kVLevels * kVLevels);
static_assert(kMLevels * kMLevels * kMUnit == 1 && kVLevels * kVLevels * kVUnit == 1);

// m = s·sign(q)·(q/127)²
MS_HOST_DEVICE inline float m_value(int8_t q, float scale) {
  const auto x = static_cast<float>(q);
  return x * std::abs(x) * kMUnit * scale;
}
// sqrt(v) = s·(q/255)²
MS_HOST_DEVICE inline float v_value(uint8_t q, float scale) {
  const auto x = static_cast<float>(q);
  const float root = x * x * kVUnit * scale;
  return root * root;
}

}  // namespace megaslide
