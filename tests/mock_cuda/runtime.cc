#include "tests/mock_cuda/mock_runtime.h"

#include <sys/mman.h>

#include <algorithm>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "kernels/simt/simt.h"
#include "tests/mock_cuda/mock_stream.h"

using Clock = std::chrono::steady_clock;

// Each record is a point of its own: who waits for one is not released by a later one on another stream.
struct Point {
  void pass() {
    std::lock_guard lock(mutex);
    when = Clock::now();
    passed = true;
    changed.notify_all();
  }
  bool has_passed() {
    std::lock_guard lock(mutex);
    return passed;
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return passed; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;
  Clock::time_point when;
};
struct CUevent_st {
  std::shared_ptr<Point> last() {
    std::lock_guard lock(mutex);
    return point;
  }
  std::mutex mutex;
  std::shared_ptr<Point> point;  // of the last record
};

struct CUstream_st {
  CUstream_st() : thread([this] { run(); }) {}
  ~CUstream_st() {
    push(nullptr);
    thread.join();
  }
  void push(std::function<void()> work) {
    {
      std::lock_guard lock(mutex);
      queue.push_back(std::move(work));
    }
    changed.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return queue.empty() && !busy; });
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !queue.empty(); });
      auto work = std::move(queue.front());
      queue.pop_front();
      if (!work) return;
      busy = true;
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool busy = false;
  std::thread thread;
};

namespace megaslide::mock_cuda {
namespace {

class Runtime {
 public:
  static Runtime& get() {
    static Runtime runtime;
    return runtime;
  }

  // Of every call that can fail: the error that it must return.
  cudaError_t enter() {
    ++calls;
    if (faults.kind != RuntimeFaults::Kind::kRefused && faults.fail_at > 0 && ++fault_calls == faults.fail_at) {
      if (faults.kind == RuntimeFaults::Kind::kLaunch) sticky = cudaErrorLaunchFailure;
      else return failed(cudaErrorMemoryAllocation);
    }
    return failed(sticky.load());
  }
  bool refuses_registration() { return faults.kind == RuntimeFaults::Kind::kRefused && faults.fail_at > 0 && ++fault_calls >= faults.fail_at; }
  static cudaError_t failed(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
  }
  void break_device(const char* what) {
    cudaError_t none = cudaSuccess;
    if (sticky.compare_exchange_strong(none, cudaErrorLaunchFailure)) std::fprintf(stderr, "mock CUDA: %s\n", what);
  }

  static bool within(const std::map<uintptr_t, size_t>& ranges, const void* p, size_t bytes) {
    const auto at = reinterpret_cast<uintptr_t>(p);
    auto it = ranges.upper_bound(at);
    return it != ranges.begin() && (--it, at + bytes <= it->first + it->second);
  }
  bool on_device(const void* p, size_t bytes) {
    std::lock_guard lock(mutex);
    return within(device_memory, p, bytes);
  }
  bool locked(const void* p, size_t bytes) {
    std::lock_guard lock(mutex);
    return within(locked_memory, p, bytes);
  }
  template <class T>
  bool lives(std::set<T*>& set, T* x) {
    std::lock_guard lock(mutex);
    return set.count(x) > 0;
  }

  RuntimeFaults faults;
  std::atomic<int64_t> fault_calls{0}, calls{0}, allocations{0}, events_made{0}, registrations{0}, copies{0}, pageable{0}, synchronous{0}, synchronizations{0}, kernels{0};
  std::atomic<cudaError_t> sticky{cudaSuccess};
  static thread_local cudaError_t last_error;
  static thread_local int current;  // device
  std::mutex mutex;
  std::map<uintptr_t, size_t> device_memory, locked_memory, host_allocations;
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  int64_t device_bytes = 0;

 private:
  Runtime() {
    simt::set_queue(&run_on);
    if (const char* text = std::getenv("MEGASLIDE_MOCK_CUDA_DEVICES")) {
      faults.devices.clear();
      std::stringstream list(text);
      for (std::string item; std::getline(list, item, ',');) faults.devices.push_back(std::stoll(item));
    }
    if (const char* text = std::getenv("MEGASLIDE_MOCK_CUDA_FAIL")) {
      faults.fail_at = std::atoll(text);
      const std::string kind = std::strchr(text, ':') + 1;
      faults.kind = kind == "launch" ? RuntimeFaults::Kind::kLaunch : kind == "refused" ? RuntimeFaults::Kind::kRefused : RuntimeFaults::Kind::kOutOfMemory;
    }
    if (const char* text = std::getenv("MEGASLIDE_MOCK_CUDA_SLOW")) faults.slow_copy_us = std::atoi(text), faults.slow_copy_bytes = size_t{1} << 20;
    if (const char* text = std::getenv("MEGASLIDE_MOCK_CUDA_REPORT")) report_ = text;
  }
  ~Runtime();
  std::string report_;
};
thread_local cudaError_t Runtime::last_error = cudaSuccess;
thread_local int Runtime::current = 0;

Runtime::~Runtime() {
  if (report_.empty()) return;
  const int64_t live = static_cast<int64_t>(device_memory.size() + locked_memory.size() + streams.size() + events.size());
  if (FILE* f = std::fopen(report_.c_str(), "w")) {
    std::fprintf(f, "{\"calls\":%ld,\"allocations\":%ld,\"registrations\":%ld,\"copies\":%ld,\"pageable_copies\":%ld,\"synchronous_copies\":%ld,\"synchronizations\":%ld,\"kernels\":%ld,\"live\":%ld}\n",
                 calls.load(), allocations.load(), registrations.load(), copies.load(), pageable.load(), synchronous.load(), synchronizations.load(), kernels.load(), live);
    std::fclose(f);
  }
}

Runtime& runtime() { return Runtime::get(); }

}  // namespace

RuntimeCounts runtime_counts() {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return {r.calls, r.allocations, r.events_made, r.registrations, r.copies, r.pageable, r.synchronous, r.synchronizations, r.kernels,
          static_cast<int64_t>(r.device_memory.size() + r.locked_memory.size() + r.streams.size() + r.events.size())};
}

void set_runtime_faults(const RuntimeFaults& faults) {
  runtime().faults = faults;
  runtime().fault_calls = 0;
  runtime().sticky = cudaSuccess;
}

void run_on(void* stream, std::function<void()> work) {
  if (!stream) return work();
  Runtime& r = runtime();
  ++r.kernels;
  static_cast<CUstream_st*>(stream)->push([&r, work = std::move(work)] {
    if (r.sticky != cudaSuccess) return;
    try {
      work();
    } catch (const std::exception& e) {
      r.break_device(e.what());
    }
  });
}

}  // namespace megaslide::mock_cuda

using megaslide::mock_cuda::Runtime;
using megaslide::mock_cuda::runtime;

namespace {
// What every call begins with.
#define ENTER()                                                              \
  if (const cudaError_t error = runtime().enter(); error != cudaSuccess) return error

void* pages(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}
}  // namespace

cudaError_t cudaGetLastError() { return runtime().sticky != cudaSuccess ? runtime().sticky.load() : std::exchange(Runtime::last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return runtime().sticky != cudaSuccess ? runtime().sticky.load() : Runtime::last_error; }
const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorHostMemoryAlreadyRegistered: return "cudaErrorHostMemoryAlreadyRegistered";
    default: return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaErrorLaunchFailure ? "unspecified launch failure" : cudaGetErrorName(e);
}

cudaError_t cudaGetDeviceCount(int* n) {
  ENTER();
  *n = static_cast<int>(runtime().faults.devices.size());
  return *n ? cudaSuccess : Runtime::failed(cudaErrorNoDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  ENTER();
  const auto& devices = runtime().faults.devices;
  if (device < 0 || static_cast<size_t>(device) >= devices.size()) return Runtime::failed(cudaErrorInvalidDevice);
  *p = {"mock CUDA device", static_cast<size_t>(devices[static_cast<size_t>(device)]), 9, 0};
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  ENTER();
  if (device < 0 || static_cast<size_t>(device) >= runtime().faults.devices.size()) return Runtime::failed(cudaErrorInvalidDevice);
  Runtime::current = device;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  ENTER();
  const int64_t memory = runtime().faults.devices[static_cast<size_t>(Runtime::current)];
  *total = static_cast<size_t>(memory);
  *free = static_cast<size_t>(memory - runtime().device_bytes);
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) { return *v = 13000, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { return *v = 13000, cudaSuccess; }

cudaError_t cudaMalloc(void** p, size_t bytes) {
  ENTER();
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  if (bytes > free || !(*p = pages(bytes))) return Runtime::failed(cudaErrorMemoryAllocation);
  std::lock_guard lock(runtime().mutex);
  runtime().device_memory[reinterpret_cast<uintptr_t>(*p)] = bytes;
  runtime().device_bytes += static_cast<int64_t>(bytes);
  ++runtime().allocations;
  return cudaSuccess;
}
cudaError_t cudaMallocManaged(void** p, size_t bytes, unsigned) { return cudaMalloc(p, bytes); }
cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  for (CUstream_st* s : runtime().streams) s->drain();  // as the real one does
  std::lock_guard lock(runtime().mutex);
  const auto it = runtime().device_memory.find(reinterpret_cast<uintptr_t>(p));
  if (it == runtime().device_memory.end()) return Runtime::failed(cudaErrorInvalidValue);
  munmap(p, it->second);
  runtime().device_bytes -= static_cast<int64_t>(it->second);
  runtime().device_memory.erase(it);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  ENTER();
  if (!(*p = pages(bytes))) return Runtime::failed(cudaErrorMemoryAllocation);
  std::lock_guard lock(runtime().mutex);
  runtime().locked_memory[reinterpret_cast<uintptr_t>(*p)] = runtime().host_allocations[reinterpret_cast<uintptr_t>(*p)] = bytes;
  ++runtime().allocations;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  if (!p) return cudaSuccess;
  std::lock_guard lock(runtime().mutex);
  const auto it = runtime().host_allocations.find(reinterpret_cast<uintptr_t>(p));
  if (it == runtime().host_allocations.end()) return Runtime::failed(cudaErrorInvalidValue);
  munmap(p, it->second);
  runtime().locked_memory.erase(it->first);
  runtime().host_allocations.erase(it);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  ENTER();
  if (runtime().refuses_registration()) return Runtime::failed(cudaErrorMemoryAllocation);
  std::lock_guard lock(runtime().mutex);
  const auto at = reinterpret_cast<uintptr_t>(p);
  auto next = runtime().locked_memory.lower_bound(at);
  const bool before = next != runtime().locked_memory.begin() && std::prev(next)->first + std::prev(next)->second > at;
  if (before || (next != runtime().locked_memory.end() && next->first < at + bytes)) return Runtime::failed(cudaErrorHostMemoryAlreadyRegistered);
  runtime().locked_memory[at] = bytes;
  ++runtime().registrations;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  std::lock_guard lock(runtime().mutex);
  return runtime().locked_memory.erase(reinterpret_cast<uintptr_t>(p)) ? cudaSuccess : Runtime::failed(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  ENTER();
  *s = new CUstream_st;
  std::lock_guard lock(runtime().mutex);
  runtime().streams.insert(*s);
  ++runtime().allocations;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  {
    std::lock_guard lock(runtime().mutex);
    if (!runtime().streams.erase(s)) return Runtime::failed(cudaErrorInvalidResourceHandle);
  }
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  ENTER();
  ++runtime().synchronizations;
  s->drain();
  return Runtime::failed(runtime().sticky);
}
cudaError_t cudaDeviceSynchronize() {
  ENTER();
  ++runtime().synchronizations;
  for (CUstream_st* s : runtime().streams) s->drain();
  return Runtime::failed(runtime().sticky);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  ENTER();
  if (!runtime().lives(runtime().streams, s) || !runtime().lives(runtime().events, e)) return Runtime::failed(cudaErrorInvalidResourceHandle);
  if (auto point = e->last()) s->push([point = std::move(point)] { point->wait(); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  ENTER();
  *e = new CUevent_st;
  std::lock_guard lock(runtime().mutex);
  runtime().events.insert(*e);
  ++runtime().events_made;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  {
    std::lock_guard lock(runtime().mutex);
    if (!runtime().events.erase(e)) return Runtime::failed(cudaErrorInvalidResourceHandle);
  }
  delete e;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  ENTER();
  if (!runtime().lives(runtime().streams, s) || !runtime().lives(runtime().events, e)) return Runtime::failed(cudaErrorInvalidResourceHandle);
  auto point = std::make_shared<Point>();
  s->push([point] { point->pass(); });
  std::lock_guard lock(e->mutex);
  e->point = std::move(point);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  ENTER();
  if (!runtime().lives(runtime().events, e)) return Runtime::failed(cudaErrorInvalidResourceHandle);
  const auto point = e->last();
  return !point || point->has_passed() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  ENTER();
  if (!runtime().lives(runtime().events, e)) return Runtime::failed(cudaErrorInvalidResourceHandle);
  if (const auto point = e->last()) point->wait();
  return Runtime::failed(runtime().sticky);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t a, cudaEvent_t b) {
  ENTER();
  if (!runtime().lives(runtime().events, a) || !runtime().lives(runtime().events, b)) return Runtime::failed(cudaErrorInvalidResourceHandle);
  const auto begin = a->last(), end = b->last();
  if (!begin || !end) return Runtime::failed(cudaErrorInvalidResourceHandle);
  if (!begin->has_passed() || !end->has_passed()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->when - begin->when).count();
  return cudaSuccess;
}

namespace {
bool fits(const void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  return runtime().on_device(src, bytes) == from_device && runtime().on_device(dst, bytes) == to_device;
}
}  // namespace

cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  ENTER();
  if (!fits(dst, src, bytes, kind)) return Runtime::failed(cudaErrorInvalidValue);
  ++runtime().synchronous;
  std::memcpy(dst, src, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, cudaStream_t s) {
  ENTER();
  if (!runtime().lives(runtime().streams, s)) return Runtime::failed(cudaErrorInvalidResourceHandle);
  if (!fits(dst, src, bytes, kind)) return Runtime::failed(cudaErrorInvalidValue);
  ++runtime().copies;
  const void* host = kind == cudaMemcpyHostToDevice ? src : dst;
  if (kind != cudaMemcpyDeviceToDevice && !runtime().locked(host, bytes)) ++runtime().pageable;
  s->push([dst, src, bytes] {
    if (runtime().sticky != cudaSuccess) return;
    std::memcpy(dst, src, bytes);
    const auto& faults = runtime().faults;
    if (const int us = faults.slow_copy_us; us && bytes >= faults.slow_copy_bytes) std::this_thread::sleep_for(std::chrono::microseconds(us));
  });
  return cudaSuccess;
}
