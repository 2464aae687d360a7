// For the tests of elementwise kernels: random vectors, errors, and every instruction set a kernel is compiled for.
#pragma once
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/philox.h"
#include "kernels/stream.h"
#include "tensor/dtype.h"

namespace megaslide::testing_support {

inline std::vector<float> normals(int64_t n, uint64_t series, double deviation = 1, double mean = 0) {
  const Random random(7, RandomPurpose::kTest);
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(mean + deviation * random.normal(series, i));
  return v;
}

inline std::vector<bf16> rounded(const std::vector<float>& v) {
  std::vector<bf16> r(v.size());
  for (size_t i = 0; i < v.size(); ++i) r[i] = to_bf16(v[i]);
  return r;
}

inline std::vector<float> widened(const std::vector<bf16>& v) {
  std::vector<float> r(v.size());
  for (size_t i = 0; i < v.size(); ++i) r[i] = to_float(v[i]);
  return r;
}

// ‖a − b‖ / ‖b‖
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return a.size() == b.size() ? std::sqrt(difference / norm) : INFINITY;
}

// Runs `body` once an instruction set of this machine, with Highway's choice restricted to it.
template <class F>
void for_each_target(F body) {
  for (const int64_t target :
       {static_cast<int64_t>(HWY_STATIC_TARGET), static_cast<int64_t>(HWY_AVX2), static_cast<int64_t>(HWY_AVX3)}) {
    if (!(hwy::SupportedTargets() & target)) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
}

// fp32 sums of about a thousand terms against fp64.
constexpr double kFp32 = 2e-6;
// One rounding to bf16: 2^-9 at most, half of that in the root mean square.
constexpr double kBf16 = 2.5e-3;

}  // namespace megaslide::testing_support
