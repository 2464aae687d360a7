// Events of the driver, used again when nobody refers to them any more.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda/api.h"
#include "device/event_state.h"

namespace megaslide::cuda {

class EventPool;

class CudaEvent final : public NativeEvent {
 public:
  CudaEvent(std::shared_ptr<EventPool> pool, cudaEvent_t event) : pool_(std::move(pool)), event_(event) {}
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t native() const { return event_; }
  bool passed() override;
  void synchronize() override;

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
};

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  EventPool() = default;
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  // Recorded behind what was issued to the stream so far.
  std::shared_ptr<CudaEvent> record(cudaStream_t stream);

 private:
  friend class CudaEvent;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

// Seconds from one event that has passed to another.
double seconds_between(const CudaEvent& begin, const CudaEvent& end);

}  // namespace megaslide::cuda
