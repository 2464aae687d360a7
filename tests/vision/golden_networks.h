// The tiny networks of tests/data/vbench under their published names, whole and altered.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/vision/golden_tensors.h"
#include "vision/network_weights.h"

namespace megaslide {

inline std::string vbench_data(const std::string& name) { return vbench_file(name + ".safetensors"); }
inline NetworkWeights vbench_weights(const std::string& name) { return NetworkWeights::open(vbench_data(name)); }
inline HostTensor vbench_golden(const std::string& file, const std::string& name) { return read_f32(SafetensorsFile::open(vbench_data(file)), name); }

inline bool same_bits(const HostTensor& a, const HostTensor& b) {
  return a.shape() == b.shape() && std::equal(a.data(), a.data() + a.bytes(), b.data());
}

// A copy of a file of weights with one tensor changed: renamed, dropped (an empty new name) or reshaped to one dimension.
class AlteredWeights {
 public:
  explicit AlteredWeights(const std::string& file) : file_(SafetensorsFile::open(vbench_data(file))) {
    for (const TensorInfo& t : file_.tensors()) tensors_.emplace_back(t.name, file_.view(t));
  }
  AlteredWeights& rename(const std::string& from, const std::string& to) {
    at(from).first = to;
    return *this;
  }
  AlteredWeights& drop(const std::string& name) {
    std::erase_if(tensors_, [&](const auto& t) { return t.first == name; });
    return *this;
  }
  AlteredWeights& flatten(const std::string& name) {
    TensorView& v = at(name).second;
    v.shape.assign(1, v.elements());
    return *this;
  }
  AlteredWeights& add(const std::string& name, const HostTensor& t) {
    tensors_.emplace_back(name, t.view());
    return *this;
  }
  NetworkWeights write(const std::string& path) const {
    write_safetensors(path, tensors_);
    return NetworkWeights::open(path);
  }

 private:
  std::pair<std::string, TensorView>& at(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.first == name; });
  }
  SafetensorsFile file_;
  std::vector<std::pair<std::string, TensorView>> tensors_;
};

}  // namespace megaslide
