// The `cpu` device: each stream is a worker thread with a queue, and works for itself.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "device/arena.h"
#include "device/task_device.h"

namespace megaslide {
namespace {

class CpuDevice final : public TaskDevice {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options)
      : TaskDevice({options.threads, options.async, options.trace, options.jitter, options.stall_timeout}), options_(options), arena_(options.budget) {
    reserve();
    start(!options.async, {});
  }
  ~CpuDevice() override {
    stop();
    munmap(base_, static_cast<size_t>(reserved_));
  }

  Backend backend() const override { return Backend::kCpu; }

  void* allocate(int64_t bytes, std::string_view name, MemoryCategory category) override {
    const int64_t at = arena_.allocate(bytes, name, category);
    if (arena_.extent() > reserved_)
      throw Error(fmt::format("out of device memory: {} ends at byte {}, {} of address space are reserved", name, arena_.extent(), reserved_),
                  "set stream.device_budget: that much is reserved", ErrorKind::kNo);
    return static_cast<std::byte*>(base_) + at;
  }
  void release(void* memory) override { arena_.release(static_cast<std::byte*>(memory) - static_cast<std::byte*>(base_)); }
  const MemoryReport& memory() const override { return arena_.report(); }
  bool shares_host_memory() const override { return options_.link == LinkKind::kShared; }

  void copy(Stream& s, void* dst, const void* src, int64_t bytes, CopyKind kind, const char* name) override {
    const bool over_link = kind != CopyKind::kWithinDevice && options_.link == LinkKind::kEmulated && options_.bandwidth > 0;
    s.enqueue(name, {KernelClass::kVector, 0, 2.0 * static_cast<double>(bytes)}, [=, this] {
      const auto begin = Clock::now();
      if (dst != src && bytes > 0) std::memcpy(dst, src, static_cast<size_t>(bytes));
      // The rest of the time that the link would take is slept, so that it costs no processor.
      if (over_link) std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(
                                                               std::chrono::duration<double>(static_cast<double>(bytes) / options_.bandwidth)));
    });
  }

 private:
  // Address space for the budget; without one a terabyte, or as much of it as limits on the process leave.
  void reserve() {
    for (reserved_ = options_.budget ? options_.budget : int64_t{1} << 40;; reserved_ /= 4) {
      base_ = mmap(nullptr, static_cast<size_t>(reserved_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base_ != MAP_FAILED) return;
      const int error = errno;
      if (options_.budget || reserved_ < int64_t{1} << 32)
        throw system_error("reserve the device arena of", std::to_string(reserved_) + " bytes", error,
                           "set stream.device_budget to what the run needs (plan-memory tells), or raise ulimit -v");
    }
  }

  CpuDeviceOptions options_;
  Arena arena_;
  void* base_ = nullptr;
  int64_t reserved_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) { return std::make_unique<CpuDevice>(options); }

}  // namespace megaslide
