#include "device/cuda/events.h"

namespace megaslide::cuda {

CudaEvent::~CudaEvent() {
  std::lock_guard lock(pool_->mutex_);
  pool_->free_.push_back(event_);
}

bool CudaEvent::passed() {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaEventQuery");
  return true;
}

void CudaEvent::synchronize() { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

EventPool::~EventPool() {
  for (cudaEvent_t e : free_) cudaEventDestroy(e);
}

std::shared_ptr<CudaEvent> EventPool::record(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    }
  }
  if (!event) {
    // A thread that waits for it sleeps.
    check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "cudaEventCreateWithFlags");
  }
  auto shared = std::make_shared<CudaEvent>(shared_from_this(), event);
  check(cudaEventRecord(event, stream), "cudaEventRecord");
  return shared;
}

double seconds_between(const CudaEvent& begin, const CudaEvent& end) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.native(), end.native()), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace megaslide::cuda
