// The whole motion term by its definition: projection, term, and their gradients.
#pragma once
#include "attention_check/reference.h"
#include "kernels/attention/arith.h"
#include "kernels/dsa/motion_literal.h"

namespace megaslide {

// The projection's result and all that follows is never 16-bit: A::round sees only what its products read and store.
template <class A>
NamedResults reference_motion(const StoredCase& c) {
  using T = typename A::T;
  const auto get = [&](const char* name) {
    const auto& v = c.at(name);
    return std::vector<T>(v.begin(), v.end());
  };
  const auto x = get("x"), weight = get("motion_proj_weight"), gain = get("gain"), doffsets = get("doffsets");
  auto offsets = get("net_offsets");
  const auto channels = static_cast<size_t>(c.channels), rows = x.size() / channels, outputs = size_t{kMotionChannels};
  std::vector<T> projected(rows * outputs), dx(x.size()), dweight(weight.size());
  for (size_t r = 0; r < rows; ++r)
    for (size_t o = 0; o < outputs; ++o)
      for (size_t i = 0; i < channels; ++i) projected[r * outputs + o] += x[r * channels + i] * weight[o * channels + i];
  const DsaShape shape = c.dsa_shape();
  const auto r = MotionLiteral<T>(shape, projected.data(), static_cast<T>(c.at("s")[0]), gain.data()).run(doffsets.data());
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] += r.offsets[i];
  for (size_t row = 0; row < rows; ++row)
    for (size_t o = 0; o < outputs; ++o) {
      const T dc = A::round(r.dc[row * outputs + o]);
      for (size_t i = 0; i < channels; ++i) {
        dx[row * channels + i] += dc * weight[o * channels + i];
        dweight[o * channels + i] += dc * x[row * channels + i];
      }
    }
  const auto values = [](const std::vector<T>& v) { return std::vector<double>(v.begin(), v.end()); };
  return {{"offsets", values(offsets)}, {"m", values(r.m)}, {"dx", values(dx)}, {"dmotion_proj_weight", values(dweight)},
          {"ds", {static_cast<double>(r.ds)}}, {"dgain", values(r.dgain)}, {"dnet_offsets", values(doffsets)}};
}

}  // namespace megaslide
