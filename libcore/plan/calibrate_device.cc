#include "plan/calibrate_device.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "plan/measured_device.h"
#include "stream/host_memory.h"

namespace megaslide {
using namespace measured;

HostTensor calibration_noise(DType dtype, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 2654435761u) % 2001) * 1e-3f - 1;
  HostTensor t(dtype, {n});
  convert_from_f32(t.data(), dtype, x.data(), n);
  return t;
}

namespace {

// Seconds of one call beyond which its beginning and end no longer count.
constexpr double kLongEnough = 2e-3;

LinkRates measure_copies(Device& device, int64_t size, const std::function<void()>& host_load) {
  LinkRates rates;
  HostMemory memory(false);
  int64_t bytes_taken = 0;
  void *from = memory.allocate(size, bytes_taken), *to = memory.allocate(size, bytes_taken);
  const PinnedMemory pinned(device, memory.spans());
  Space space(device);
  auto *a = space.zeros<std::byte>(size), *b = space.zeros<std::byte>(size);
  const auto up = [&] { device.copy(device.upload(), a, from, size, CopyKind::kUpload, "upload"); };
  const auto down = [&] { device.copy(device.download(), to, b, size, CopyKind::kDownload, "download"); };
  const auto bytes = static_cast<double>(size);
  constexpr int kRepeats = 4;
  spans_of(device, StreamKind::kUpload);
  for (int i = 0; i < kRepeats; ++i) up();
  rates.up = bytes / shortest(spans_of(device, StreamKind::kUpload));
  for (int i = 0; i < kRepeats; ++i) down();
  rates.down = bytes / shortest(spans_of(device, StreamKind::kDownload));
  for (int i = 0; i < kRepeats; ++i) up(), down();
  device.synchronize();
  const std::vector<TraceSpan> all = device.take_trace();
  double begin = 1e30, end = 0;
  for (const TraceSpan& s : all) begin = std::min(begin, s.begin), end = std::max(end, s.end);
  rates.both = 2 * kRepeats * bytes / (end - begin);
  if (!host_load) return rates;
  std::atomic<bool> stop{false}, running{false};
  std::thread host([&] {
    while (!stop) {
      host_load();
      running = true;
    }
  });
  while (!running) std::this_thread::yield();
  for (int i = 0; i < kRepeats; ++i) up();
  const auto loaded = spans_of(device, StreamKind::kUpload);
  stop = true;
  host.join();
  double seconds = 0;
  for (const TraceSpan& s : loaded) seconds += s.end - s.begin;
  rates.derating = std::min(1.0, bytes * static_cast<double>(loaded.size()) / seconds / rates.up);
  return rates;
}

}  // namespace

double measure_square_products(Device& device, int64_t side, DType dtype) {
  Space space(device);
  const void* x = space.noise(dtype, side * side);
  auto* y = space.zeros<float>(side * side);
  auto* packed = space.zeros<std::byte>(linear_packed_bytes(side, side, dtype, PackFor::kForward));
  linear_pack(device.compute(), packed, x, side, side, dtype, PackFor::kForward);
  spans_of(device, StreamKind::kCompute);
  for (int i = 0; i < 20; ++i) linear_forward(device.compute(), y, x, packed, nullptr, side, side, side, dtype);
  const auto n = static_cast<double>(side);
  return 2 * n * n * n / shortest(spans_of(device, StreamKind::kCompute));
}

double measure_square_products_up_to(Device& device, int64_t most, DType dtype) {
  double rate = 0;
  for (int64_t side = std::min<int64_t>(256, most);; side *= 2) {
    rate = std::max(rate, measure_square_products(device, side, dtype));
    const auto n = static_cast<double>(side);
    if (2 * side > most || 2 * n * n * n / rate >= kLongEnough) return rate;
  }
}

BlockRates measure_block(Device& device, const ModelConfig& model, const BatchShape& shape, double at_least) {
  MeasuredBlock block(device, model, shape);
  RecordingStream stream(device.compute());
  const auto step = [&](Stream& to) {
    block.pack(to, false), block.forward(to, false);
    block.pack(to, true), block.forward(to, true), block.backward(to);
  };
  step(stream);  // chooses the products' algorithms
  spans_of(device, StreamKind::kCompute);
  stream.costs.clear();
  std::vector<TraceSpan> spans;
  const double begin = device.now();
  for (int i = 0; i < 3 || device.now() - begin < at_least; ++i) {
    step(stream);
    const auto more = spans_of(device, StreamKind::kCompute);
    spans.insert(spans.end(), more.begin(), more.end());
  }
  MS_CHECK(spans.size() == stream.costs.size(), "{} calls, {} of them traced", stream.costs.size(), spans.size());
  double seconds[kKernelClasses] = {}, flops[kKernelClasses] = {}, bytes[kKernelClasses] = {};
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto k = static_cast<size_t>(stream.costs[i].kernel_class);
    seconds[k] += spans[i].end - spans[i].begin;
    flops[k] += stream.costs[i].flops;
    bytes[k] += stream.costs[i].bytes;
  }
  const auto rate = [&](const double (&amount)[kKernelClasses], KernelClass c) {
    const auto k = static_cast<size_t>(c);
    return seconds[k] > 0 ? amount[k] / seconds[k] : 0;
  };
  return {rate(flops, KernelClass::kGemm), rate(flops, KernelClass::kAttention), rate(bytes, KernelClass::kVector),
          rate(bytes, KernelClass::kPack)};
}

LinkRates measure_link(Device& device, const std::function<void()>& host_load) {
  for (int64_t size = int64_t{1} << 20;; size *= 2) {
    const LinkRates rates = measure_copies(device, size, host_load);
    if (size == int64_t{256} << 20 || static_cast<double>(size) / rates.up >= kLongEnough) return rates;
  }
}

double measure_launches(Device& device) {
  Space space(device);
  auto* little = space.zeros<float>(64);
  device.synchronize();
  constexpr int kLaunches = 1000;
  const double begin = device.now();
  for (int i = 0; i < kLaunches; ++i) fill_zero(device.compute(), little, 256);
  device.synchronize();
  device.take_trace();
  return (device.now() - begin) / kLaunches;
}

}  // namespace megaslide
