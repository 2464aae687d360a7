// The pickle inside a PyTorch archive, read by a machine that knows tensors and nothing else: an allow-list of opcodes and
// globals builds dictionaries, lists and tensor descriptions. Nothing is imported, called or executed; anything else is
// refused by name and position.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace megaslide {

// A view into a storage. Strides in elements; the constructor of the archive's reader checks it against the storage.
struct TorchTensor {
  std::string name;             // keys of nested dictionaries joined by '.'
  DType dtype = DType::kF32;
  std::string storage;          // key: the archive's entry "data/KEY"
  int64_t storage_bytes = 0;    // that the pickle states
  int64_t offset = 0;           // elements from the storage's start
  Shape shape, stride;

  bool contiguous() const;      // row-major without gaps
  int64_t span() const;         // elements from the first to the last, both included; 0 for an empty tensor
};

struct TorchPickle {
  std::vector<TorchTensor> tensors;  // of the dictionary that holds the weights, in its order
  std::vector<std::string> warnings;
};

inline constexpr int64_t kMaxTorchPickleBytes = 16 << 20;

// `source` names file and entry: messages are "SOURCE byte 123: global os.system: not a tensor; nothing was run". Takes
// the root dictionary, or the one under "state_dict", "model" or "module" where the root holds no tensors itself.
TorchPickle read_torch_pickle(std::string_view bytes, const std::string& source);

}  // namespace megaslide
