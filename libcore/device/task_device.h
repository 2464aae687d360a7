// What the devices that compute share: streams that are host threads with a queue, events, phases, failures, times.
//
// On `cpu` a stream's thread does the work itself. On `cuda` the threads of the compute and the link's streams issue the
// work to a queue of the driver (NativeQueue) and run ahead of it; those of host and disk work for themselves. So the host
// may wait for the device and the device for the host by the same events, and no callback of the driver ever blocks.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/device.h"
#include "device/event_state.h"

namespace megaslide {

// The driver's side of a stream. Its calls come from the stream's thread, and those that take from any when it rests.
class NativeQueue {
 public:
  virtual ~NativeQueue() = default;
  virtual void* native() = 0;
  // The event passes when all work issued so far is done.
  virtual std::shared_ptr<NativeEvent> record() = 0;
  // Around what is issued; and around the time in which the queue waits for an event, which is one of the driver's or none.
  virtual void begin_work(const char* name, int phase) = 0;
  virtual void end_work() = 0;
  virtual void begin_wait() = 0;
  virtual void end_wait(StreamKind source, const std::shared_ptr<NativeEvent>& event) = 0;
  // Adds this stream's row of seconds since the last call.
  virtual void take_times(StreamKind kind, StreamTimes& times) = 0;
  virtual void take_trace(StreamKind kind, std::vector<TraceSpan>& spans) = 0;
};

struct TaskDeviceOptions {
  int threads = 0;
  bool async = true;
  bool trace = false;
  double jitter = 0;
  double stall_timeout = 120;
};

class TaskStream;

class TaskDevice : public Device {
 public:
  explicit TaskDevice(const TaskDeviceOptions& options);
  ~TaskDevice() override;

  Stream& compute() override;
  Stream& upload() override;
  Stream& download() override;
  Stream& host() override;
  Stream& disk() override;

  Event record(Stream& s) override;
  void wait(Stream& s, const Event& event) override;
  void synchronize(const Event& event) override;
  void synchronize() override;

  void set_phase(const std::string& label) override;
  std::vector<std::string> phases() const override { return phases_; }
  std::vector<TraceSpan> take_trace() override;
  StreamTimes take_times() override;
  double now() const override;

 protected:
  using Clock = std::chrono::steady_clock;

  // Called once by the constructor of the device itself, when its queues can be made: nullptr for a stream that works
  // on its own thread. With one_thread everything is one stream.
  void start(bool one_thread, const std::function<std::unique_ptr<NativeQueue>(StreamKind)>& queue_of);
  // Joins the streams; the destructor of the device itself calls it first.
  void stop();
  ThreadPool& pool() { return pool_; }
  bool traces() const { return options_.trace; }

 private:
  friend class TaskStream;

  // First failure of any stream; once set, streams drop their work so that everybody comes to rest.
  struct Failure {
    std::mutex mutex;
    std::exception_ptr error;
    std::atomic<bool> failed{false};
    void set(std::exception_ptr e);
    void rethrow();
  };
  static constexpr size_t kMaxPhases = 4096;

  TaskStream& stream(StreamKind k);
  // Where streams are to take turns though each has a thread: the next work waits for all before.
  void take_turn(TaskStream& next);
  uint64_t total_progress();
  [[noreturn]] void stalled();

  TaskDeviceOptions options_;
  ThreadPool pool_;
  Failure failure_;
  Clock::time_point epoch_;
  std::vector<std::string> phases_;
  std::map<std::string, int> phase_index_;
  bool turns_ = false;
  TaskStream* last_ = nullptr;
  std::vector<std::unique_ptr<TaskStream>> streams_;
};

}  // namespace megaslide
