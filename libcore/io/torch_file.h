// PyTorch's zip archives (.pth, .pt, .bin): the pickle that describes the tensors (io/torch_pickle.h) and one stored entry
// a storage. Archives of before 2020 (a bare pickle, a tar file) are not read.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/torch_pickle.h"

namespace megaslide {

// One archive, open for reading. Not for several threads at a time. Copies share the archive.
class TorchFile {
 public:
  // Checks the zip directory and every tensor against its entry; no tensor data is read. Throws Error naming the file and
  // what is wrong with it.
  static TorchFile open(const std::string& path);
  // The same of an archive in memory, whose `bytes` must outlive it; `name` stands for the path.
  static TorchFile parse(std::span<const std::byte> bytes, const std::string& name);

  const std::string& path() const;
  const std::vector<TorchTensor>& tensors() const;
  const std::vector<std::string>& warnings() const;

  // The tensor's elements in row-major order, in pieces of at most 1 MiB. The archive's checksum is compared where the
  // tensor is its whole storage. A tensor that isn't contiguous is gathered in memory: at most 256 MiB.
  void stream(const TorchTensor& tensor, const std::function<void(std::span<const std::byte>)>& sink) const;

 private:
  struct Impl;
  static TorchFile read(std::shared_ptr<Impl> impl, int64_t file_bytes);
  std::shared_ptr<Impl> impl_;
};

}  // namespace megaslide
