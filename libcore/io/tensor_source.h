// The tensors of a foreign checkpoint, whatever it is stored in: a safetensors file, an index of shards, a folder with
// either, a PyTorch archive (.pth, .pt, .bin) or an index of those.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace megaslide {

class TensorSource {
 public:
  // Opens and checks every file; reads no tensor data. Throws Error naming what `given` is instead, and what helps.
  static TensorSource open(const std::string& given);

  struct Entry {
    DType dtype = DType::kF32;
    Shape shape;
    int64_t bytes() const { return element_count(shape) * dtype_bits(dtype) / 8; }
  };
  const std::map<std::string, Entry>& tensors() const { return tensors_; }
  const Entry* find(const std::string& name) const;
  const std::vector<std::string>& files() const { return files_; }  // paths; never empty
  const std::string& path() const { return files_[0]; }             // for messages
  const std::string& index() const { return index_; }               // path of the index; empty without one
  bool is_safetensors() const { return safetensors_; }

  // The elements of a tensor in row-major order, in pieces of whole elements of about 1 MiB. Memory stays bounded however
  // large the tensor is. Not for several threads at a time.
  void stream(const std::string& name, const std::function<void(std::span<const std::byte>)>& sink) const;
  // A whole tensor; Error above `max_bytes`.
  HostTensor read(const std::string& name, int64_t max_bytes = int64_t{256} << 20) const;

 private:
  struct Reader;
  struct Safetensors;
  struct Torch;
  std::map<std::string, Entry> tensors_;
  std::vector<std::string> files_;
  std::string index_;
  bool safetensors_ = false;
  std::shared_ptr<const Reader> reader_;
};

}  // namespace megaslide
