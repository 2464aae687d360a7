// The tensors of one published network, from the user's own file (spec vbench-networks.md §0): safetensors or a PyTorch
// archive, floating-point values of any width, widened to fp32 as they are read.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "io/tensor_source.h"
#include "tensor/tensor.h"

namespace megaslide {

class NetworkWeights {
 public:
  // `path` as TensorSource::open takes it. `prefix`: names that start with it lose it, whether all do or none ("module.").
  static NetworkWeights open(const std::string& path, const std::string& prefix = {});

  bool has(const std::string& name) const { return names_.contains(name); }
  // Throws Error where there is no such tensor.
  const Shape& shape(const std::string& name) const;
  // Names without the prefix, ascending.
  std::vector<std::string> names() const;

  // Compares with what the network is made of: names and shapes. Names in `ignored` may be there, whatever they hold.
  // Throws one Error that lists what is missing (with a near name that is there), unknown, of another shape, or of
  // another type than a floating-point one.
  void require(const std::map<std::string, Shape>& expected, const std::vector<std::string>& ignored = {}) const;

  // The tensor as F32. Throws Error where it is absent, damaged, or holds a value that is not finite.
  HostTensor read(const std::string& name) const;

  const std::string& path() const { return source_.path(); }
  // Of the file's bytes: reads the file once, at the first call.
  const std::string& sha256() const;

 private:
  explicit NetworkWeights(TensorSource source) : source_(std::move(source)) {}

  TensorSource source_;
  std::map<std::string, std::string> names_;  // without the prefix -> in the file
  mutable std::string sha256_;
};

}  // namespace megaslide
