// Host memory of a run: whole pages, zero and already touched, so that a run does not find out later that memory is short.
// Large pages where the kernel gives them, which it does within a mapping alone, so that none of this takes more than was
// asked for; on machines with several memory nodes the pages alternate between them.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace megaslide {

class ThreadPool;

class HostMemory {
 public:
  // simulated: addresses without memory, for plans.
  explicit HostMemory(bool simulated);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Adds what was taken, rounded up to pages, to `category`. nullptr for 0 bytes. Throws Error where memory cannot be had.
  // `moves`: copies to or from the device will come.
  void* allocate(int64_t bytes, int64_t& category, bool moves = true);

  // What was allocated: all of it, or what moves.
  std::vector<std::pair<void*, int64_t>> spans(bool all = false) const;

 private:
  void touch(void* memory, int64_t bytes);

  bool simulated_;
  struct Mapping {
    void* memory;
    int64_t bytes;
    bool moves;
  };
  std::vector<Mapping> mappings_;
  uintptr_t next_virtual_ = uintptr_t{1} << 45;
  std::vector<int> nodes_;
  std::unique_ptr<ThreadPool> pool_;  // of those who touch; made for the first large slab
};

}  // namespace megaslide
