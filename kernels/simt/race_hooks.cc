// What GCC's -fsanitize=thread calls at every access, without its run-time library: the emulated kernels' accesses to
// shared memory go to the race detector, all others are of no interest.
#include <cstddef>

#include "kernels/simt/simt.h"

namespace {
using megaslide::simt::touch_shared;
}

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, size_t n) { touch_shared(p, n, false); }
void __tsan_write_range(void* p, size_t n) { touch_shared(p, n, true); }
#define MS_ACCESS(bytes)                                                       \
  void __tsan_read##bytes(void* p) { touch_shared(p, bytes, false); }          \
  void __tsan_write##bytes(void* p) { touch_shared(p, bytes, true); }          \
  void __tsan_volatile_read##bytes(void* p) { touch_shared(p, bytes, false); } \
  void __tsan_volatile_write##bytes(void* p) { touch_shared(p, bytes, true); } \
  void __tsan_unaligned_read##bytes(void* p) { touch_shared(p, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* p) { touch_shared(p, bytes, true); }
MS_ACCESS(1)
MS_ACCESS(2)
MS_ACCESS(4)
MS_ACCESS(8)
MS_ACCESS(16)
#undef MS_ACCESS
}
