// Sinusoids of moderate angles in device code, in fp64: the library's reduction of huge ones takes a stack.
#pragma once
#include <cmath>

#include "kernels/device.h"

namespace megaslide {

// 10000^−x
__device__ __forceinline__ double frequency(double x) { return exp(x * -9.210340371976184); }

// Of an angle 0 ≤ θ < 2^20: both within 1e-15 + 2e-16 · θ.
struct Sinusoid {
  double cosine, sine;
  __device__ explicit Sinusoid(double theta) {
    // θ = n π/2 + r, |r| ≤ π/4: π/2 in two parts, of which n takes the first exactly up to 2^20.
    constexpr double kTwoOverPi = 0.63661977236758134308, kHigh = 1.57079632673412561417e+00, kLow = 6.07710050650619224932e-11;
    const double n = floor(theta * kTwoOverPi + 0.5), r = (theta - n * kHigh) - n * kLow, s = r * r;
    // Taylor series; the first term left out is below 2e-16.
    constexpr int kTerms = 8;
    double c = 1, d = 1;
    MS_UNROLL
    for (int k = kTerms; k > 0; --k) {
      c = 1 - s / (2 * k * (2 * k - 1)) * c;
      d = 1 - s / (2 * k * (2 * k + 1)) * d;
    }
    d *= r;
    const unsigned quadrant = static_cast<unsigned>(n) % 4;
    cosine = quadrant == 0 ? c : quadrant == 1 ? -d : quadrant == 2 ? -c : d;
    sine = quadrant == 0 ? d : quadrant == 1 ? c : quadrant == 2 ? -d : -c;
  }
};

}  // namespace megaslide
