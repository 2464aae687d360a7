// Host memory of a run: whole pages, zero and already touched, so that a run does not find out later that memory is short.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace megaslide {

class HostMemory {
 public:
  // simulated: addresses without memory, for plans.
  explicit HostMemory(bool simulated) : simulated_(simulated) {}
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Adds what was taken, rounded up to pages, to `category`. nullptr for 0 bytes. Throws Error where memory cannot be had.
  void* allocate(int64_t bytes, int64_t& category);

 private:
  bool simulated_;
  std::vector<std::pair<void*, int64_t>> mappings_;
  uintptr_t next_virtual_ = uintptr_t{1} << 45;
};

}  // namespace megaslide
