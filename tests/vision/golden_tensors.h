// Golden tensors of the networks, and the distance of results from them.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "io/safetensors.h"

namespace megaslide {

inline std::string vbench_file(const std::string& name) { return std::string(MEGASLIDE_TEST_DATA) + "/vbench/" + name; }

inline HostTensor vbench_tensor(const std::string& file, const std::string& name) {
  return HostTensor::from(SafetensorsFile::open(vbench_file(file + ".safetensors")).view(name));
}

inline nlohmann::json vbench_json(const std::string& file) {
  std::ifstream in(vbench_file(file + ".json"));
  return nlohmann::json::parse(in);
}

// Largest difference over the largest reference value; infinite where a value is not finite.
inline double distance(const float* got, const float* want, int64_t n) {
  double difference = 0, largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(got[i])) return HUGE_VAL;
    difference = std::max(difference, std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
    largest = std::max(largest, std::fabs(static_cast<double>(want[i])));
  }
  return difference / largest;
}

inline double distance(const HostTensor& got, const HostTensor& want) {
  EXPECT_EQ(got.elements(), want.elements());
  return distance(got.f32(), want.f32(), want.elements());
}

}  // namespace megaslide
