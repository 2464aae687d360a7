// The `cpu` device: each stream is a worker thread with a queue.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "device/arena.h"
#include "device/event_state.h"

namespace megaslide {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); }

// First failure of any stream; once set, streams drop their work so that everybody comes to rest.
struct Failure {
  std::mutex mutex;
  std::exception_ptr error;
  std::atomic<bool> failed{false};

  void set(std::exception_ptr e) {
    std::lock_guard lock(mutex);
    if (!error) error = std::move(e);
    failed.store(true, std::memory_order_release);
  }
  void rethrow() {
    std::lock_guard lock(mutex);
    if (error) std::rethrow_exception(error);
  }
};

class CpuStream final : public Stream {
 public:
  CpuStream(StreamKind kind, ThreadPool& pool, Failure& failure, const CpuDeviceOptions& options, Clock::time_point epoch,
            const std::vector<std::string>& phases)
      : kind_(kind), pool_(pool), failure_(failure), options_(options), epoch_(epoch), phases_(phases),
        thread_([this] { run(); }) {}

  ~CpuStream() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Backend backend() const override { return Backend::kCpu; }
  ThreadPool& pool() override { return pool_; }

  void enqueue(const char* name, const Cost& cost, std::function<void()> work) override {
    // With one stream for everything the host's work is queued here too; it is none of the device's.
    push({Task::kWork, name, phase, is_host_work(cost.kernel_class) ? 0 : cost.flops, std::move(work), nullptr});
  }
  void push_signal(std::shared_ptr<Event::State> e) { push({Task::kSignal, "record", phase, 0, nullptr, std::move(e)}); }
  void push_wait(std::shared_ptr<Event::State> e) { push({Task::kWait, "wait", phase, 0, nullptr, std::move(e)}); }

  StreamTimes take_times() {
    std::lock_guard lock(mutex_);
    return std::exchange(times_, {});
  }
  std::vector<TraceSpan> take_trace() {
    std::lock_guard lock(mutex_);
    return std::exchange(trace_, {});
  }
  std::string describe() {
    std::lock_guard lock(mutex_);
    return fmt::format("{}: {}{}, {} queued", stream_kind_name(kind_), doing_ ? doing_ : "idle",
                       doing_ ? " in " + phases_.data()[doing_phase_] : "",
                       queue_.size());
  }
  uint64_t progress() const { return completed_.load(std::memory_order_relaxed); }
  StreamKind kind() const { return kind_; }

  int phase = 0;  // set by the issuing thread

 private:
  struct Task {
    enum Kind { kWork, kSignal, kWait } kind;
    const char* name;
    int phase;
    double flops;
    std::function<void()> work;
    std::shared_ptr<Event::State> event;
  };

  void push(Task t) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(t));
    }
    wake_.notify_one();
  }

  void run() {
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        task = std::move(queue_.front());
        queue_.pop_front();
        doing_ = task.name;
        doing_phase_ = task.phase;
      }
      if (options_.jitter > 0) jitter();
      perform(task);
      completed_.fetch_add(1, std::memory_order_relaxed);
      std::lock_guard lock(mutex_);
      doing_ = nullptr;
    }
  }

  void perform(Task& task) {
    if (task.kind == Task::kSignal) {
      std::lock_guard lock(task.event->mutex);
      task.event->done = true;
      task.event->passed.notify_all();
      return;
    }
    const auto begin = Clock::now();
    if (task.kind == Task::kWait) {
      std::unique_lock lock(task.event->mutex);
      task.event->passed.wait(lock, [&] { return task.event->done; });
      lock.unlock();
      const double waited = seconds_between(begin, Clock::now());
      std::lock_guard guard(mutex_);
      times_.waits[static_cast<size_t>(kind_)][static_cast<size_t>(task.event->source)] += waited;
      return;
    }
    if (failure_.failed.load(std::memory_order_acquire)) return;
    try {
      task.work();
    } catch (Error& e) {
      e.add_context(task.name);
      if (task.phase) e.add_context(phases_.data()[task.phase]);
      failure_.set(std::make_exception_ptr(e));
    } catch (const std::exception& e) {
      failure_.set(std::make_exception_ptr(Error(fmt::format("{} on the {} stream: {}", task.name, stream_kind_name(kind_), e.what()))));
    }
    task.work = nullptr;
    const auto end = Clock::now();
    std::lock_guard lock(mutex_);
    times_.busy[static_cast<size_t>(kind_)] += seconds_between(begin, end);
    times_.flops += task.flops;
    if (options_.trace) trace_.push_back({task.name, task.phase, kind_, seconds_between(epoch_, begin), seconds_between(epoch_, end)});
  }

  void jitter() {
    const double u = Random(static_cast<uint64_t>(kind_), RandomPurpose::kTest).uniform(jitter_seed(), jitter_draw_++);
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.jitter * u * u * u));
  }
  static uint64_t jitter_seed() { return static_cast<uint64_t>(Clock::now().time_since_epoch().count()); }

  const StreamKind kind_;
  ThreadPool& pool_;
  Failure& failure_;
  const CpuDeviceOptions& options_;
  const Clock::time_point epoch_;
  const std::vector<std::string>& phases_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> queue_;
  bool stop_ = false;
  const char* doing_ = nullptr;
  int doing_phase_ = 0;
  std::atomic<uint64_t> completed_{0};
  uint64_t jitter_draw_ = 0;
  StreamTimes times_;
  std::vector<TraceSpan> trace_;
  std::thread thread_;  // last: starts when everything else exists
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options)
      : options_(options), pool_(options.threads > 0 ? options.threads : available_threads()), arena_(options.budget),
        epoch_(Clock::now()) {
    reserve();
    phases_.reserve(kMaxPhases);  // never moves: workers read entries while the issuing thread appends
    phases_.emplace_back();
    const int streams = options_.async ? kStreamKinds : 1;
    for (int k = 0; k < streams; ++k)
      streams_.push_back(std::make_unique<CpuStream>(static_cast<StreamKind>(k), pool_, failure_, options_, epoch_, phases_));
  }
  ~CpuDevice() override {
    streams_.clear();
    munmap(base_, static_cast<size_t>(reserved_));
  }

  Backend backend() const override { return Backend::kCpu; }
  Stream& compute() override { return stream(StreamKind::kCompute); }
  Stream& upload() override { return stream(StreamKind::kUpload); }
  Stream& download() override { return stream(StreamKind::kDownload); }
  Stream& host() override { return stream(StreamKind::kHost); }
  Stream& disk() override { return stream(StreamKind::kDisk); }

  void* allocate(int64_t bytes, std::string_view name, MemoryCategory category) override {
    const int64_t at = arena_.allocate(bytes, name, category);
    if (arena_.extent() > reserved_)
      throw Error(fmt::format("out of device memory: {} ends at byte {}, {} of address space are reserved", name, arena_.extent(), reserved_),
                  "set stream.device_budget: that much is reserved", ErrorKind::kNo);
    return static_cast<std::byte*>(base_) + at;
  }
  void release(void* memory) override { arena_.release(static_cast<std::byte*>(memory) - static_cast<std::byte*>(base_)); }
  const MemoryReport& memory() const override { return arena_.report(); }
  bool shares_host_memory() const override { return options_.link == LinkKind::kShared; }

  void copy(Stream& s, void* dst, const void* src, int64_t bytes, CopyKind kind, const char* name) override {
    const bool over_link = kind != CopyKind::kWithinDevice && options_.link == LinkKind::kEmulated && options_.bandwidth > 0;
    s.enqueue(name, {KernelClass::kVector, 0, 2.0 * static_cast<double>(bytes)}, [=, this] {
      const auto begin = Clock::now();
      if (dst != src && bytes > 0) std::memcpy(dst, src, static_cast<size_t>(bytes));
      // The rest of the time that the link would take is slept, so that it costs no processor.
      if (over_link) std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(
                                                               std::chrono::duration<double>(static_cast<double>(bytes) / options_.bandwidth)));
    });
  }

  Event record(Stream& s) override {
    auto state = std::make_shared<Event::State>();
    state->source = static_cast<CpuStream&>(s).kind();
    static_cast<CpuStream&>(s).push_signal(state);
    return Event(std::move(state));
  }

  void wait(Stream& s, const Event& event) override {
    if (event.state()) static_cast<CpuStream&>(s).push_wait(event.shared());
  }

  void synchronize(const Event& event) override {
    if (event.state()) {
      auto& e = *event.state();
      std::unique_lock lock(e.mutex);
      uint64_t seen = total_progress();
      auto last = Clock::now();
      while (!e.passed.wait_for(lock, std::chrono::milliseconds(500), [&] { return e.done; })) {
        const uint64_t now_done = total_progress();
        if (now_done != seen) {
          seen = now_done;
          last = Clock::now();
        }
        if (options_.stall_timeout > 0 && seconds_between(last, Clock::now()) > options_.stall_timeout) stalled();
      }
    }
    failure_.rethrow();
  }

  void synchronize() override {
    for (auto& s : streams_) {
      const Event e = record(*s);
      synchronize(e);
    }
  }

  void set_phase(const std::string& label) override {
    auto it = phase_index_.find(label);
    if (it == phase_index_.end() && phases_.size() < kMaxPhases) {
      phases_.push_back(label);
      it = phase_index_.emplace(label, static_cast<int>(phases_.size()) - 1).first;
    }
    for (auto& s : streams_) s->phase = it == phase_index_.end() ? 0 : it->second;
  }
  std::vector<std::string> phases() const override { return phases_; }

  std::vector<TraceSpan> take_trace() override {
    std::vector<TraceSpan> all;
    for (auto& s : streams_) {
      auto t = s->take_trace();
      all.insert(all.end(), t.begin(), t.end());
    }
    std::sort(all.begin(), all.end(), [](const TraceSpan& a, const TraceSpan& b) { return a.begin < b.begin; });
    return all;
  }

  StreamTimes take_times() override {
    StreamTimes total;
    for (size_t i = 0; i < streams_.size(); ++i) {
      const StreamTimes t = streams_[i]->take_times();
      total.busy[i] = t.busy[i];
      std::copy(std::begin(t.waits[i]), std::end(t.waits[i]), total.waits[i]);
      if (i == 0) total.flops = t.flops;
    }
    return total;
  }

  double now() const override { return seconds_between(epoch_, Clock::now()); }

 private:
  static constexpr size_t kMaxPhases = 4096;

  // Address space for the budget; without one a terabyte, or as much of it as limits on the process leave.
  void reserve() {
    for (reserved_ = options_.budget ? options_.budget : int64_t{1} << 40;; reserved_ /= 4) {
      base_ = mmap(nullptr, static_cast<size_t>(reserved_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base_ != MAP_FAILED) return;
      const int error = errno;
      if (options_.budget || reserved_ < int64_t{1} << 32)
        throw system_error("reserve the device arena of", std::to_string(reserved_) + " bytes", error,
                           "set stream.device_budget to what the run needs (plan-memory tells), or raise ulimit -v");
    }
  }

  CpuStream& stream(StreamKind k) { return *streams_[options_.async ? static_cast<size_t>(k) : 0]; }
  uint64_t total_progress() const {
    uint64_t n = 0;
    for (auto& s : streams_) n += s->progress();
    return n;
  }
  [[noreturn]] void stalled() {
    std::string text;
    for (auto& s : streams_) text += "\n  " + s->describe();
    const Error error(fmt::format("no stream made progress for {:.0f} s:{}", options_.stall_timeout, text),
                      "if the machine is merely slow, raise train.stall_timeout");
    // Said at once: on its way out the program joins the streams, and one that hangs for good would swallow the error.
    if (!failure_.failed) log_warning("{}", error.what());
    failure_.set(std::make_exception_ptr(error));
    throw error;
  }

  CpuDeviceOptions options_;
  ThreadPool pool_;
  Arena arena_;
  Failure failure_;
  Clock::time_point epoch_;
  void* base_ = nullptr;
  int64_t reserved_ = 0;
  std::vector<std::string> phases_;
  std::map<std::string, int> phase_index_;
  std::vector<std::unique_ptr<CpuStream>> streams_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) { return std::make_unique<CpuDevice>(options); }

}  // namespace megaslide
