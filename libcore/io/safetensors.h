// The safetensors format (spec wan.md F): strict memory-mapped reader, streaming writer, sharded sources.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace megaslide {

struct TensorInfo {
  std::string name;
  DType dtype;
  Shape shape;
  int64_t begin = 0, end = 0;  // bytes from the start of the data buffer
};

// One file, mapped read-only. Opening validates everything of F.2 and rejects duplicate keys; no tensor data is read.
// Views stay valid while the file object (or a copy of it) lives.
class SafetensorsFile {
 public:
  // Throws Error naming the file, the position in the header and what to do.
  static SafetensorsFile open(const std::string& path);

  const std::string& path() const;
  const std::vector<TensorInfo>& tensors() const;  // ascending by offset
  const std::map<std::string, std::string>& metadata() const;
  int64_t header_bytes() const;                    // N + 8: where the data buffer starts
  int64_t file_bytes() const;
  const TensorInfo* find(const std::string& name) const;
  TensorView view(const TensorInfo& info) const;
  TensorView view(const std::string& name) const;  // throws Error when absent, with near names
  // Tells the kernel that these pages are no longer needed, so that reading a huge file keeps a small RSS.
  void drop_pages(const TensorInfo& info) const;
  void drop_pages(const TensorInfo& info, int64_t from, int64_t to) const;  // of bytes [from, to) of the tensor
  // Asks the kernel to fetch these pages, which are read next: many requests to the disk at a time, not one a page fault.
  void read_ahead(const TensorInfo& info) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// The tensor as F32. Throws Error naming file and tensor when it is absent or holds no floating-point values.
HostTensor read_f32(const SafetensorsFile& file, const std::string& name);

// A checkpoint in one or many files: a .safetensors file, an index.json, or a folder that holds either.
class SafetensorsSource {
 public:
  static SafetensorsSource open(const std::string& given);
  struct Entry {
    TensorInfo info;
    size_t file;
  };
  const std::map<std::string, Entry>& tensors() const { return tensors_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const std::string& index() const { return index_; }  // path of the index; empty without one
  TensorView view(const std::string& name) const;
  void drop_pages(const std::string& name) const;
  void read_ahead(const std::string& name) const;
  std::vector<std::string> warnings;  // tensors present but not in the index, …

 private:
  std::map<std::string, Entry> tensors_;
  std::vector<SafetensorsFile> files_;
  std::string index_;
};

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  Shape shape;
};

// Writes a file piece by piece: header first, then each tensor's bytes in the order of `entries`, SHA-256 on the way.
// The data goes to PATH itself; callers that need atomicity write into a temporary (base/atomic_file.h).
class SafetensorsWriter {
 public:
  // alignment 8 (the format's) or 4096: the header is padded with spaces so that the data starts aligned; with 4096
  // entries should have sizes that keep the order's natural alignment. `entries` keep their order in the file.
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}}, int64_t alignment = 8);
  ~SafetensorsWriter();
  void write(std::span<const std::byte> bytes);  // continues the current tensor; moves on when it is full
  struct Result {
    std::string sha256;  // of the whole file, hex
    int64_t bytes;
  };
  Result finish();  // CHECKs that everything was written; fsyncs

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The format's order: dtype descending, then name ascending.
void sort_safetensors_entries(std::vector<SafetensorsEntry>& entries);

// Sorts by (dtype descending, name ascending), writes atomically (temporary, fsync, rename).
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, TensorView>>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace megaslide
