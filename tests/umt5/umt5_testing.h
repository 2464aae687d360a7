// The tiny encoder of the reference data, and copies of it in other forms.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/safetensors.h"
#include "model/model_parts.h"
#include "tests/support/temporary_folder.h"

namespace megaslide::umt5_testing {

namespace fs = std::filesystem;

inline const std::string kFolder = MEGASLIDE_TEST_DATA "/umt5";

inline double relative_error(const float* a, const float* b, int64_t n) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference / norm);
}

inline std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

// A model's folder of its own: the tiny one's config and tokenizer; the weights are for the test to write.
class ModelFolder {
 public:
  ModelFolder() {
    for (const std::string f : {"text_encoder/config.json", "tokenizer/spiece.model"}) folder_.copy(kFolder + "/" + f, f);
  }
  const std::string& path() const { return folder_.path(); }
  std::string encoder() const { return folder_ / "text_encoder"; }
  ModelParts parts() const;

 private:
  testing_support::TemporaryFolder folder_;
};

inline ModelParts parts_in(const std::string& folder) {
  ModelConfig config;
  config.name = "tiny-umt5";
  config.text_encoder = TextEncoderKind::kUmt5;
  config.text_dim = 64;
  config.text_len = 512;
  ModelParts parts(config);
  parts.folder = folder;
  return parts;
}
inline ModelParts ModelFolder::parts() const { return parts_in(path()); }

// The tiny encoder's tensors in memory, to be written again with changes.
struct Tensors {
  Tensors() {
    const auto file = SafetensorsFile::open(kFolder + "/text_encoder/model.safetensors");
    for (const TensorInfo& t : file.tensors()) list.emplace_back(t.name, HostTensor::from(file.view(t)));
  }
  HostTensor& at(const std::string& name) {
    for (auto& [n, t] : list)
      if (n == name) return t;
    throw std::out_of_range(name);
  }
  void remove(const std::string& name) {
    std::erase_if(list, [&](const auto& x) { return x.first == name; });
  }
  void rename(const std::string& from, const std::string& to) {
    for (auto& x : list)
      if (x.first == from) x.first = to;
  }
  void convert(DType type) {
    for (auto& [n, t] : list) {
      HostTensor narrow(type, t.shape());
      convert_from_f32(narrow.data(), type, t.f32(), t.elements());
      t = std::move(narrow);
    }
  }
  void write(const std::string& path, size_t begin = 0, size_t end = SIZE_MAX) const {
    std::vector<std::pair<std::string, TensorView>> views;
    for (size_t i = begin; i < std::min(end, list.size()); ++i) views.emplace_back(list[i].first, list[i].second.view());
    write_safetensors(path, views);
  }
  std::vector<std::pair<std::string, HostTensor>> list;
};

}  // namespace megaslide::umt5_testing
