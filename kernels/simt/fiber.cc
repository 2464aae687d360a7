#include "kernels/simt/fiber.h"

#include <sys/mman.h>

#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace megaslide::simt {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStackBytes = size_t{512} << 10;  // instrumented frames are larger
#else
constexpr size_t kStackBytes = size_t{128} << 10;
#endif
constexpr size_t kGuardBytes = 4096;

}  // namespace

#ifdef __x86_64__
extern "C" void megaslide_simt_switch(void** from, void* to);
// Saves what a call must preserve on the stack it leaves, and takes the same from the other.
asm(R"(
.text
.globl megaslide_simt_switch
.type megaslide_simt_switch,@function
megaslide_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size megaslide_simt_switch,.-megaslide_simt_switch
)");
#endif

Fiber::~Fiber() {
#ifdef __SANITIZE_THREAD__
  if (mapping_ != nullptr && thread_ != nullptr) __tsan_destroy_fiber(thread_);
#endif
#ifdef __SANITIZE_ADDRESS__
  // Or what is mapped there next would inherit the red zones.
  if (mapping_ != nullptr) __asan_unpoison_memory_region(bottom_, bytes_);
#endif
  if (mapping_ != nullptr) munmap(mapping_, kGuardBytes + kStackBytes);
#ifndef __x86_64__
  delete static_cast<ucontext_t*>(stack_pointer_);
#endif
}

void Fiber::prepare(void (*entry)()) {
  if (mapping_ == nullptr) {
    void* p = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    mprotect(p, kGuardBytes, PROT_NONE);
    mapping_ = static_cast<char*>(p);
    bottom_ = mapping_ + kGuardBytes;
    bytes_ = kStackBytes;
  }
#ifdef __SANITIZE_THREAD__
  if (thread_ == nullptr) thread_ = __tsan_create_fiber(0);
#endif
#ifdef __SANITIZE_ADDRESS__
  // An abandoned fibre leaves its frames' red zones behind.
  __asan_unpoison_memory_region(bottom_, bytes_);
#endif
#ifdef __x86_64__
  void** top = reinterpret_cast<void**>(mapping_ + kGuardBytes + kStackBytes);
  *--top = nullptr;  // where a call would have its return address
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // the registers that are restored
  stack_pointer_ = top;
#else
  if (stack_pointer_ == nullptr) stack_pointer_ = new ucontext_t;
  auto* context = static_cast<ucontext_t*>(stack_pointer_);
  getcontext(context);
  context->uc_stack.ss_sp = mapping_ + kGuardBytes;
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
#endif
}

void Fiber::switch_to(Fiber& from, Fiber& to, [[maybe_unused]] bool last) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(last ? nullptr : &from.shadow_, to.bottom_, to.bytes_);
#endif
#ifdef __SANITIZE_THREAD__
  // What is no fibre of ours is this thread's own.
  if (from.mapping_ == nullptr) from.thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.thread_, 0);
#endif
#ifdef __x86_64__
  megaslide_simt_switch(&from.stack_pointer_, to.stack_pointer_);
#else
  if (from.stack_pointer_ == nullptr) from.stack_pointer_ = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(from.stack_pointer_), static_cast<ucontext_t*>(to.stack_pointer_));
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(from.shadow_, nullptr, nullptr);
#endif
}

void Fiber::entered([[maybe_unused]] Fiber& from) {
#ifdef __SANITIZE_ADDRESS__
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (from.mapping_ == nullptr) from.bottom_ = bottom, from.bytes_ = bytes;
#endif
}

}  // namespace megaslide::simt
