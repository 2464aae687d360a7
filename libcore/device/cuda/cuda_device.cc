// The `cuda` device: an arena of the GPU's memory, a stream of the driver each for compute, upload and download, and threads
// for the host's and the disk's work. After the first step nothing is allocated and nothing waits but by events.
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "device/arena.h"
#include "device/cuda/cuda_queue.h"
#include "device/task_device.h"
#include "kernels/gemm/gemm_cuda.h"

namespace megaslide {
namespace {

using cuda::check;

// Left to the driver and to what else draws on the device, of what is free.
constexpr int64_t kFreeRest = int64_t{512} << 20;
// Larger registrations fail with some drivers.
constexpr int64_t kRegistration = int64_t{64} << 30;

int choose_device(int index) {
  cudaGetLastError();  // a failure before us is none of ours
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (count == 0) throw Error("no CUDA device is visible", "nvidia-smi lists those that the driver sees, CUDA_VISIBLE_DEVICES hides some; --device cpu needs none");
  if (index >= count) throw usage_error(fmt::format("CUDA device {}: there are {}", index, count), "CUDA_VISIBLE_DEVICES chooses among them");
  if (index >= 0) return index;
  size_t most = 0;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, i), "cudaGetDeviceProperties");
    if (p.totalGlobalMem > most) most = p.totalGlobalMem, index = i;
  }
  return index;
}

// Host memory that is locked, by address.
class LockedMemory {
 public:
  void add(void* memory, int64_t bytes) {
    std::lock_guard lock(mutex_);
    if (const auto it = ranges_.find(address(memory)); it != ranges_.end()) {
      ++it->second.users;
      return;
    }
    int64_t locked = 0;
    while (locked < bytes && lock_piece(static_cast<std::byte*>(memory) + locked, std::min(kRegistration, bytes - locked))) locked += kRegistration;
    if (locked < bytes) unlock(memory, locked);
    ranges_.emplace(address(memory), Range{bytes, 1, locked >= bytes});
  }
  void remove(void* memory) {
    std::lock_guard lock(mutex_);
    const auto it = ranges_.find(address(memory));
    if (it == ranges_.end() || --it->second.users > 0) return;
    if (it->second.locked) unlock(memory, it->second.bytes);
    ranges_.erase(it);
  }
  bool holds(const void* memory, int64_t bytes) {
    std::lock_guard lock(mutex_);
    auto it = ranges_.upper_bound(address(memory));
    if (it == ranges_.begin()) return false;
    --it;
    return it->second.locked && address(memory) + static_cast<uintptr_t>(bytes) <= it->first + static_cast<uintptr_t>(it->second.bytes);
  }

 private:
  struct Range {
    int64_t bytes;
    int users;
    bool locked;
  };
  static uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

  bool lock_piece(void* memory, int64_t bytes) {
    const cudaError_t status = cudaHostRegister(memory, static_cast<size_t>(bytes), cudaHostRegisterPortable);
    if (status == cudaSuccess) return true;
    cudaGetLastError();
    if (!told_) {
      told_ = true;
      rlimit limit{};
      getrlimit(RLIMIT_MEMLOCK, &limit);
      const std::string allowed = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes";
      log_warning("host memory cannot be locked (cudaHostRegister of {} bytes: {}; the limit on locked memory, ulimit -l, is {}): copies go through a ring and are slower",
                  bytes, cudaGetErrorString(status), allowed);
    }
    return false;
  }
  void unlock(void* memory, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kRegistration) cudaHostUnregister(static_cast<std::byte*>(memory) + at);
  }

  std::mutex mutex_;
  std::map<uintptr_t, Range> ranges_;
  bool told_ = false;
};

// The memory of the arena, of the size that the budget gives or that is free.
class DeviceMemory {
 public:
  DeviceMemory(int device, int64_t budget) {
    cuda::use_device(device);
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    bytes_ = budget ? budget : std::max<int64_t>(static_cast<int64_t>(free) - kFreeRest, static_cast<int64_t>(free) / 2);
    bytes_ = bytes_ / Arena::kAlignment * Arena::kAlignment;
    check(cudaMalloc(&base_, static_cast<size_t>(bytes_)), "cudaMalloc",
          fmt::format("an arena of {} bytes, of {} that are free on device {}", bytes_, free, device));
  }
  ~DeviceMemory() { cudaFree(base_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* base() const { return static_cast<std::byte*>(base_); }
  int64_t bytes() const { return bytes_; }

 private:
  void* base_ = nullptr;
  int64_t bytes_ = 0;
};

class CudaDevice final : public TaskDevice {
 public:
  explicit CudaDevice(const CudaDeviceOptions& o)
      : TaskDevice({o.threads, o.async, o.trace, o.jitter, o.stall_timeout}), index_(choose_device(o.index)), memory_(index_, o.budget),
        arena_(memory_.bytes()), events_(std::make_shared<cuda::EventPool>()) {
    constexpr auto kBytes = cuda::kGemmWorkspaceBytes;
    void* workspace = allocate(static_cast<int64_t>(kBytes), "workspace of matrix products", MemoryCategory::kWorkspace);
    if (cuda::set_gemm_workspace) cuda::set_gemm_workspace(workspace, kBytes);
    start(false, [&](StreamKind kind) -> std::unique_ptr<NativeQueue> {
      if (kind == StreamKind::kHost || kind == StreamKind::kDisk) return nullptr;
      auto queue = std::make_unique<cuda::CudaQueue>(index_, events_, o.trace, origin_);
      queues_[static_cast<size_t>(kind)] = queue.get();
      return queue;
    });
    take_origin();
  }
  ~CudaDevice() override {
    origin_.event = nullptr;
    stop();
    if (cuda::release_gemm) cuda::release_gemm();
  }

  Backend backend() const override { return Backend::kCuda; }

  void* allocate(int64_t bytes, std::string_view name, MemoryCategory category) override {
    return memory_.base() + arena_.allocate(bytes, name, category);
  }
  void release(void* memory) override { arena_.release(static_cast<std::byte*>(memory) - memory_.base()); }
  const MemoryReport& memory() const override { return arena_.report(); }
  bool shares_host_memory() const override { return false; }

  void pin(void* memory, int64_t bytes) override {
    cuda::use_device(index_);
    locked_.add(memory, bytes);
  }
  void unpin(void* memory) override { locked_.remove(memory); }

  void copy(Stream& s, void* dst, const void* src, int64_t bytes, CopyKind kind, const char* name) override {
    s.enqueue(name, {KernelClass::kVector, 0, 2.0 * static_cast<double>(bytes)}, [=, this, &s] {
      if (bytes == 0) return;
      const auto native = static_cast<cudaStream_t>(s.native());
      const void* host = kind == CopyKind::kUpload ? src : dst;
      if (kind == CopyKind::kWithinDevice || locked_.holds(host, bytes)) {
        check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), direction(kind), native), "cudaMemcpyAsync", name);
      } else if (kind == CopyKind::kUpload) {
        ring_of(s).upload(dst, src, bytes);
      } else {
        ring_of(s).download(dst, src, bytes);
      }
    });
  }

  std::vector<TraceSpan> take_trace() override {
    auto spans = TaskDevice::take_trace();
    if (traces()) take_origin();  // CUDA counts milliseconds in fp32
    return spans;
  }

 private:
  static cudaMemcpyKind direction(CopyKind kind) {
    return kind == CopyKind::kUpload ? cudaMemcpyHostToDevice : kind == CopyKind::kDownload ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice;
  }
  cuda::StagingRing& ring_of(Stream& s) {
    for (cuda::CudaQueue* queue : queues_)
      if (queue && queue->native() == s.native()) return queue->ring();
    MS_CHECK(false, "a copy over the link on a stream of the host's");
    __builtin_unreachable();
  }
  // When all streams rest.
  void take_origin() {
    cuda::use_device(index_);
    origin_.event = events_->record(static_cast<cudaStream_t>(queues_[0]->native()));
    origin_.event->synchronize();
    origin_.seconds = now();
  }

  int index_;
  DeviceMemory memory_;
  Arena arena_;
  std::shared_ptr<cuda::EventPool> events_;
  cuda::TimeOrigin origin_;
  cuda::CudaQueue* queues_[kStreamKinds] = {};
  LockedMemory locked_;
};

}  // namespace

CudaDeviceInfo cuda_device_info(int index) {
  index = choose_device(index);
  cuda::use_device(index);
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties");
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {p.name, static_cast<int64_t>(total), static_cast<int64_t>(free), 10 * p.major + p.minor};
}

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) { return std::make_unique<CudaDevice>(options); }

}  // namespace megaslide
