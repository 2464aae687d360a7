// Stacks of their own that code can leave and return to, all on one host thread; known to AddressSanitizer
// and ThreadSanitizer.
#pragma once
#include <cstddef>

namespace megaslide::simt {

class Fiber {
 public:
  Fiber() = default;  // the host thread itself: something to switch back to
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // Makes this fibre start at `entry` on its stack when it is next switched to. `entry` must never return.
  void prepare(void (*entry)());
  // Leaves `from`, the running one, for `to`. `last`: `from` will not run again before it is prepared anew.
  static void switch_to(Fiber& from, Fiber& to, bool last = false);
  // To be called first in `entry`; `from` is what was switched from.
  static void entered(Fiber& from);

 private:
  void* stack_pointer_ = nullptr;
  char* mapping_ = nullptr;             // guard page and stack; none for the host thread
  const void* bottom_ = nullptr;
  size_t bytes_ = 0;
  [[maybe_unused]] void* shadow_ = nullptr;  // AddressSanitizer's
  [[maybe_unused]] void* thread_ = nullptr;  // ThreadSanitizer's
};

}  // namespace megaslide::simt
