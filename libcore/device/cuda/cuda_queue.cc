#include "device/cuda/cuda_queue.h"

#include "base/error.h"

namespace megaslide::cuda {

CudaQueue::DriverStream::DriverStream(int device) {
  use_device(device);
  check(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaQueue::CudaQueue(int device, std::shared_ptr<EventPool> events, bool trace, const TimeOrigin& origin)
    : device_(device), events_(std::move(events)), stream_(device), trace_(trace), origin_(origin) {}

std::shared_ptr<NativeEvent> CudaQueue::record() {
  use_device(device_);
  auto event = events_->record(stream_.native);
  std::lock_guard lock(mutex_);
  last_ = event;
  return event;
}

void CudaQueue::begin_work(const char* name, int phase) {
  use_device(device_);
  std::lock_guard lock(mutex_);
  if (!busy_since_) {
    busy_since_ = events_->record(stream_.native);
    last_ = nullptr;
  }
  if (trace_) work_.push_back({name, phase, events_->record(stream_.native), nullptr});
}

void CudaQueue::end_work() {
  if (!trace_) return;
  std::lock_guard lock(mutex_);
  work_.back().end = events_->record(stream_.native);
}

void CudaQueue::begin_wait() {
  use_device(device_);
  std::lock_guard lock(mutex_);
  wait_since_ = last_ = events_->record(stream_.native);
  if (busy_since_) busy_.push_back({std::exchange(busy_since_, nullptr), wait_since_});
}

void CudaQueue::end_wait(StreamKind source, const std::shared_ptr<NativeEvent>& event) {
  if (event) check(cudaStreamWaitEvent(stream_.native, static_cast<CudaEvent&>(*event).native(), 0), "cudaStreamWaitEvent");
  std::lock_guard lock(mutex_);
  auto end = events_->record(stream_.native);
  if (wait_since_) waits_.push_back({source, std::exchange(wait_since_, nullptr), end});
  busy_since_ = std::move(end);
  last_ = nullptr;
}

void CudaQueue::take_times(StreamKind kind, StreamTimes& times) {
  std::lock_guard lock(mutex_);
  if (busy_since_ && last_) busy_.push_back({std::exchange(busy_since_, nullptr), last_});
  const auto row = static_cast<size_t>(kind);
  // What is still under way belongs to the next call.
  std::erase_if(busy_, [&](const Busy& b) {
    const bool passed = b.end->passed();
    if (passed) times.busy[row] += seconds_between(*b.begin, *b.end);
    return passed;
  });
  std::erase_if(waits_, [&](const Wait& w) {
    const bool passed = w.end->passed();
    if (passed) times.waits[row][static_cast<size_t>(w.source)] += seconds_between(*w.begin, *w.end);
    return passed;
  });
}

void CudaQueue::take_trace(StreamKind kind, std::vector<TraceSpan>& spans) {
  std::lock_guard lock(mutex_);
  const auto at = [this](const CudaEvent& e) { return origin_.seconds + seconds_between(*origin_.event, e); };
  std::erase_if(work_, [&](const Work& w) {
    const bool passed = w.end && w.end->passed();
    if (passed) spans.push_back({w.name, w.phase, kind, at(*w.begin), at(*w.end)});
    return passed;
  });
}

}  // namespace megaslide::cuda
