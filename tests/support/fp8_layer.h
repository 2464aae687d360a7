// A linear layer in 8 bits: memory for quantised operands, and the product of their codes by definition.
#pragma once
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/gemm_fp8/e4m3.h"
#include "kernels/gemm_fp8/gemm_fp8.h"
#include "tests/support/elementwise.h"

namespace megaslide::testing_support {

// Memory of quantised operands, full of what is no number.
class Fp8Memory {
 public:
  explicit Fp8Memory(int64_t bytes) : memory_(static_cast<size_t>(bytes) / sizeof(Unit)) {
    std::memset(static_cast<void*>(memory_.data()), 0xff, static_cast<size_t>(bytes));
  }
  void* data() { return memory_.data(); }
  const Fp8Header& header() const { return *reinterpret_cast<const Fp8Header*>(memory_.data()); }
  // What n codes stand for but for the scale, as the CPU and as CUDA keep them.
  std::vector<float> cpu_values(int64_t n) const {
    std::vector<bf16> v(static_cast<size_t>(n));
    if (n > 0) std::memcpy(v.data(), &header() + 1, v.size() * sizeof(bf16));
    return widened(v);
  }
  std::vector<float> cuda_values(int64_t n) const {
    std::vector<float> v(static_cast<size_t>(n));
    const auto* codes = reinterpret_cast<const uint8_t*>(&header() + 1);
    for (size_t i = 0; i < v.size(); ++i) v[i] = from_e4m3(codes[i]);
    return v;
  }

 private:
  struct alignas(256) Unit {
    std::byte bytes[256];
  };
  std::vector<Unit> memory_;
};

struct Fp8Case {
  std::string name;
  float x, w;  // deviations of the operands
};
// Of the usual size; one operand huge, the other tiny; one below the normal numbers; all zeros.
inline const std::vector<Fp8Case> kFp8Cases = {{"usual", 1, 0.02f}, {"huge", 0x1p120f, 0x1p-100f}, {"tiny", 0x1p-133f, 0x1p20f}, {"zero", 0, 1}};

struct Fp8Shape {
  int64_t m, n, k;
};
// One number; a row; odd sizes; multiples of 16, of four, with more rows than are scaled at a time; a long sum.
inline constexpr Fp8Shape kFp8Shapes[] = {{1, 1, 1}, {1, 64, 96}, {7, 13, 29}, {40, 20, 36}, {270, 48, 32}, {9, 16, 608}};

// ‖a − b‖ / ‖b‖ in fp64, 0 of nothing but zeros: squares of huge and tiny numbers.
inline double wide_error(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += b[i] * b[i];
  }
  if (a.size() != b.size()) return INFINITY;
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

struct Fp8Layer {
  Fp8Layer(const Fp8Shape& s, const Fp8Case& c)
      : m(s.m), n(s.n), k(s.k), x(rounded(normals(m * k, 1, static_cast<double>(c.x)))), w(rounded(normals(n * k, 2, static_cast<double>(c.w)))),
        b(rounded(normals(n, 3, static_cast<double>(c.x) * static_cast<double>(c.w)))) {}
  // Rows from `first` on of the product of the operands' codes, by their values and scales.
  std::vector<double> product(const std::vector<float>& cx, double sx, const std::vector<float>& cw, double sw, bool bias, int64_t first) const {
    std::vector<double> y;
    for (int64_t i = first; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t t = 0; t < k; ++t) sum += static_cast<double>(cx[static_cast<size_t>(i * k + t)]) * static_cast<double>(cw[static_cast<size_t>(j * k + t)]);
        y.push_back(sx * sw * sum + (bias ? static_cast<double>(to_float(b[static_cast<size_t>(j)])) : 0.0));
      }
    return y;
  }
  int64_t m, n, k;
  std::vector<bf16> x, w, b;
};

}  // namespace megaslide::testing_support
