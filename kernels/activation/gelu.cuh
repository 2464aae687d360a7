// GELU of activation.h in device code.
#pragma once
#include <cmath>

#include "kernels/device.h"

namespace megaslide {

inline constexpr float kGeluRoot = 0.7978845608028654f, kGeluCubic = 0.044715f;  // √(2/π)

// 1 / (1 + e^(−2u)). The exponent is kept where e^x is a normal number; a factor x brings NaN back.
__device__ __forceinline__ float gelu_sigmoid(float x) {
  const float inner = fmaf(kGeluCubic, x * x, 1.0f);
  return 1 / (1 + expf(fminf(fmaxf(-2 * kGeluRoot * x * inner, -87.0f), 87.0f)));
}

struct GeluSlope {
  float value, slope;
  __device__ explicit GeluSlope(float x) {
    const float s = gelu_sigmoid(x);
    value = x * s;
    slope = fmaf(value * (1 - s), fmaf(6 * kGeluCubic * kGeluRoot, x * x, 2 * kGeluRoot), s);
  }
};

}  // namespace megaslide
