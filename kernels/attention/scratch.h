// Working memory of one thread inside a CPU kernel: grows to the largest request, is kept for the next call and freed
// with the thread. A kernel asks once and carves; nothing survives a call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace megaslide {

class ThreadScratch {
 public:
  // At least `bytes`, 64-byte aligned, contents undefined. Invalidates what an earlier call returned.
  static std::byte* get(int64_t bytes) {
    thread_local ThreadScratch scratch;
    if (bytes > scratch.capacity_) {
      scratch.memory_.reset();
      scratch.capacity_ = 0;
      const int64_t rounded = (bytes + 4095) / 4096 * 4096;
      scratch.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(rounded))));
      if (scratch.memory_ == nullptr) throw std::bad_alloc();
      scratch.capacity_ = rounded;
    }
    return scratch.memory_.get();
  }

 private:
  struct Free { void operator()(std::byte* p) const { std::free(p); } };
  std::unique_ptr<std::byte[], Free> memory_;
  int64_t capacity_ = 0;
};

// Cuts 64-byte aligned arrays out of a block of memory; a carver on nullptr only measures.
class Carver {
 public:
  explicit Carver(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  T* take(int64_t n) {
    T* p = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (n * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return p;
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace megaslide
