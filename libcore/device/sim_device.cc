// The `sim` device: the schedule without memory and without arithmetic, on a discrete-event clock.
#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

#include "base/error.h"
#include "device/arena.h"
#include "device/event_state.h"
#include "kernels/gemm/gemm_cuda.h"

namespace megaslide {
namespace {

class SimDevice;

class SimStream final : public Stream {
 public:
  SimStream(SimDevice& device, StreamKind kind, Backend target) : device_(device), kind_(kind), target_(target) {}
  Backend backend() const override { return Backend::kSim; }
  Backend target() const override { return target_; }
  void enqueue(const char* name, const Cost& cost, std::function<void()>) override;
  ThreadPool& pool() override { MS_CHECK(false, "the sim device runs nothing"); __builtin_unreachable(); }
  StreamKind kind() const { return kind_; }
  double free_at = 0;

 private:
  SimDevice& device_;
  StreamKind kind_;
  Backend target_;
};

// A processor that several streams share. Tasks come in the order in which they are issued, not in that in which they can
// begin: each takes what those before have left free.
class Processor {
 public:
  // `seconds` of it from `begin` on, which becomes when the task first runs. Returns when the task is done.
  double take(double& begin, double seconds) {
    if (seconds <= 0) return begin;
    auto next = busy_.upper_bound(begin);
    if (next != busy_.begin() && std::prev(next)->second >= begin) begin = (--next)->second;
    const double first = next != busy_.end() && next->second == begin ? next->first : begin;
    double at = begin, left = seconds;
    if (next != busy_.end() && next->second == begin) next = busy_.erase(next);
    for (; next != busy_.end() && next->first < at + left; next = busy_.erase(next)) {
      left -= next->first - at;
      at = next->second;
    }
    return busy_[first] = at + left;
  }
  // No task will begin before `time`.
  void forget_before(double time) { std::erase_if(busy_, [time](const auto& span) { return span.second <= time; }); }

 private:
  std::map<double, double> busy_;  // begin to end, apart from each other
};

class SimDevice final : public Device {
 public:
  explicit SimDevice(const SimDeviceOptions& options) : options_(options), arena_(options.budget) {
    phases_.emplace_back();
    const int streams = options.async ? kStreamKinds : 1;
    for (int k = 0; k < streams; ++k) streams_.push_back(std::make_unique<SimStream>(*this, static_cast<StreamKind>(k), options.target));
    if (options.target == Backend::kCuda) allocate(static_cast<int64_t>(cuda::kGemmWorkspaceBytes), "workspace of matrix products", MemoryCategory::kWorkspace);
  }

  Backend backend() const override { return Backend::kSim; }
  Stream& compute() override { return stream(StreamKind::kCompute); }
  Stream& upload() override { return stream(StreamKind::kUpload); }
  Stream& download() override { return stream(StreamKind::kDownload); }
  Stream& host() override { return stream(StreamKind::kHost); }
  Stream& disk() override { return stream(StreamKind::kDisk); }

  void* allocate(int64_t bytes, std::string_view name, MemoryCategory category) override {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of no memory, for what never reads it
    return reinterpret_cast<void*>(kBase + static_cast<uintptr_t>(arena_.allocate(bytes, name, category)));
  }
  void release(void* memory) override { arena_.release(static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) - kBase)); }
  const MemoryReport& memory() const override { return arena_.report(); }
  bool shares_host_memory() const override { return options_.link == LinkKind::kShared; }

  void copy(Stream& s, void*, const void*, int64_t bytes, CopyKind kind, const char* name) override {
    const double n = static_cast<double>(bytes);
    double rate = options_.rates.vector_bytes / 2;
    if (kind != CopyKind::kWithinDevice && options_.link == LinkKind::kEmulated) {
      rate = kind == CopyKind::kUpload ? options_.rates.link_up : options_.rates.link_down;
      if (options_.bandwidth > 0) rate = options_.bandwidth;
      else if (!options_.rates.unified && host_busy_at(static_cast<SimStream&>(s).free_at)) rate *= options_.rates.link_derating;
    }
    charge(static_cast<SimStream&>(s), name, (rate > 0 ? n / rate : 0) + options_.rates.launch_latency, false);
  }

  Event record(Stream& s) override {
    auto state = std::make_shared<Event::State>();
    state->source = static_cast<SimStream&>(s).kind();
    state->time = static_cast<SimStream&>(s).free_at;
    return Event(std::move(state));
  }
  void wait(Stream& s, const Event& event) override {
    if (!event.state()) return;
    auto& stream = static_cast<SimStream&>(s);
    const double waited = event.state()->time - stream.free_at;
    if (waited <= 0) return;
    times_.waits[static_cast<size_t>(stream.kind())][static_cast<size_t>(event.state()->source)] += waited;
    stream.free_at = event.state()->time;
  }
  // The host thread issues the next work only after what it waited for, so no stream may start earlier.
  void synchronize(const Event& event) override {
    if (event.state()) host_time_ = std::max(host_time_, event.state()->time);
    for (auto& s : streams_) s->free_at = std::max(s->free_at, host_time_);
    processor_.forget_before(host_time_);
  }
  void synchronize() override {
    for (auto& s : streams_) host_time_ = std::max(host_time_, s->free_at);
    synchronize(Event{});
  }

  void set_phase(const std::string& label) override {
    const auto it = phase_index_.find(label);
    if (it != phase_index_.end()) {
      phase_ = it->second;
      return;
    }
    phase_ = static_cast<int>(phases_.size());
    phases_.push_back(label);
    phase_index_[label] = phase_;
  }
  std::vector<std::string> phases() const override { return phases_; }
  std::vector<TraceSpan> take_trace() override {
    std::sort(trace_.begin(), trace_.end(), [](const TraceSpan& a, const TraceSpan& b) { return a.begin < b.begin; });
    return std::exchange(trace_, {});
  }
  StreamTimes take_times() override { return std::exchange(times_, {}); }
  double now() const override { return host_time_; }

  void run(SimStream& s, const char* name, const Cost& cost) {
    const auto& r = options_.rates;
    double byte_rate = r.vector_bytes, flop_rate = 0;
    if (cost.kernel_class == KernelClass::kGemm || cost.kernel_class == KernelClass::kAttention) {
      flop_rate = cost.kernel_class == KernelClass::kGemm ? r.gemm : r.attention;
      byte_rate = r.memory_bytes;
    }
    if (cost.kernel_class == KernelClass::kPack) byte_rate = r.pack_bytes;
    if (cost.kernel_class == KernelClass::kOptimizer) byte_rate = r.optimizer_bytes;
    if (cost.kernel_class == KernelClass::kHost) byte_rate = r.host_bytes;
    if (cost.kernel_class == KernelClass::kUpdate && r.unified) byte_rate = r.optimizer_bytes;  // the same processor's
    if (cost.kernel_class == KernelClass::kDiskRead) byte_rate = r.disk_read;
    if (cost.kernel_class == KernelClass::kDiskWrite) byte_rate = r.disk_write;
    const double seconds = std::max(byte_rate > 0 ? cost.bytes / byte_rate : 0, flop_rate > 0 ? cost.flops / flop_rate : 0);
    if (s.kind() == StreamKind::kCompute && !is_host_work(cost.kernel_class)) times_.flops += cost.flops;
    const bool on_disk = cost.kernel_class == KernelClass::kDiskRead || cost.kernel_class == KernelClass::kDiskWrite;
    charge(s, name, seconds + r.launch_latency, r.unified && !on_disk);
  }

 private:
  static constexpr uintptr_t kBase = uintptr_t{1} << 44;

  SimStream& stream(StreamKind k) { return *streams_[options_.async ? static_cast<size_t>(k) : 0]; }
  bool host_busy_at(double t) const { return options_.async && streams_[static_cast<size_t>(StreamKind::kHost)]->free_at > t; }

  // `shared`: the task needs the one processor that device and host have in common.
  void charge(SimStream& s, const char* name, double seconds, bool shared) {
    double begin = s.free_at;
    s.free_at = shared ? processor_.take(begin, seconds) : begin + seconds;
    times_.busy[static_cast<size_t>(s.kind())] += seconds;
    if (options_.trace) trace_.push_back({name, phase_, s.kind(), begin, s.free_at});
  }

  SimDeviceOptions options_;
  Arena arena_;
  std::vector<std::unique_ptr<SimStream>> streams_;
  std::vector<std::string> phases_;
  std::map<std::string, int> phase_index_;
  int phase_ = 0;
  double host_time_ = 0;
  Processor processor_;
  StreamTimes times_;
  std::vector<TraceSpan> trace_;
};

void SimStream::enqueue(const char* name, const Cost& cost, std::function<void()>) { device_.run(*this, name, cost); }

}  // namespace

std::unique_ptr<Device> make_sim_device(const SimDeviceOptions& options) { return std::make_unique<SimDevice>(options); }

}  // namespace megaslide
