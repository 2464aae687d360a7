#include "plan/calibrate.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <chrono>
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
#include "plan/calibrate_device.h"

namespace megaslide {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds of one call, the median: repeated for at least 0.3 s and 5 times after a warm-up.
double seconds_of(const std::function<void()>& work) {
  work();
  std::vector<double> times;
  double total = 0;
  while ((total < 0.3 || times.size() < 5) && times.size() < 2000) {
    const auto begin = Clock::now();
    work();
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    total += times.back();
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
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
  const HostTensor g_ = calibration_noise(DType::kBF16, kElements);
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

void set_kernel_rates(MachineConfig& c, Device& device, const CalibrationOptions& o, int64_t largest) {
  const BlockRates block = measure_block(device, o.model, o.shape, 1.5);
  c.gemm_bf16 = block.gemm;
  c.attention = block.attention;
  c.vector_bandwidth = block.vector_bytes;
  c.pack_bandwidth = block.pack_bytes;
  // The peak that MFU refers to, and fp32 in the same proportion to its own square products.
  c.peak_flops = std::max(c.gemm_bf16, measure_square_products_up_to(device, largest, DType::kBF16));
  c.gemm_fp32 = measure_square_products_up_to(device, largest, DType::kF32) * c.gemm_bf16 / c.peak_flops;
}

// Kernels and copies on the host's processor.
void measure_processor(const CalibrationOptions& o, ThreadPool& pool, MachineConfig& c) {
  const auto device = make_cpu_device({.threads = o.threads, .trace = true});
  set_kernel_rates(c, *device, o, 2048);
  c.link_up = c.link_down = copy_rate(pool, false);
  c.link_both = 2 * c.link_up;
  c.launch_latency = handoff_seconds(o.threads);
}

// The same of a GPU.
void measure_cuda(const CalibrationOptions& o, ThreadPool& pool, MachineConfig& c) {
  const CudaDeviceInfo info = cuda_device_info(-1);
  const auto device = make_cuda_device({.threads = o.threads, .trace = true});
  c.name = info.name;
  c.device = "cuda";
  c.unified = false;
  c.device_memory = info.free;
  set_kernel_rates(c, *device, o, 8192);
  OptimizerLoad load;
  const LinkRates link = measure_link(*device, [&] { load.run(pool); });
  c.link_up = link.up;
  c.link_down = link.down;
  c.link_both = link.both;
  c.link_derating = link.derating;
  c.launch_latency = measure_launches(*device);
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
  const auto device = make_cpu_device({.threads = threads, .trace = true});
  c.peak_flops = measure_square_products(*device, 1024, DType::kBF16);
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
  Progress progress("calibrate", o.scratch_dir.empty() ? 3 : 4, "measurements");
  const auto next = [&](const char* what) {
    stop.throw_if_requested();
    progress.add(1, what);
  };
  next("memory");
  c.host_bandwidth = 2 * copy_rate(s.pool(), true);
  next("kernels");
  if (o.backend == Backend::kCuda) measure_cuda(o, s.pool(), c);
  else measure_processor(o, s.pool(), c);
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
