// A scratch file of extents that is read and written around the page cache: state that does not fit into memory.
//
// The file has no name once it is open, so that its space is free again when the process ends, however it ends. Requests
// go through io_uring, several at once; where the kernel or a container forbids that, through a few threads that block.
// O_DIRECT where the file system knows it. Every block of an extent has a checksum, kept in memory, that its reading
// compares: what a disk returns is what was written last, or an Error.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace megaslide {

// Read and written as a whole.
struct BlockExtent {
  std::string name;   // in errors: "blocks.3. weights"
  int64_t bytes = 0;  // memory of an extent holds kBlockAlign more at most: up to the next multiple of it
};

constexpr int64_t kBlockAlign = 4096;       // of the memory of transfers and of places in the file
constexpr int64_t kBlockBytes = 1 << 20;    // with a checksum of its own; one request

// What the system did for one request; for tests, which put another answer in its place.
struct BlockRequest {
  bool write = false;
  int64_t offset = 0, bytes = 0;  // in the file
  void* memory = nullptr;
};

struct BlockFileOptions {
  int depth = 16;        // requests in flight at most
  bool uring = true;     // false: threads, as where there is no io_uring
  bool direct = true;    // false: through the page cache, as where the file system has no O_DIRECT
  // Given the request and what the system answered (bytes, or a negative errno), returns what counts as its answer.
  std::function<int64_t(const BlockRequest&, int64_t)> answer = {};
};

class BlockFile {
 public:
  // Creates the file in `directory`, which is made if need be, with all of its space. Throws Error where there is too little.
  BlockFile(const std::string& directory, std::vector<BlockExtent> extents, BlockFileOptions options = {});
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  // Bytes on the disk of a file of these extents.
  static int64_t file_bytes(std::span<const BlockExtent> extents);

  // Memory that transfers will use, which the kernel then keeps mapped: it must stay as long as the file. Without permission
  // for that, nothing changes.
  void register_memory(std::span<const std::span<std::byte>> areas);

  struct Transfer {
    int extent = 0;
    void* memory = nullptr;  // aligned to kBlockAlign, of the extent's bytes rounded up to it
  };
  // Return when all is done. An extent that was never written reads as zeros. Several threads may call; they take turns.
  // Throws Error that names the extent, the file and the offset: of the system, or of a block that is not what was written.
  void read(std::span<const Transfer> transfers);
  void write(std::span<const Transfer> transfers);

  int64_t bytes() const;
  const std::string& path() const;  // the name it had
  // How it is reached: "io_uring, O_DIRECT, registered memory".
  std::string method() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megaslide
