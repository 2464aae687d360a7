// Arithmetic of the literal implementations: A::T is the type of all intermediate values, A::round what happens to each
// value that a plain implementation would store.
#pragma once
#include "tensor/dtype.h"

namespace megaslide {

struct ArithF64 {
  using T = double;
  static double round(double x) { return x; }
};
struct ArithF32 {
  using T = float;
  static float round(float x) { return x; }
};
// Plain 16-bit computation: fp32 arithmetic, every stored intermediate rounded to bf16.
struct ArithBf16 {
  using T = float;
  static float round(float x) { return to_float(to_bf16(x)); }
};

template <class T>
T widen_to(double x) { return static_cast<T>(x); }
template <class T>
T widen_to(float x) { return static_cast<T>(x); }
template <class T>
T widen_to(bf16 x) { return static_cast<T>(to_float(x)); }

}  // namespace megaslide
