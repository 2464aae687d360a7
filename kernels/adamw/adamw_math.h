// One element of the AdamW update, and the fixed tree of a sum: what every instruction set must reproduce.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/adamw/adamw.h"
#include "kernels/adamw/codec_math.h"

namespace megaslide::adamw {

inline constexpr int64_t kNormBlock = 16384;  // elements a leaf of the tree
inline constexpr int kNormLanes = 16;

// Powers by repeated squaring: plain IEEE products, unlike a library's pow.
inline double integer_power(double x, int64_t n) {
  double r = 1;
  for (; n > 0; n >>= 1, x *= x)
    if (n & 1) r *= x;
  return r;
}

struct Coefficients {
  explicit Coefficients(const AdamWStep& s)
      : clip(s.clip),
        b1(static_cast<float>(s.beta1)),
        a1(static_cast<float>(1 - s.beta1)),
        b2(static_cast<float>(s.beta2)),
        a2(static_cast<float>(1 - s.beta2)),
        decay(static_cast<float>(s.learning_rate * s.weight_decay)),
        rate(static_cast<float>(s.learning_rate / (1 - integer_power(s.beta1, s.step)))),
        inverse_root(static_cast<float>(1 / std::sqrt(1 - integer_power(s.beta2, s.step)))),
        eps(static_cast<float>(s.eps)) {}
  float clip, b1, a1, b2, a2, decay, rate, inverse_root, eps;
};

MS_HOST_DEVICE inline void update_moments(const Coefficients& c, float& m, float& v, float gradient) {
  const float g = c.clip * gradient;
  m = canonical(std::fma(c.b1, m, c.a1 * g));
  v = canonical(std::fma(c.b2, v, (c.a2 * g) * g));
}
// The new master; root = sqrt(v).
MS_HOST_DEVICE inline float update_master(const Coefficients& c, float p, float m, float root) {
  const float kept = std::fma(-c.decay, p, p);
  return canonical(std::fma(-c.rate, m / std::fma(root, c.inverse_root, c.eps), kept));
}
// m and v in place; returns the new master.
MS_HOST_DEVICE inline float update(const Coefficients& c, float p, float& m, float& v, float gradient) {
  update_moments(c, m, v, gradient);
  return update_master(c, p, m, std::sqrt(v));
}

// Sum of a leaf's lanes; overwrites them.
inline double add_lanes(double (&lanes)[kNormLanes]) {
  for (int half = kNormLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

// Sum of the leaves, neighbours first; overwrites them.
inline double add_leaves(double* leaf, size_t n) {
  if (n == 0) return 0;
  for (; n > 1; n = (n + 1) / 2)
    for (size_t i = 0; i < n; i += 2) leaf[i / 2] = i + 1 < n ? leaf[i] + leaf[i + 1] : leaf[i];
  return leaf[0];
}

}  // namespace megaslide::adamw
