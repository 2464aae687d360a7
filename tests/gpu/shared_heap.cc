#include "tests/gpu/shared_heap.h"

#include <cuda_runtime_api.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>

#include "libcore/device/cuda/api.h"

namespace {

// Blocks of 512 bytes, 1 KiB, 2 KiB, … behind one another; those given back wait in a list of their size.
constexpr size_t kHeader = 256;  // as much as anything here is aligned to
constexpr size_t kClasses = 40;
struct Block {
  size_t size_class;
  Block* next;
};
struct Heap {
  std::byte *begin = nullptr, *end = nullptr, *free = nullptr;
  std::array<Block*, kClasses> given_back{};
  std::mutex mutex;
};
// Not destroyed: what is allocated first may be given back last.
Heap& heap() {
  alignas(Heap) static std::byte memory[sizeof(Heap)];
  static Heap* const h = new (memory) Heap;
  return *h;
}

void* take(size_t bytes, size_t alignment) {
  Heap& h = heap();
  std::lock_guard lock(h.mutex);
  if (!h.begin) {
    const size_t unit = alignment < alignof(std::max_align_t) ? alignof(std::max_align_t) : alignment;
    if (void* p = std::aligned_alloc(unit, (bytes + unit) / unit * unit)) return p;
    throw std::bad_alloc();
  }
  const size_t block = std::bit_ceil(bytes + kHeader < 512 ? 512 : bytes + kHeader);
  const auto size_class = static_cast<size_t>(std::bit_width(block));
  if (alignment > kHeader || size_class >= kClasses) throw std::bad_alloc();
  Block* b = h.given_back[size_class];
  if (b) {
    h.given_back[size_class] = b->next;
  } else {
    if (static_cast<size_t>(h.end - h.free) < block) throw std::bad_alloc();
    b = new (h.free) Block{size_class, nullptr};
    h.free += block;
  }
  return reinterpret_cast<std::byte*>(b) + kHeader;
}

void* take_or_null(size_t bytes, size_t alignment) noexcept {
  try {
    return take(bytes, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void give_back(void* p) {
  if (!p) return;
  if (!megaslide::testing_support::in_shared_heap(p)) return std::free(p);
  Heap& h = heap();
  std::lock_guard lock(h.mutex);
  auto* b = reinterpret_cast<Block*>(static_cast<std::byte*>(p) - kHeader);
  b->next = h.given_back[b->size_class];
  h.given_back[b->size_class] = b;
}

}  // namespace

// All of them: a sanitizer has each of its own, which does not ask the others.
void* operator new(size_t bytes) { return take(bytes, alignof(std::max_align_t)); }
void* operator new[](size_t bytes) { return take(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) { return take(bytes, static_cast<size_t>(alignment)); }
void* operator new[](size_t bytes, std::align_val_t alignment) { return take(bytes, static_cast<size_t>(alignment)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return take_or_null(bytes, alignof(std::max_align_t)); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return take_or_null(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept { return take_or_null(bytes, static_cast<size_t>(alignment)); }
void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept { return take_or_null(bytes, static_cast<size_t>(alignment)); }
void operator delete(void* p) noexcept { give_back(p); }
void operator delete[](void* p) noexcept { give_back(p); }
void operator delete(void* p, size_t) noexcept { give_back(p); }
void operator delete[](void* p, size_t) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { give_back(p); }

namespace megaslide::testing_support {

void start_shared_heap(size_t bytes) {
  void* p = nullptr;
  cuda::check(cudaMallocManaged(&p, bytes, cudaMemAttachGlobal), "cudaMallocManaged", "the heap of the tests");
  Heap& h = heap();
  std::lock_guard lock(h.mutex);
  h.begin = h.free = static_cast<std::byte*>(p);
  h.end = h.begin + bytes;
}

bool in_shared_heap(const void* p) {
  const Heap& h = heap();
  return h.begin && p >= h.begin && p < h.end;
}

}  // namespace megaslide::testing_support
