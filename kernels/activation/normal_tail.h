// The tail of the normal distribution as a polynomial: what GELU in its exact form needs on every device.
#pragma once

namespace megaslide {

// Φ(−a) e^(a²/2) = t · Σ_i power[i] t^i, t = 1 / (1 + spread · a), a in [0, 13.4]: a fit of least relative error (3.5e-9 before
// rounding), lowest power first.
struct NormalTail {
  static constexpr int kPowers = 10;
  float spread, power[kPowers];
};
inline constexpr NormalTail kNormalTail{
    0.3F,
    {0.11968652F, 0.11957491F, 0.11021105F, 0.07849749F, 0.09586025F, -0.0788967F, 0.19117883F, -0.22777793F, 0.11225738F, -0.020591807F}};

}  // namespace megaslide
