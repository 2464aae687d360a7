#include "stream/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace megaslide {

HostMemory::~HostMemory() {
  for (const auto& [p, bytes] : mappings_) munmap(p, static_cast<size_t>(bytes));
}

void* HostMemory::allocate(int64_t bytes, int64_t& category) {
  constexpr int64_t kPage = 4096;
  const int64_t size = (bytes + kPage - 1) / kPage * kPage;
  category += size;
  if (size == 0) return nullptr;
  if (simulated_) {
    void* p = reinterpret_cast<void*>(next_virtual_);
    next_virtual_ += static_cast<uintptr_t>(size);
    return p;
  }
  void* p = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (p == MAP_FAILED)
    throw Error(fmt::format("out of host memory: {} bytes of a run's state could not be allocated: {}", size, std::strerror(errno)),
                "plan-memory prints what the run needs; a smaller state codec or a smaller model fits");
  mappings_.emplace_back(p, size);
  return p;
}

}  // namespace megaslide
