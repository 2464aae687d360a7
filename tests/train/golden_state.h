// Comparing a training state with stored reference values.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "io/model_directory.h"
#include "io/parameter_reader.h"

namespace megaslide::testing {

// A folder of the whole reference data, or empty: it is not at hand.
inline std::string golden_folder(const std::string& name) {
  const char* golden = std::getenv("MEGASLIDE_GOLDEN");
  return golden ? std::string(golden) + "/" + name : std::string();
}

// Relative L2 distance of all parameters ("param"), or moments ("exp_avg", "exp_avg_sq"), together.
inline double state_distance(const ModelDirectory& got, const SafetensorsFile& golden, const std::string& what) {
  double error = 0, norm = 0;
  for (const auto& t : golden.tensors()) {
    if (!t.name.starts_with(what + ".")) continue;
    const std::string name = t.name.substr(what.size() + 1);
    SafetensorsFile file = got.embed();
    for (int64_t part = -1; part <= got.layers(); ++part)
      if (got.part(part).find(name)) file = got.part(part);
    const ParameterReader reader(file, name);
    const HostTensor expected = HostTensor::f32_from(golden.view(t));
    std::vector<float> x(static_cast<size_t>(expected.elements()));
    if (what == "param") reader.master(x.data(), 0, expected.elements());
    if (what == "exp_avg") reader.first_moment(x.data(), 0, expected.elements());
    if (what == "exp_avg_sq") reader.second_moment(x.data(), 0, expected.elements());
    for (size_t i = 0; i < x.size(); ++i) {
      const double e = expected.f32()[i];
      error += (x[i] - e) * (x[i] - e);
      norm += e * e;
    }
  }
  return std::sqrt(error / norm);
}

// Four times the noise of the library's own fp32 run (README beside the data).
inline void expect_golden_state(const ModelDirectory& got, const SafetensorsFile& golden) {
  EXPECT_LT(state_distance(got, golden, "param"), 4 * 3.8e-7);
  EXPECT_LT(state_distance(got, golden, "exp_avg"), 4 * 1.9e-6);
  EXPECT_LT(state_distance(got, golden, "exp_avg_sq"), 4 * 1.9e-6);
}

}  // namespace megaslide::testing
