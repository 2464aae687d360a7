// The machine that computes: an arena of device memory, four ordered streams, events.
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
#include <vector>

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

// What a stream waited for, in seconds since the last reset.
struct StreamTimes {
  double busy = 0;
  double waiting = 0;  // on events, with work queued behind
};

class Device {
 public:
  virtual ~Device() = default;
  virtual Backend backend() const = 0;

  virtual Stream& compute() = 0;
  virtual Stream& upload() = 0;
  virtual Stream& download() = 0;
  virtual Stream& host() = 0;  // work of the host's processor: optimizer, norms, staging

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

  virtual Event record(Stream& stream) = 0;
  virtual void wait(Stream& stream, const Event& event) = 0;
  // Blocks the host until the event has passed / all streams are idle. Throws what failed on a stream, first failure
  // first, with its name as context.
  virtual void synchronize(const Event& event) = 0;
  virtual void synchronize() = 0;

  // Marks the trace: everything issued from here on belongs to `label` ("forward 3").
  virtual void set_phase(std::string label) = 0;

  // Seconds on the device's clock: wall clock, or the simulated one up to the last synchronize().
  virtual double now() const = 0;
};

}  // namespace megaslide
