// A stream of the driver, with the times of what it did: measured by events on the device itself.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/cuda/events.h"
#include "device/cuda/staging_ring.h"
#include "device/task_device.h"

namespace megaslide::cuda {

// Where times of a trace count from.
struct TimeOrigin {
  std::shared_ptr<CudaEvent> event;
  double seconds = 0;  // on the device's clock (Device::now)
};

class CudaQueue final : public NativeQueue {
 public:
  CudaQueue(int device, std::shared_ptr<EventPool> events, bool trace, const TimeOrigin& origin);

  void* native() override { return stream_.native; }
  std::shared_ptr<NativeEvent> record() override;
  void begin_work(const char* name, int phase) override;
  void end_work() override;
  void begin_wait() override;
  void end_wait(StreamKind source, const std::shared_ptr<NativeEvent>& event) override;
  void take_times(StreamKind kind, StreamTimes& times) override;
  void take_trace(StreamKind kind, std::vector<TraceSpan>& spans) override;

  // Made when first asked for: a queue whose copies are all of locked memory needs none. From the stream's thread.
  StagingRing& ring() { return ring_ ? *ring_ : ring_.emplace(*events_, stream_.native); }

 private:
  struct Busy {
    std::shared_ptr<CudaEvent> begin, end;
  };
  struct Wait {
    StreamKind source;
    std::shared_ptr<CudaEvent> begin, end;
  };
  struct Work {
    const char* name;
    int phase;
    std::shared_ptr<CudaEvent> begin, end;
  };

  int device_;
  std::shared_ptr<EventPool> events_;
  struct DriverStream {
    explicit DriverStream(int device);
    ~DriverStream() { cudaStreamDestroy(native); }
    DriverStream(const DriverStream&) = delete;
    DriverStream& operator=(const DriverStream&) = delete;
    cudaStream_t native = nullptr;
  } stream_;
  std::optional<StagingRing> ring_;
  const bool trace_;
  const TimeOrigin& origin_;
  std::mutex mutex_;
  // Between waits the stream counts as busy, from the first work on.
  std::shared_ptr<CudaEvent> busy_since_, wait_since_;
  std::shared_ptr<CudaEvent> last_;  // recorded since
  std::vector<Busy> busy_;
  std::vector<Wait> waits_;
  std::vector<Work> work_;
};

}  // namespace megaslide::cuda
