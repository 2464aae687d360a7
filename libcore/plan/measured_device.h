// A device under measurement: memory for operands, what each call costs, and when it began and ended by the device's clock.
// For the sources of this room that measure.
#pragma once
#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "config/model_config.h"
#include "device/device.h"
#include "kernels/memory/memory.h"
#include "model/wan.h"
#include "plan/calibrate_device.h"

namespace megaslide::measured {

// Passes calls on to a stream of the device and keeps what each costs, in order.
class RecordingStream final : public Stream {
 public:
  explicit RecordingStream(Stream& to) : to_(to) {}
  Backend backend() const override { return to_.backend(); }
  Backend target() const override { return to_.target(); }
  ThreadPool& pool() override { return to_.pool(); }
  void* native() override { return to_.native(); }
  void enqueue(const char* name, const Cost& cost, std::function<void()> work) override {
    costs.push_back(cost);
    to_.enqueue(name, cost, std::move(work));
  }
  std::vector<Cost> costs;

 private:
  Stream& to_;
};

// Memory of the device for the time of a measurement.
class Space {
 public:
  explicit Space(Device& device) : device_(device) {}
  ~Space() {
    for (void* p : taken_) device_.release(p);
  }
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  template <class T>
  T* zeros(int64_t n) {
    void* p = device_.allocate(n * static_cast<int64_t>(sizeof(T)), "calibration", MemoryCategory::kOther);
    taken_.push_back(p);
    fill_zero(device_.compute(), p, n * static_cast<int64_t>(sizeof(T)));
    return static_cast<T*>(p);
  }
  void* noise(DType dtype, int64_t n) {
    const HostTensor piece = calibration_noise(dtype, std::min<int64_t>(n, 1 << 16));
    auto* p = zeros<std::byte>(n * dtype_bytes(dtype));
    const int64_t bytes = n * dtype_bytes(dtype);
    device_.wait(device_.upload(), device_.record(device_.compute()));
    for (int64_t at = 0; at < bytes; at += piece.bytes())
      device_.copy(device_.upload(), p + at, piece.data(), std::min(piece.bytes(), bytes - at), CopyKind::kUpload, "noise");
    device_.synchronize();
    return p;
  }

 private:
  Device& device_;
  std::vector<void*> taken_;
};

// The calls of a stream since the last time, once all work is done.
inline std::vector<TraceSpan> spans_of(Device& device, StreamKind kind) {
  device.synchronize();
  std::vector<TraceSpan> spans = device.take_trace();
  std::erase_if(spans, [kind](const TraceSpan& s) { return s.stream != kind; });
  return spans;
}
inline double shortest(const std::vector<TraceSpan>& spans) {
  double least = 1e30;
  for (const TraceSpan& s : spans) least = std::min(least, s.end - s.begin);
  return least;
}

// A block of a model with noise for weights and inputs, in bf16.
class MeasuredBlock {
 public:
  MeasuredBlock(Device& device, const ModelConfig& model, const BatchShape& shape);
  void pack(Stream& stream, bool training);
  void forward(Stream& stream, bool save);
  void backward(Stream& stream);  // after a forward pass that saved

 private:
  LayerCall call(Stream& stream) { return {stream, workspace_, shape_, DType::kBF16, weights_, packed_}; }

  Network network_;
  const Layer& layer_;
  BatchShape shape_;
  Space space_;
  Workspace workspace_;
  const void* weights_;
  void *packed_, *saved_;
  float *x_, *y_, *dweights_;
  Conditioning conditioning_;
};

}  // namespace megaslide::measured
