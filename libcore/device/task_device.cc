#include "device/task_device.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"

namespace megaslide {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); }

}  // namespace

class TaskStream final : public Stream {
 public:
  TaskStream(TaskDevice& device, StreamKind kind, std::unique_ptr<NativeQueue> queue)
      : device_(device), kind_(kind), queue_of_driver_(std::move(queue)), thread_([this] { run(); }) {}

  ~TaskStream() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Backend backend() const override { return queue_of_driver_ ? device_.backend() : Backend::kCpu; }
  Backend target() const override { return device_.backend(); }
  ThreadPool& pool() override { return device_.pool_; }
  void* native() override { return queue_of_driver_ ? queue_of_driver_->native() : nullptr; }

  void enqueue(const char* name, const Cost& cost, std::function<void()> work) override {
    device_.take_turn(*this);
    // With one stream for everything the host's work is queued here too; it is none of the device's.
    push({Task::kWork, name, phase, is_host_work(cost.kernel_class) ? 0 : cost.flops, std::move(work), nullptr});
  }
  void push_signal(std::shared_ptr<Event::State> e) { push({Task::kSignal, "record", phase, 0, nullptr, std::move(e)}); }
  void push_wait(std::shared_ptr<Event::State> e) { push({Task::kWait, "wait", phase, 0, nullptr, std::move(e)}); }

  // When the stream rests.
  StreamTimes take_times() {
    std::lock_guard lock(mutex_);
    StreamTimes times = std::exchange(times_, {});
    if (queue_of_driver_) queue_of_driver_->take_times(kind_, times);
    return times;
  }
  std::vector<TraceSpan> take_trace() {
    std::lock_guard lock(mutex_);
    std::vector<TraceSpan> spans = std::exchange(trace_, {});
    if (queue_of_driver_) queue_of_driver_->take_trace(kind_, spans);
    return spans;
  }
  std::string describe() {
    std::lock_guard lock(mutex_);
    return fmt::format("{}: {}{}, {} queued", stream_kind_name(kind_), doing_ ? doing_ : "idle",
                       doing_ ? " in " + device_.phases_.data()[doing_phase_] : "",
                       queue_.size());
  }
  // Tasks done, and events of the driver passed.
  uint64_t progress() {
    std::lock_guard lock(mutex_);
    for (; !recorded_.empty(); recorded_.pop_front(), ++passed_) {
      const auto event = recorded_.front().lock();
      if (event && !event->passed()) break;
    }
    return completed_.load(std::memory_order_relaxed) + passed_;
  }
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
      if (device_.options_.jitter > 0) jitter();
      perform(task);
      completed_.fetch_add(1, std::memory_order_relaxed);
      std::lock_guard lock(mutex_);
      doing_ = nullptr;
    }
  }

  void perform(Task& task) {
    if (task.kind == Task::kWork) work(task);
    else if (task.kind == Task::kSignal) signal(*task.event);
    else await(*task.event);
    task.work = nullptr;
  }

  // Whatever happened before: nobody may wait for ever.
  void signal(Event::State& event) {
    std::shared_ptr<NativeEvent> native;
    if (queue_of_driver_) guarded("record", 0, [&] { native = queue_of_driver_->record(); });
    if (native) {
      std::lock_guard guard(mutex_);
      recorded_.push_back(native);
    }
    std::lock_guard lock(event.mutex);
    event.native = std::move(native);
    event.done = true;
    event.passed.notify_all();
  }

  void await(Event::State& event) {
    const auto begin = Clock::now();
    if (queue_of_driver_) guarded("wait", 0, [&] { queue_of_driver_->begin_wait(); });
    std::unique_lock lock(event.mutex);
    event.passed.wait(lock, [&] { return event.done; });
    const std::shared_ptr<NativeEvent> native = event.native;
    lock.unlock();
    if (queue_of_driver_) {
      guarded("wait", 0, [&] { queue_of_driver_->end_wait(event.source, native); });
      return;
    }
    if (native) guarded("wait", 0, [&] { native->synchronize(); });
    const double waited = seconds_between(begin, Clock::now());
    std::lock_guard guard(mutex_);
    times_.waits[static_cast<size_t>(kind_)][static_cast<size_t>(event.source)] += waited;
  }

  void work(Task& task) {
    const auto begin = Clock::now();
    if (!guarded(task.name, task.phase, [&] {
          if (queue_of_driver_) queue_of_driver_->begin_work(task.name, task.phase);
          task.work();
          if (queue_of_driver_) queue_of_driver_->end_work();
        }))
      return;
    task.work = nullptr;
    const auto end = Clock::now();
    std::lock_guard lock(mutex_);
    times_.flops += task.flops;
    if (queue_of_driver_) return;  // which keeps its own times
    times_.busy[static_cast<size_t>(kind_)] += seconds_between(begin, end);
    if (device_.options_.trace)
      trace_.push_back({task.name, task.phase, kind_, seconds_between(device_.epoch_, begin), seconds_between(device_.epoch_, end)});
  }

  // Does nothing and returns false where a stream has failed.
  bool guarded(const char* name, int phase_of_work, FunctionRef<void()> body) {
    if (device_.failure_.failed.load(std::memory_order_acquire)) return false;
    try {
      body();
    } catch (Error& e) {
      e.add_context(name);
      if (phase_of_work) e.add_context(device_.phases_.data()[phase_of_work]);
      device_.failure_.set(std::make_exception_ptr(e));
    } catch (const std::exception& e) {
      device_.failure_.set(std::make_exception_ptr(Error(fmt::format("{} on the {} stream: {}", name, stream_kind_name(kind_), e.what()))));
    }
    return true;
  }

  void jitter() {
    const double u = Random(static_cast<uint64_t>(kind_), RandomPurpose::kTest).uniform(jitter_seed(), jitter_draw_++);
    std::this_thread::sleep_for(std::chrono::duration<double>(device_.options_.jitter * u * u * u));
  }
  static uint64_t jitter_seed() { return static_cast<uint64_t>(Clock::now().time_since_epoch().count()); }

  TaskDevice& device_;
  const StreamKind kind_;
  const std::unique_ptr<NativeQueue> queue_of_driver_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> queue_;
  bool stop_ = false;
  const char* doing_ = nullptr;
  int doing_phase_ = 0;
  std::atomic<uint64_t> completed_{0};
  uint64_t passed_ = 0;
  std::deque<std::weak_ptr<NativeEvent>> recorded_;
  uint64_t jitter_draw_ = 0;
  StreamTimes times_;
  std::vector<TraceSpan> trace_;
  std::thread thread_;  // last: starts when everything else exists
};

void TaskDevice::Failure::set(std::exception_ptr e) {
  std::lock_guard lock(mutex);
  if (!error) error = std::move(e);
  failed.store(true, std::memory_order_release);
}
void TaskDevice::Failure::rethrow() {
  std::lock_guard lock(mutex);
  if (error) std::rethrow_exception(error);
}

TaskDevice::TaskDevice(const TaskDeviceOptions& options)
    : options_(options), pool_(options.threads > 0 ? options.threads : available_threads()), epoch_(Clock::now()) {
  phases_.reserve(kMaxPhases);  // never moves: workers read entries while the issuing thread appends
  phases_.emplace_back();
}
TaskDevice::~TaskDevice() = default;
void TaskDevice::stop() { streams_.clear(); }

void TaskDevice::start(bool one_thread, const std::function<std::unique_ptr<NativeQueue>(StreamKind)>& queue_of) {
  turns_ = !options_.async && !one_thread;
  const int streams = one_thread ? 1 : kStreamKinds;
  for (int k = 0; k < streams; ++k) {
    const auto kind = static_cast<StreamKind>(k);
    streams_.push_back(std::make_unique<TaskStream>(*this, kind, queue_of ? queue_of(kind) : nullptr));
  }
}

TaskStream& TaskDevice::stream(StreamKind k) { return *streams_[streams_.size() > 1 ? static_cast<size_t>(k) : 0]; }
Stream& TaskDevice::compute() { return stream(StreamKind::kCompute); }
Stream& TaskDevice::upload() { return stream(StreamKind::kUpload); }
Stream& TaskDevice::download() { return stream(StreamKind::kDownload); }
Stream& TaskDevice::host() { return stream(StreamKind::kHost); }
Stream& TaskDevice::disk() { return stream(StreamKind::kDisk); }

void TaskDevice::take_turn(TaskStream& next) {
  if (!turns_ || last_ == &next) return;
  TaskStream* before = std::exchange(last_, &next);
  if (before) wait(next, record(*before));
}

Event TaskDevice::record(Stream& s) {
  auto state = std::make_shared<Event::State>();
  state->source = static_cast<TaskStream&>(s).kind();
  static_cast<TaskStream&>(s).push_signal(state);
  return Event(std::move(state));
}

void TaskDevice::wait(Stream& s, const Event& event) {
  if (event.state()) static_cast<TaskStream&>(s).push_wait(event.shared());
}

void TaskDevice::synchronize(const Event& event) {
  if (event.state()) {
    auto& e = *event.state();
    uint64_t seen = total_progress();
    auto last = Clock::now();
    const auto watch = [&] {
      const uint64_t now_done = total_progress();
      if (now_done != seen) {
        seen = now_done;
        last = Clock::now();
      }
      if (options_.stall_timeout > 0 && seconds_between(last, Clock::now()) > options_.stall_timeout) stalled();
    };
    std::unique_lock lock(e.mutex);
    while (!e.passed.wait_for(lock, std::chrono::milliseconds(500), [&] { return e.done; })) watch();
    const std::shared_ptr<NativeEvent> native = e.native;
    lock.unlock();
    // Asked for rather than waited for, so that a device that hangs is noticed.
    for (int polls = 0; native && !failure_.failed && !native->passed(); ++polls) {
      std::this_thread::sleep_for(std::chrono::microseconds(polls < 100 ? 20 : 500));
      if (polls % 1000 == 999) watch();
    }
  }
  failure_.rethrow();
}

void TaskDevice::synchronize() {
  for (auto& s : streams_) {
    const Event e = record(*s);
    synchronize(e);
  }
}

void TaskDevice::set_phase(const std::string& label) {
  auto it = phase_index_.find(label);
  if (it == phase_index_.end() && phases_.size() < kMaxPhases) {
    phases_.push_back(label);
    it = phase_index_.emplace(label, static_cast<int>(phases_.size()) - 1).first;
  }
  for (auto& s : streams_) s->phase = it == phase_index_.end() ? 0 : it->second;
}

std::vector<TraceSpan> TaskDevice::take_trace() {
  std::vector<TraceSpan> all;
  for (auto& s : streams_) {
    auto t = s->take_trace();
    all.insert(all.end(), t.begin(), t.end());
  }
  std::sort(all.begin(), all.end(), [](const TraceSpan& a, const TraceSpan& b) { return a.begin < b.begin; });
  return all;
}

StreamTimes TaskDevice::take_times() {
  StreamTimes total;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const StreamTimes t = streams_[i]->take_times();
    total.busy[i] = t.busy[i];
    std::copy(std::begin(t.waits[i]), std::end(t.waits[i]), total.waits[i]);
    if (i == 0) total.flops = t.flops;
  }
  return total;
}

double TaskDevice::now() const { return seconds_between(epoch_, Clock::now()); }

uint64_t TaskDevice::total_progress() {
  uint64_t n = 0;
  for (auto& s : streams_) n += s->progress();
  return n;
}
void TaskDevice::stalled() {
  std::string text;
  for (auto& s : streams_) text += "\n  " + s->describe();
  const Error error(fmt::format("no stream made progress for {:.0f} s:{}", options_.stall_timeout, text),
                    "if the machine is merely slow, raise train.stall_timeout");
  // Said at once: on its way out the program joins the streams, and one that hangs for good would swallow the error.
  if (!failure_.failed) log_warning("{}", error.what());
  failure_.set(std::make_exception_ptr(error));
  throw error;
}

void require_fp8_products(const CudaDeviceInfo& device) {
  constexpr int kFirst = 89;
  if (device.capability < kFirst)
    throw usage_error(fmt::format("{} (sm_{}) has no products in 8 bits, which begin with sm_{}", device.name, device.capability, kFirst),
                      "leave model.fp8_forward out");
}

std::unique_ptr<Device> make_device(Backend backend, const CpuDeviceOptions& o) {
  if (backend != Backend::kCuda) return make_cpu_device(o);
  MS_CHECK(make_cuda_device != nullptr, "a program without CUDA");
  return make_cuda_device({.threads = o.threads, .async = o.async, .budget = o.budget, .trace = o.trace, .jitter = o.jitter, .stall_timeout = o.stall_timeout});
}

}  // namespace megaslide
