// A device's memory for a codec, a text encoder or a network that scores (model/model_memory.h): blocks of its arena, work on its compute
// stream, copies on those of the link. Work and copies are one thread's at a time; memory may be released on any.
#pragma once
#include <memory>
#include <mutex>
#include <optional>

#include "device/device.h"
#include "model/model_memory.h"

namespace megaslide {

class DeviceModelMemory final : public ModelMemory {
 public:
  explicit DeviceModelMemory(Device& device) : device_(device) {}  // which outlives it

  Stream& stream() override { return device_.compute(); }
  void* allocate(int64_t bytes, const char* name) override;
  void release(void* memory) override;
  int64_t available() const override;
  void upload(void* to, const void* from, int64_t bytes) override;
  Mark download(void* to, const void* from, int64_t bytes) override;
  Mark mark() override;
  void wait(const Mark& mark) override;
  void settle() noexcept override;

 private:
  Device& device_;
  mutable std::mutex arena_mutex_;
};

// A device of a part's own, for as long as this lives: kCuda. kCpu: none, they compute on the processor.
class PartDevice {
 public:
  PartDevice(Backend backend, int threads);
  ModelMemory* memory() { return memory_ ? &*memory_ : nullptr; }

 private:
  std::unique_ptr<Device> device_;
  std::optional<DeviceModelMemory> memory_;
};

}  // namespace megaslide
