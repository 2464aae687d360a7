#include "plan/calibrate_device.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/memory/memory.h"
#include "model/wan.h"
#include "stream/host_memory.h"

namespace megaslide {

HostTensor calibration_noise(DType dtype, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 2654435761u) % 2001) * 1e-3f - 1;
  HostTensor t(dtype, {n});
  convert_from_f32(t.data(), dtype, x.data(), n);
  return t;
}

namespace {

// Passes calls on to a stream of the device and keeps what each costs, in order.
class RecordingStream final : public Stream {
 public:
  explicit RecordingStream(Stream& to) : to_(to) {}
  Backend backend() const override { return to_.backend(); }
  Backend target() const override { return to_.target(); }
  ThreadPool& pool() override { return to_.pool(); }
  void* native() override { return to_.native(); }
  void enqueue(const char* name, const Cost& cost, std::function<void()> work) override {
    costs.push_back(cost);
    to_.enqueue(name, cost, std::move(work));
  }
  std::vector<Cost> costs;

 private:
  Stream& to_;
};

// Memory of the device for the time of a measurement.
class Space {
 public:
  explicit Space(Device& device) : device_(device) {}
  ~Space() {
    for (void* p : taken_) device_.release(p);
  }
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  template <class T>
  T* zeros(int64_t n) {
    void* p = device_.allocate(n * static_cast<int64_t>(sizeof(T)), "calibration", MemoryCategory::kOther);
    taken_.push_back(p);
    fill_zero(device_.compute(), p, n * static_cast<int64_t>(sizeof(T)));
    return static_cast<T*>(p);
  }
  void* noise(DType dtype, int64_t n) {
    const HostTensor piece = calibration_noise(dtype, std::min<int64_t>(n, 1 << 16));
    auto* p = zeros<std::byte>(n * dtype_bytes(dtype));
    const int64_t bytes = n * dtype_bytes(dtype);
    device_.wait(device_.upload(), device_.record(device_.compute()));
    for (int64_t at = 0; at < bytes; at += piece.bytes())
      device_.copy(device_.upload(), p + at, piece.data(), std::min(piece.bytes(), bytes - at), CopyKind::kUpload, "noise");
    device_.synchronize();
    return p;
  }

 private:
  Device& device_;
  std::vector<void*> taken_;
};

std::vector<TraceSpan> spans_of(Device& device, StreamKind kind) {
  device.synchronize();
  std::vector<TraceSpan> spans = device.take_trace();
  std::erase_if(spans, [kind](const TraceSpan& s) { return s.stream != kind; });
  return spans;
}
double shortest(const std::vector<TraceSpan>& spans) {
  double least = 1e30;
  for (const TraceSpan& s : spans) least = std::min(least, s.end - s.begin);
  return least;
}

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
  ModelConfig config = model;
  config.layers = 1;
  config.attention.per_layer.clear();
  config.attention.kind = model.attention.of_layer(0);
  const Network network = make_wan_network(config);
  const Layer& layer = *network.layers.front();
  constexpr DType kType = DType::kBF16;
  const int64_t rows = shape.rows(), context_rows = shape.batch * shape.context_rows, elements = layer.layout().elements;
  Space space(device);
  const void* weights = space.noise(kType, elements);
  auto* x = static_cast<float*>(space.noise(DType::kF32, rows * config.dim));
  auto *y = space.zeros<float>(rows * config.dim), *dweights = space.zeros<float>(elements);
  auto *packed = space.zeros<std::byte>(layer.packed_bytes(kType, true)), *saved = space.zeros<std::byte>(layer.saved_bytes(shape, kType));
  auto *context = static_cast<float*>(space.noise(DType::kF32, context_rows * config.dim)), *dcontext = space.zeros<float>(context_rows * config.dim);
  auto *modulation = static_cast<float*>(space.noise(DType::kF32, shape.batch * 6 * config.dim)), *dmodulation = space.zeros<float>(shape.batch * 6 * config.dim);
  const Conditioning conditioning{context, modulation, dcontext, dmodulation};
  const auto pass = [&](Stream& stream, Workspace& workspace) {
    const LayerCall call{stream, workspace, shape, kType, weights, packed};
    layer.pack(stream, kType, false, weights, packed);
    layer.forward(call, conditioning, x, y, nullptr);
    layer.pack(stream, kType, true, weights, packed);
    layer.forward(call, conditioning, x, y, saved);
    layer.backward(call, conditioning, x, saved, y, y, dweights);
  };
  Workspace dry;
  pass(make_sim_device({.target = device.compute().target()})->compute(), dry);
  Workspace workspace(space.zeros<std::byte>(dry.high_water()), dry.high_water());
  RecordingStream stream(device.compute());
  pass(stream, workspace);  // chooses the products' algorithms
  spans_of(device, StreamKind::kCompute);
  stream.costs.clear();
  std::vector<TraceSpan> spans;
  const double begin = device.now();
  for (int i = 0; i < 3 || device.now() - begin < at_least; ++i) {
    pass(stream, workspace);
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
