#include "stream/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "base/thread_pool.h"
#include "stream/numa.h"

namespace megaslide {
namespace {
constexpr int64_t kPage = 4096;
constexpr int64_t kPiece = int64_t{16} << 20;  // that one thread touches at a time
}  // namespace

HostMemory::HostMemory(bool simulated) : simulated_(simulated) {
  if (!simulated) nodes_ = online_memory_nodes();
}

HostMemory::~HostMemory() {
  for (const Mapping& m : mappings_) munmap(m.memory, static_cast<size_t>(m.bytes));
}

std::vector<std::pair<void*, int64_t>> HostMemory::spans(bool all) const {
  std::vector<std::pair<void*, int64_t>> found;
  for (const Mapping& m : mappings_)
    if (all || m.moves) found.emplace_back(m.memory, m.bytes);
  return found;
}

void* HostMemory::allocate(int64_t bytes, int64_t& category, bool moves) {
  const int64_t size = (bytes + kPage - 1) / kPage * kPage;
  category += size;
  if (size == 0) return nullptr;
  if (simulated_) {
    void* p = reinterpret_cast<void*>(next_virtual_);  // NOLINT(performance-no-int-to-ptr): no memory
    next_virtual_ += static_cast<uintptr_t>(size);
    return p;
  }
  void* p = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    throw Error(fmt::format("out of host memory: {} bytes of a run's state could not be allocated: {}", size, std::strerror(errno)),
                "plan-memory prints what the run needs; a smaller state codec or a smaller model fits");
  mappings_.push_back({p, size, moves});
  madvise(p, static_cast<size_t>(size), MADV_HUGEPAGE);  // a wish; without it pages are small
  if (nodes_.size() > 1) interleave(p, size, nodes_);
  touch(p, size);
  return p;
}

// The kernel clears a page at its first touch, which takes one thread minutes for a terabyte.
void HostMemory::touch(void* memory, int64_t bytes) {
  const auto pages = [memory](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kPage) static_cast<volatile std::byte*>(memory)[at] = std::byte{0};
  };
  if (bytes <= kPiece) return pages(0, bytes);
  if (!pool_) pool_ = std::make_unique<ThreadPool>(available_threads());
  pool_->parallel_for(bytes, kPiece, pages);
}

}  // namespace megaslide
