#include "plan/calibrate.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <vector>

#include "base/atomic_file.h"
#include "base/progress.h"
#include "kernels/adamw/adamw.h"
#include "kernels/dsa/dsa.h"
#include "kernels/gemm/gemm.h"
#include "kernels/memory/memory.h"
#include "tensor/tensor.h"

namespace megaslide {
namespace {

using Clock = std::chrono::steady_clock;

// Median seconds of one call: repeated for at least 0.3 s and 5 times after a warm-up.
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
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

HostTensor noise(DType dtype, Shape shape) {
  HostTensor t(dtype, std::move(shape));
  std::vector<float> x(static_cast<size_t>(t.elements()));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 2654435761u) % 2001) * 1e-3f - 1;
  convert_from_f32(t.data(), dtype, x.data(), t.elements());
  return t;
}

// flop/s of a linear layer's three products together, in the mix of a training step.
double gemm_rate(Stream& s, int64_t m, int64_t n, int64_t k, DType dtype) {
  const HostTensor x = noise(dtype, {m, k}), w = noise(dtype, {n, k}), dy = noise(dtype, {m, n});
  HostTensor y(DType::kF32, {m, n}), dx(DType::kF32, {m, k}), dw(DType::kF32, {n, k});
  HostTensor forward(DType::kU8, {linear_packed_bytes(n, k, dtype, PackFor::kForward)});
  HostTensor backward(DType::kU8, {linear_packed_bytes(n, k, dtype, PackFor::kInputGradient)});
  linear_pack(s, forward.data(), w.data(), n, k, dtype, PackFor::kForward);
  linear_pack(s, backward.data(), w.data(), n, k, dtype, PackFor::kInputGradient);
  // Forward twice: once more in the recompute.
  const double seconds = seconds_of([&] {
    for (int i = 0; i < 2; ++i) linear_forward(s, y.f32(), x.data(), forward.data(), nullptr, m, n, k, dtype);
    linear_input_gradient(s, dx.f32(), dy.data(), backward.data(), m, n, k, dtype, false);
    linear_weight_gradient(s, dw.f32(), dy.data(), x.data(), m, n, k, dtype);
  });
  return 8.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / seconds;
}

double attention_rate(Stream& s, const CalibrationOptions& o) {
  DsaShape shape{};
  shape.batch = 1;
  shape.frames = 5;
  shape.height = 8;
  shape.width = std::max<int64_t>(8, o.rows / 40);
  shape.heads = o.heads;
  shape.head_dim = o.dim / o.heads;
  shape.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  for (int a = 0; a < 3; ++a) {
    shape.kernel[a] = a == 0 ? 3 : 5;
    shape.reach[a] = a == 0 ? 1.0f : 2.0f;
  }
  shape.mode = DsaOffsetMode::kFull;
  shape.groups = std::min<int64_t>(4, o.heads);
  const int64_t rows = shape.frames * shape.height * shape.width;
  const HostTensor q = noise(DType::kF32, {rows, o.dim}), offsets = noise(DType::kF32, {rows, dsa_offset_count(shape)});
  HostTensor out(DType::kF32, {rows, o.dim}), lse(DType::kF32, {rows, o.heads});
  HostTensor workspace(DType::kU8, {dsa_forward_workspace_bytes(shape, DType::kF32)});
  const double seconds = seconds_of([&] {
    dsa_forward(s, out.f32(), lse.f32(), q.data(), q.data(), q.data(), offsets.f32(), workspace.data(), shape, DType::kF32);
  });
  return dsa_forward.cost(out.f32(), lse.f32(), q.data(), q.data(), q.data(), offsets.f32(), workspace.data(), shape, DType::kF32).flops / seconds;
}

double disk_rate(const std::string& directory) {
  constexpr int64_t kBytes = 64 << 20;
  const std::vector<std::byte> data(kBytes, std::byte{1});
  const std::string path = directory + "/.megaslide-calibrate";
  const auto begin = Clock::now();
  {
    FileWriter file(path, kBytes);
    file.write(data);
    file.sync();
    file.close();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::filesystem::remove(path);
  return kBytes / seconds;
}

// Bytes/s that AdamW's own reads and writes reach, on state well beyond the caches.
double optimizer_rate(ThreadPool& pool) {
  constexpr int64_t kElements = 16 << 20;
  HostTensor w(DType::kBF16, {kElements}), r(DType::kI16, {kElements}), m(DType::kF32, {kElements}), v(DType::kF32, {kElements});
  const HostTensor g = noise(DType::kBF16, {kElements});
  AdamWStep step;
  const double seconds = seconds_of([&] {
    adamw_update_split(pool, reinterpret_cast<bf16*>(w.data()), reinterpret_cast<int16_t*>(r.data()), m.f32(), v.f32(), g.data(), DType::kBF16,
                       kElements, step);
    ++step.step;
  });
  return 26.0 * kElements / seconds;
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

int64_t physical_memory() {
  struct sysinfo info {};
  return sysinfo(&info) == 0 ? static_cast<int64_t>(info.totalram) * info.mem_unit : 0;
}

}  // namespace

MachineConfig this_machine(int threads) {
  MachineConfig c;
  c.name = "this-machine";
  c.device = "cpu";
  c.unified = true;
  c.threads = threads;
  c.host_memory = c.device_memory = physical_memory();
  InlineStream s(threads);
  constexpr int64_t kSide = 1024;
  const HostTensor x = noise(DType::kBF16, {kSide, kSide});
  HostTensor y(DType::kF32, {kSide, kSide}), packed(DType::kU8, {linear_packed_bytes(kSide, kSide, DType::kBF16, PackFor::kForward)});
  linear_pack(s, packed.data(), x.data(), kSide, kSide, DType::kBF16, PackFor::kForward);
  double best = 1e30;
  for (int i = 0; i < 8; ++i) {
    const auto begin = Clock::now();
    linear_forward(s, y.f32(), x.data(), packed.data(), nullptr, kSide, kSide, kSide, DType::kBF16);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  c.peak_flops = 2.0 * kSide * kSide * kSide / best;
  return c;
}

MachineConfig calibrate(const CalibrationOptions& o, const StopToken& stop) {
  MachineConfig c;
  c.name = "this-machine";
  c.measured = true;
  c.sources = fmt::format("measured by plan-memory --calibrate with {} threads at {} rows of width {}", o.threads, o.rows, o.dim);
  c.device = "cpu";
  c.unified = true;
  c.threads = o.threads;
  c.host_memory = c.device_memory = physical_memory();
  InlineStream s(o.threads);
  Progress progress("calibrate", 8, "measurements");
  const auto next = [&](const char* what) {
    stop.throw_if_requested();
    progress.add(1, what);
  };
  next("products, bf16");
  c.gemm_bf16 = gemm_rate(s, o.rows, o.ffn_dim, o.dim, DType::kBF16);
  next("products, fp32");
  c.gemm_fp32 = gemm_rate(s, o.rows, o.ffn_dim, o.dim, DType::kF32);
  // The peak that MFU refers to: large square products.
  next("peak");
  c.peak_flops = std::max(c.gemm_bf16, gemm_rate(s, 2048, 2048, 2048, DType::kBF16));
  next("attention");
  c.attention = attention_rate(s, o);
  next("memory");
  c.host_bandwidth = 2 * copy_rate(s.pool(), true);
  const HostTensor x = noise(DType::kF32, {o.rows, o.dim});
  HostTensor sum(DType::kF32, {o.rows, o.dim});
  const double add = seconds_of([&] { add_in_place(s, sum.f32(), x.f32(), x.elements()); });
  c.vector_bandwidth = std::min(c.host_bandwidth, 12.0 * static_cast<double>(x.elements()) / add);
  const HostTensor w = noise(DType::kBF16, {o.ffn_dim, o.dim});
  HostTensor packed(DType::kU8, {linear_packed_bytes(o.ffn_dim, o.dim, DType::kBF16, PackFor::kForward)});
  c.pack_bandwidth = 4.0 * static_cast<double>(w.elements()) /
                     seconds_of([&] { linear_pack(s, packed.data(), w.data(), o.ffn_dim, o.dim, DType::kBF16, PackFor::kForward); });
  next("optimizer");
  c.optimizer_bandwidth = optimizer_rate(s.pool());
  c.link_up = c.link_down = copy_rate(s.pool(), false);
  c.link_both = 2 * c.link_up;
  next("latency");
  HostTensor few(DType::kF32, {o.threads * 4096});
  c.launch_latency = seconds_of([&] { add_in_place(s, few.f32(), few.f32(), few.elements()); });
  if (!o.scratch_dir.empty()) {
    next("disk");
    c.disk_bandwidth = disk_rate(o.scratch_dir);
    c.disk_bytes = free_space(o.scratch_dir);
  }
  progress.finish();
  return c;
}

}  // namespace megaslide
