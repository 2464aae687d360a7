// A device that forgets one kind of edge: waits of one stream on events of another. For tests that show each edge of
// the schedule to be needed.
#pragma once
#include "device/device.h"
#include "device/event_state.h"

namespace megaslide::testing {

struct Edge {
  StreamKind waiter, source;
};

class EdgeDroppingDevice final : public Device {
 public:
  EdgeDroppingDevice(Device& inner, Edge edge) : inner_(inner), dropped_(edge) {}
  int dropped = 0;

  Backend backend() const override { return inner_.backend(); }
  Stream& compute() override { return inner_.compute(); }
  Stream& upload() override { return inner_.upload(); }
  Stream& download() override { return inner_.download(); }
  Stream& host() override { return inner_.host(); }
  Stream& disk() override { return inner_.disk(); }
  void* allocate(int64_t bytes, std::string_view name, MemoryCategory c) override { return inner_.allocate(bytes, name, c); }
  void release(void* p) override { inner_.release(p); }
  const MemoryReport& memory() const override { return inner_.memory(); }
  bool shares_host_memory() const override { return inner_.shares_host_memory(); }
  void copy(Stream& s, void* d, const void* src, int64_t n, CopyKind k, const char* name) override { inner_.copy(s, d, src, n, k, name); }
  Event record(Stream& s) override { return inner_.record(s); }
  void wait(Stream& s, const Event& e) override {
    if (e.state() && e.state()->source == dropped_.source && &s == &stream(dropped_.waiter)) {
      ++dropped;
      return;
    }
    inner_.wait(s, e);
  }
  void synchronize(const Event& e) override { inner_.synchronize(e); }
  void synchronize() override { inner_.synchronize(); }
  void set_phase(const std::string& label) override { inner_.set_phase(label); }
  std::vector<std::string> phases() const override { return inner_.phases(); }
  std::vector<TraceSpan> take_trace() override { return inner_.take_trace(); }
  StreamTimes take_times() override { return inner_.take_times(); }
  double now() const override { return inner_.now(); }

 private:
  Stream& stream(StreamKind k) {
    switch (k) {
      case StreamKind::kCompute: return inner_.compute();
      case StreamKind::kUpload: return inner_.upload();
      case StreamKind::kDownload: return inner_.download();
      case StreamKind::kHost: return inner_.host();
      case StreamKind::kDisk: return inner_.disk();
    }
    return inner_.compute();
  }
  Device& inner_;
  Edge dropped_;
};

}  // namespace megaslide::testing
