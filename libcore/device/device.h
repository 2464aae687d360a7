// The machine that computes: an arena of device memory, five ordered streams, events.
//
// Everything is issued by one host thread and runs asynchronously; order between streams comes from events alone.
// The schedule is written once against this interface and runs on `cpu`, `cuda` and `sim`. `sim` allocates nothing and
// computes nothing: addresses are virtual, each call is charged its cost on a discrete-event clock, so that a plan is
// the program itself.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/optional_entry.h"
#include "kernels/stream.h"

namespace megaslide {

enum class MemoryCategory { kWeights, kActivations, kGradients, kWorkspace, kOther };
std::string_view memory_category_name(MemoryCategory c);

// A point in a stream's work. Copyable; an empty event counts as passed.
class Event {
 public:
  struct State;
  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  State* state() const { return state_.get(); }
  const std::shared_ptr<State>& shared() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

enum class CopyKind { kUpload, kDownload, kWithinDevice };

struct DeviceAllocation {
  std::string name;
  MemoryCategory category;
  int64_t bytes;  // rounded up to the arena's alignment
};

// What the arena holds and held. Bytes include the alignment of 256.
struct MemoryReport {
  int64_t budget = 0;   // 0: unlimited
  int64_t in_use = 0, peak = 0;
  int64_t peak_by_category[5] = {};  // at the instant of the peak
  std::vector<DeviceAllocation> at_peak;
};

enum class StreamKind { kCompute, kUpload, kDownload, kHost, kDisk };
constexpr int kStreamKinds = 5;
std::string_view stream_kind_name(StreamKind k);  // "compute", "upload", "download", "host", "disk"

// One piece of work in a trace; seconds on the device's clock.
struct TraceSpan {
  const char* name;     // of the kernel or copy
  int phase;            // index into Device::phases()
  StreamKind stream;
  double begin, end;
};

// Seconds, since the last take_times().
struct StreamTimes {
  double busy[kStreamKinds] = {};                 // a stream at work
  double waits[kStreamKinds][kStreamKinds] = {};  // stream i idle until an event of stream j
  double flops = 0;                               // executed on the compute stream

  double wait(StreamKind waiter, StreamKind source) const { return waits[static_cast<size_t>(waiter)][static_cast<size_t>(source)]; }
  // What the compute stream waited for in the end: an upload that itself waited for the optimizer is the optimizer's, and
  // what waited for state from the disk, the disk's.
  double wait_disk() const;
  double wait_optimizer() const;
  double wait_upload() const { return wait(StreamKind::kCompute, StreamKind::kUpload) - wait_optimizer() - wait_disk(); }
  double wait_download() const { return wait(StreamKind::kCompute, StreamKind::kDownload); }
};

class Device {
 public:
  virtual ~Device() = default;
  virtual Backend backend() const = 0;

  virtual Stream& compute() = 0;
  virtual Stream& upload() = 0;
  virtual Stream& download() = 0;
  virtual Stream& host() = 0;  // work of the host's processor: optimizer, norms, staging
  virtual Stream& disk() = 0;  // state to and from the disk (stream/state_traffic.h)

  // Device memory, 256-byte aligned, from the arena. Throws Error (with the ledger and a remedy) beyond the budget.
  // Memory is handed out and taken back in the order of the calls, not of the streams: a caller that frees what a
  // stream still uses must wait for it first.
  virtual void* allocate(int64_t bytes, std::string_view name, MemoryCategory category) = 0;
  virtual void release(void* memory) = 0;
  virtual const MemoryReport& memory() const = 0;

  // True where kernels may read host memory in place, so that an upload needs no copy (`link: shared`).
  virtual bool shares_host_memory() const = 0;
  // Queues a copy on `stream`, at the link's speed for uploads and downloads. `name` is static.
  virtual void copy(Stream& stream, void* dst, const void* src, int64_t bytes, CopyKind kind, const char* name) = 0;

  // Tells that copies from and to this host memory will come, from page boundary to page boundary: `cuda` locks it in
  // memory, where the system lets it. Calls for the same memory nest. No copy is under way at unpin().
  virtual void pin(void* /*memory*/, int64_t /*bytes*/) {}
  virtual void unpin(void* /*memory*/) {}

  virtual Event record(Stream& stream) = 0;
  virtual void wait(Stream& stream, const Event& event) = 0;
  // Blocks the host until the event has passed / all streams are idle. Throws what failed on a stream, first failure
  // first, with its name as context.
  virtual void synchronize(const Event& event) = 0;
  virtual void synchronize() = 0;

  // Marks the trace and errors: everything issued from here on belongs to `label` ("forward 3").
  virtual void set_phase(const std::string& label) = 0;
  virtual std::vector<std::string> phases() const = 0;
  // Spans since the last call, when tracing was asked for. Call after synchronize().
  virtual std::vector<TraceSpan> take_trace() = 0;
  virtual StreamTimes take_times() = 0;

  // Seconds on the device's clock: wall clock, or the simulated one up to the last synchronize().
  virtual double now() const = 0;
};

// Pinned as long as this lives.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(Device& device, const std::vector<std::pair<void*, int64_t>>& spans) : device_(&device) {
    for (const auto& [memory, bytes] : spans) {
      device.pin(memory, bytes);
      memory_.push_back(memory);
    }
  }
  ~PinnedMemory() { clear(); }
  PinnedMemory(PinnedMemory&& other) noexcept : device_(other.device_), memory_(std::exchange(other.memory_, {})) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    clear();
    device_ = other.device_;
    memory_ = std::exchange(other.memory_, {});
    return *this;
  }
  void clear() {
    for (void* p : memory_) device_->unpin(p);
    memory_.clear();
  }

 private:
  Device* device_ = nullptr;
  std::vector<void*> memory_;
};

enum class LinkKind { kShared, kEmulated };

struct CpuDeviceOptions {
  int threads = 0;              // 0: all this process may use
  bool async = true;            // false: one stream, everything strictly in turn
  LinkKind link = LinkKind::kShared;
  double bandwidth = 0;         // of the emulated link, bytes/s each way; 0: as fast as memory
  int64_t budget = 0;           // of the arena, bytes; 0: unlimited
  bool trace = false;
  double jitter = 0;            // seconds: each task is delayed by up to this, at random (race tests)
  double stall_timeout = 120;   // seconds without progress on any stream before synchronize() fails; 0: never
};
std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options);

struct CudaDeviceOptions {
  int index = -1;               // among those visible; -1: the one with most memory
  int threads = 0;              // of the host's work
  bool async = true;            // false: streams take turns
  int64_t budget = 0;           // of the arena, bytes, taken at once; 0: what is free, but for a rest
  bool trace = false;
  double jitter = 0;
  double stall_timeout = 120;
};
// Only in programs with CUDA. Throws Error where no device can be used.
MS_OPTIONAL std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);
// The device of this backend, kCpu or kCuda, with what the options say of both: a GPU has a link of its own.
std::unique_ptr<Device> make_device(Backend backend, const CpuDeviceOptions& options);
struct CudaDeviceInfo {
  std::string name;
  int64_t memory = 0, free = 0;  // bytes
  int capability = 0;            // 90 for sm_90
};
// Throws a usage Error where the device does not multiply E4M3: those before sm_89.
void require_fp8_products(const CudaDeviceInfo& device);
// Of the device that make_cuda_device() would take. Throws as it does.
MS_OPTIONAL CudaDeviceInfo cuda_device_info(int index);

// Rates of a machine, from a machine file (config/machine_config.h). Bytes and flops a second; 0 means unlimited.
struct SimRates {
  double gemm = 0, attention = 0;          // flop/s of KernelClass::kGemm and kAttention
  double memory_bytes = 0;                  // device memory, the other limit of products and attention
  double vector_bytes = 0, pack_bytes = 0;  // traffic that elementwise kernels and packing reach
  double optimizer_bytes = 0, host_bytes = 0;
  double disk_read = 0, disk_write = 0;
  double link_up = 0, link_down = 0;
  double link_derating = 1;                 // of the link's speed while the host streams DRAM (≤ 1)
  double launch_latency = 0;                // seconds a task
  bool unified = false;                     // the device is the host's processor: compute and host work share it
};

struct SimDeviceOptions {
  SimRates rates = {};
  Backend target = Backend::kCpu;  // whose workspaces are taken: kCpu or kCuda
  bool async = true;
  LinkKind link = LinkKind::kShared;
  double bandwidth = 0;  // of the emulated link; overrides link_up and link_down
  int64_t budget = 0;
  bool trace = false;
};
std::unique_ptr<Device> make_sim_device(const SimDeviceOptions& options);

}  // namespace megaslide
