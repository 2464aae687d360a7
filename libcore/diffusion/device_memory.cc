#include "diffusion/device_memory.h"

#include <algorithm>
#include <limits>

#include "kernels/memory/memory.h"

namespace megaslide {
namespace {

ModelMemory::Mark mark_of(Event event) { return std::make_shared<const Event>(std::move(event)); }

}  // namespace

void* DeviceModelMemory::allocate(int64_t bytes, const char* name) {
  void* memory = [&] {
    const std::lock_guard lock(arena_mutex_);
    return device_.allocate(bytes, name, MemoryCategory::kOther);
  }();
  fill_zero(device_.compute(), memory, bytes);
  // An upload to it comes behind the zeros.
  device_.wait(device_.upload(), device_.record(device_.compute()));
  return memory;
}

void DeviceModelMemory::release(void* memory) {
  const std::lock_guard lock(arena_mutex_);
  device_.release(memory);
}

int64_t DeviceModelMemory::available() const {
  const std::lock_guard lock(arena_mutex_);
  const MemoryReport& report = device_.memory();
  return report.budget == 0 ? std::numeric_limits<int64_t>::max() : std::max<int64_t>(report.budget - report.in_use, 0);
}

void DeviceModelMemory::upload(void* to, const void* from, int64_t bytes) {
  device_.copy(device_.upload(), to, from, bytes, CopyKind::kUpload, "upload_part");
  device_.wait(device_.compute(), device_.record(device_.upload()));
}

ModelMemory::Mark DeviceModelMemory::download(void* to, const void* from, int64_t bytes) {
  device_.wait(device_.download(), device_.record(device_.compute()));
  device_.copy(device_.download(), to, from, bytes, CopyKind::kDownload, "download_part");
  return mark_of(device_.record(device_.download()));
}

ModelMemory::Mark DeviceModelMemory::mark() { return mark_of(device_.record(device_.compute())); }

void DeviceModelMemory::wait(const Mark& mark) {
  if (mark) device_.synchronize(*static_cast<const Event*>(mark.get()));
}

void DeviceModelMemory::settle() noexcept {
  try {
    device_.synchronize();
  } catch (...) {  // whoever waits for a result is told
  }
}

PartDevice::PartDevice(Backend backend, int threads) {
  if (backend != Backend::kCuda) return;
  device_ = make_device(backend, {.threads = threads});
  memory_.emplace(*device_);
}

}  // namespace megaslide
