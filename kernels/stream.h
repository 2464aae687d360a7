// The stream a kernel runs on: all that a kernel knows of the machine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/thread_pool.h"

namespace megaslide {

enum class Backend { kCpu, kCuda, kSim };

// Classes of work with one rate each in a machine file (spec engine.md §5).
enum class KernelClass {
  kGemm,       // matrix units
  kAttention,  // blocked or gathered attention
  kVector,     // elementwise passes, norms, reductions: memory-bound
  kPack,       // re-layout of weights
  kOptimizer,  // host: DRAM-bound update of state
  kHost,       // other host work
  kDiskRead,   // state from a disk, and to it: bytes are the disk's
  kDiskWrite,
  kUpdate,     // of state on the device: memory-bound
};
constexpr size_t kKernelClasses = 9;
// None of the device's work, whichever stream it is queued on.
constexpr bool is_host_work(KernelClass c) { return c >= KernelClass::kOptimizer && c <= KernelClass::kDiskWrite; }

// Work of one call: floating point operations (multiply and add are two) and bytes moved from and to memory.
struct Cost {
  KernelClass kernel_class = KernelClass::kVector;
  double flops = 0;
  double bytes = 0;
};

// An ordered queue of work. Calls return at once on asynchronous backends; order between streams is by events
// (device/device.h) and nothing else.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Backend backend() const = 0;
  // Whose entries, and so whose workspaces, calls stand for: on `sim` those of the device that it stands for.
  virtual Backend target() const { return backend(); }

  // Queues `work` under a static `name` (the trace's and the error's). `sim` charges `cost` and drops the work.
  virtual void enqueue(const char* name, const Cost& cost, std::function<void()> work) = 0;

  // For the bodies of CPU kernels, on the thread that runs the work: fixed pieces of [0, n), whatever the threads.
  void parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> body) {
    pool().parallel_for(n, grain, body);
  }
  virtual ThreadPool& pool() = 0;

  // cudaStream_t on `cuda`, nullptr elsewhere.
  virtual void* native() { return nullptr; }
};

// Runs each call at once on the calling thread (with the pool's help): for tests, benchmarks and host-side work.
class InlineStream final : public Stream {
 public:
  explicit InlineStream(int threads = 1) : pool_(threads) {}
  Backend backend() const override { return Backend::kCpu; }
  void enqueue(const char*, const Cost&, std::function<void()> work) override { work(); }
  ThreadPool& pool() override { return pool_; }

 private:
  ThreadPool pool_;
};

// The same with threads of the caller's, which must outlive it.
class PoolStream final : public Stream {
 public:
  explicit PoolStream(ThreadPool& pool) : pool_(pool) {}
  Backend backend() const override { return Backend::kCpu; }
  void enqueue(const char*, const Cost&, std::function<void()> work) override { work(); }
  ThreadPool& pool() override { return pool_; }

 private:
  ThreadPool& pool_;
};

}  // namespace megaslide
