#include "plan/calibrate.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "base/atomic_file.h"
#include "base/progress.h"
#include "device/device.h"
#include "io/block_file.h"
#include "kernels/adamw/adamw.h"
#include "kernels/gemm/gemm.h"
#include "model/wan.h"
#include "plan/calibrate_device.h"
#include "tensor/tensor.h"

namespace megaslide {
namespace {

using Clock = std::chrono::steady_clock;

// The median is what work takes on this machine as it is, the least what it takes when nothing disturbs it.
enum class Of { kMedian, kLeast };
// Seconds of one call: repeated for at least 0.3 s and 5 times after a warm-up.
double seconds_of(const std::function<void()>& work, Of of = Of::kMedian) {
  work();
  std::vector<double> times;
  double total = 0;
  while ((total < 0.3 || times.size() < 5) && times.size() < 2000) {
    const auto begin = Clock::now();
    work();
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    total += times.back();
  }
  const size_t rank = of == Of::kMedian ? times.size() / 2 : 0;
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(rank), times.end());
  return times[rank];
}

HostTensor noise(DType dtype, Shape shape) {
  HostTensor t(dtype, std::move(shape));
  std::vector<float> x(static_cast<size_t>(t.elements()));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 2654435761u) % 2001) * 1e-3f - 1;
  convert_from_f32(t.data(), dtype, x.data(), t.elements());
  return t;
}

// flop/s of square products at their best: a peak.
double square_rate(Stream& s, int64_t side, DType dtype) {
  const HostTensor x = noise(dtype, {side, side});
  HostTensor y(DType::kF32, {side, side}), packed(DType::kU8, {linear_packed_bytes(side, side, dtype, PackFor::kForward)});
  linear_pack(s, packed.data(), x.data(), side, side, dtype, PackFor::kForward);
  const double seconds = seconds_of([&] { linear_forward(s, y.f32(), x.data(), packed.data(), nullptr, side, side, side, dtype); }, Of::kLeast);
  return 2.0 * static_cast<double>(side) * static_cast<double>(side) * static_cast<double>(side) / seconds;
}

// Runs work at once and adds up what each class of kernels did and how long it took.
class MeasuringStream final : public Stream {
 public:
  explicit MeasuringStream(int threads) : pool_(threads) {}
  Backend backend() const override { return Backend::kCpu; }
  ThreadPool& pool() override { return pool_; }
  void enqueue(const char*, const Cost& cost, std::function<void()> work) override {
    const auto begin = Clock::now();
    work();
    Sum& sum = sums[static_cast<size_t>(cost.kernel_class)];
    sum.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    sum.flops += cost.flops;
    sum.bytes += cost.bytes;
  }
  struct Sum {
    double seconds = 0, flops = 0, bytes = 0;
  };
  Sum& of(KernelClass c) { return sums[static_cast<size_t>(c)]; }
  Sum sums[kKernelClasses];

 private:
  ThreadPool pool_;
};

// One block in the mix of a training step: forward, recompute and backward, packed as for each.
void run_block(MeasuringStream& s, const CalibrationOptions& o) {
  ModelConfig config = o.model;
  config.layers = 1;
  config.attention.per_layer.clear();
  config.attention.kind = o.model.attention.of_layer(0);
  const Network network = make_wan_network(config);
  const Layer& layer = *network.layers.front();
  constexpr DType kType = DType::kBF16;
  const int64_t rows = o.shape.rows(), context_rows = o.shape.batch * o.shape.context_rows;
  const HostTensor weights = noise(kType, {layer.layout().elements}), x = noise(DType::kF32, {rows, config.dim});
  const HostTensor context = noise(DType::kF32, {context_rows, config.dim}), modulation = noise(DType::kF32, {o.shape.batch * 6, config.dim});
  HostTensor packed(DType::kU8, {layer.packed_bytes(kType, true)}), saved(DType::kU8, {layer.saved_bytes(o.shape, kType)});
  HostTensor y(DType::kF32, {rows, config.dim}), dweights(DType::kF32, {layer.layout().elements});
  HostTensor dcontext(DType::kF32, {context_rows, config.dim}), dmodulation(DType::kF32, {o.shape.batch * 6, config.dim});
  const Conditioning conditioning{context.f32(), modulation.f32(), dcontext.f32(), dmodulation.f32()};
  const auto pass = [&](Stream& stream, Workspace& workspace) {
    const LayerCall call{stream, workspace, o.shape, kType, weights.data(), packed.data()};
    layer.pack(stream, kType, false, weights.data(), packed.data());
    layer.forward(call, conditioning, x.f32(), y.f32(), nullptr);
    layer.pack(stream, kType, true, weights.data(), packed.data());
    layer.forward(call, conditioning, x.f32(), y.f32(), saved.data());
    layer.backward(call, conditioning, x.f32(), saved.data(), y.f32(), y.f32(), dweights.f32());
  };
  Workspace dry;
  pass(make_sim_device({})->compute(), dry);
  HostTensor memory(DType::kU8, {dry.high_water()});
  Workspace workspace(memory.data(), memory.bytes());
  pass(s, workspace);  // builds the products' code and touches the memory
  std::fill(std::begin(s.sums), std::end(s.sums), MeasuringStream::Sum{});
  const auto begin = Clock::now();
  for (int i = 0; i < 3 || std::chrono::duration<double>(Clock::now() - begin).count() < 1.5; ++i) pass(s, workspace);
}

struct DiskRates {
  double read, write;
};

// As a run with its state on disk moves it: around the page cache, several requests at once, over blocks that the file
// system has already allotted.
DiskRates disk_rates(const std::string& directory) {
  constexpr int64_t kBytes = 512 << 20;
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(kBlockAlign, kBytes), &std::free);
  MS_CHECK(memory, "no memory to calibrate the disk with");
  auto* words = static_cast<uint32_t*>(memory.get());
  for (uint32_t i = 0; i < kBytes / 4; ++i) words[i] = i * 2654435761u;  // some disks compress
  BlockFile file(directory, {{"calibration", kBytes}});
  const std::span<std::byte> area(static_cast<std::byte*>(memory.get()), kBytes);
  file.register_memory({&area, 1});
  const BlockFile::Transfer transfer{0, static_cast<std::byte*>(memory.get())};
  const auto rate = [](auto&& move) {
    const auto begin = Clock::now();
    move();
    return kBytes / std::chrono::duration<double>(Clock::now() - begin).count();
  };
  file.write({&transfer, 1});
  const double write = rate([&] { file.write({&transfer, 1}); });
  return {rate([&] { file.read({&transfer, 1}); }), write};
}

// AdamW on state well beyond the caches.
class OptimizerLoad {
 public:
  OptimizerLoad() {
    state_.w = reinterpret_cast<bf16*>(w_.data());
    state_.r = reinterpret_cast<int16_t*>(r_.data());
    state_.m = m_.f32();
    state_.v = v_.f32();
  }
  void run(ThreadPool& pool) {
    adamw_update(pool, state_, g_.data(), DType::kBF16, kElements, step_);
    ++step_.step;
  }
  static constexpr double kBytes = 26.0 * (16 << 20);  // that an update reads and writes

 private:
  static constexpr int64_t kElements = 16 << 20;
  HostTensor w_{DType::kBF16, {kElements}}, r_{DType::kI16, {kElements}}, m_{DType::kF32, {kElements}}, v_{DType::kF32, {kElements}};
  const HostTensor g_ = noise(DType::kBF16, {kElements});
  AdamWState state_;
  AdamWStep step_;
};

// Bytes/s that AdamW's own reads and writes reach.
double optimizer_rate(ThreadPool& pool) {
  OptimizerLoad load;
  return OptimizerLoad::kBytes / seconds_of([&] { load.run(pool); });
}

// From the issuing thread to a stream's and on to the next task.
double handoff_seconds(int threads) {
  const auto device = make_cpu_device({.threads = threads});
  constexpr int kTasks = 1000;
  return seconds_of([&] {
           for (int i = 0; i < kTasks; ++i) device->compute().enqueue("nothing", {}, [] {});
           device->synchronize();
         }) / kTasks;
}

double copy_rate(ThreadPool& pool, bool all_threads) {
  constexpr int64_t kBytes = 128 << 20;
  HostTensor a(DType::kU8, {kBytes}), b(DType::kU8, {kBytes});
  const double seconds = seconds_of([&] {
    if (!all_threads) std::memcpy(b.data(), a.data(), kBytes);
    else
      pool.parallel_for(kBytes, 1 << 20, [&](int64_t begin, int64_t end) {
        std::memcpy(b.data() + begin, a.data() + begin, static_cast<size_t>(end - begin));
      });
  });
  return kBytes / seconds;
}

// Products, attention, elementwise kernels and copies on the host's processor.
void measure_processor(const CalibrationOptions& o, InlineStream& s, MachineConfig& c, const std::function<void(const char*)>& next) {
  next("a block");
  MeasuringStream block(o.threads);
  run_block(block, o);
  const auto per_second = [](double amount, const MeasuringStream::Sum& sum) { return sum.seconds > 0 ? amount / sum.seconds : 0; };
  c.gemm_bf16 = per_second(block.of(KernelClass::kGemm).flops, block.of(KernelClass::kGemm));
  c.attention = per_second(block.of(KernelClass::kAttention).flops, block.of(KernelClass::kAttention));
  c.vector_bandwidth = per_second(block.of(KernelClass::kVector).bytes, block.of(KernelClass::kVector));
  c.pack_bandwidth = per_second(block.of(KernelClass::kPack).bytes, block.of(KernelClass::kPack));
  // The peak that MFU refers to, and fp32 in the same proportion to its own square products.
  next("products");
  c.peak_flops = std::max(c.gemm_bf16, square_rate(s, 1536, DType::kBF16));
  c.gemm_fp32 = square_rate(s, 1024, DType::kF32) * c.gemm_bf16 / c.peak_flops;
  c.link_up = c.link_down = copy_rate(s.pool(), false);
  c.link_both = 2 * c.link_up;
  next("latency");
  c.launch_latency = handoff_seconds(o.threads);
}

// The same of a GPU.
void measure_cuda(const CalibrationOptions& o, ThreadPool& pool, MachineConfig& c) {
  const CudaDeviceInfo info = cuda_device_info(-1);
  const auto device = make_cuda_device({.threads = o.threads, .trace = true});
  OptimizerLoad load;
  DeviceMeasurement m{.model = o.model, .shape = o.shape, .host_load = [&] { load.run(pool); }};
  if (o.quick) m.square = 256, m.link_bytes = 1 << 20;
  const DeviceRates r = measure_device(*device, m);
  c.name = info.name;
  c.device = "cuda";
  c.unified = false;
  c.device_memory = info.free;
  c.gemm_bf16 = r.gemm_bf16;
  c.gemm_fp32 = r.gemm_fp32;
  c.attention = r.attention;
  c.peak_flops = r.peak_flops;
  c.vector_bandwidth = r.vector_bytes;
  c.pack_bandwidth = r.pack_bytes;
  c.link_up = r.link_up;
  c.link_down = r.link_down;
  c.link_both = r.link_both;
  c.link_derating = r.link_derating;
  c.launch_latency = r.launch_latency;
}

int64_t physical_memory() {
  struct sysinfo info {};
  return sysinfo(&info) == 0 ? static_cast<int64_t>(info.totalram) * info.mem_unit : 0;
}

}  // namespace

MachineConfig this_machine(int threads, Backend backend) {
  MachineConfig c;
  c.name = "this-machine";
  c.device = "cpu";
  c.unified = true;
  c.threads = threads;
  c.host_memory = c.device_memory = physical_memory();
  if (backend == Backend::kCuda) {
    const CudaDeviceInfo device = cuda_device_info(-1);
    c.name = device.name;
    c.device = "cuda";
    c.unified = false;
    c.device_memory = device.free;
    return c;
  }
  InlineStream s(threads);
  c.peak_flops = square_rate(s, 1024, DType::kBF16);
  return c;
}

MachineConfig sized_like_this_machine(MachineConfig machine, int threads, const std::string& directory) {
  machine.name = fmt::format("this machine, at the rates of {}", machine.name);
  machine.threads = threads;
  machine.host_memory = machine.device_memory = physical_memory();
  machine.disk_bytes = free_space(directory);
  return machine;
}

MachineConfig calibrate(const CalibrationOptions& o, const StopToken& stop) {
  MachineConfig c;
  c.name = "this-machine";
  c.measured = true;
  c.sources = fmt::format("measured by plan-memory --calibrate with {} threads, in a block of {} at {} rows", o.threads, o.model.name, o.shape.rows());
  c.device = "cpu";
  c.unified = true;
  c.threads = o.threads;
  c.host_memory = c.device_memory = physical_memory();
  InlineStream s(o.threads);
  Progress progress("calibrate", 6, "measurements");
  const auto next = [&](const char* what) {
    stop.throw_if_requested();
    progress.add(1, what);
  };
  next("memory");
  c.host_bandwidth = 2 * copy_rate(s.pool(), true);
  if (o.backend == Backend::kCuda) {
    next("the device");
    measure_cuda(o, s.pool(), c);
  } else {
    measure_processor(o, s, c, next);
  }
  next("optimizer");
  c.optimizer_bandwidth = optimizer_rate(s.pool());
  if (!o.scratch_dir.empty()) {
    next("disk");
    const DiskRates rates = disk_rates(o.scratch_dir);
    c.disk_bandwidth = rates.write;
    c.disk_read_bandwidth = rates.read;
    c.disk_bytes = free_space(o.scratch_dir);
  }
  progress.finish();
  return c;
}

}  // namespace megaslide
