// The products of a linear layer at the sizes of the tiny preset and of Wan 1.3B, in GFLOP/s.
//   bench_gemm --benchmark_filter=forward
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "kernels/gemm/gemm.h"

namespace megaslide {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<std::byte, Free>;
// Filled with small normal numbers of the type: zeros and subnormals would not be typical of any unit.
Buffer buffer(int64_t bytes, DType dtype) {
  const auto size = (static_cast<size_t>(bytes) + 4095) / 4096 * 4096;
  Buffer b(static_cast<std::byte*>(std::aligned_alloc(4096, size)));
  if (dtype == DType::kBF16) {
    auto* p = reinterpret_cast<uint16_t*>(b.get());
    for (size_t i = 0; i < size / 2; ++i) p[i] = static_cast<uint16_t>(0x3c00 + i * 7919 % 512 + (i * 31 % 2 << 15));
  } else {
    auto* p = reinterpret_cast<float*>(b.get());
    for (size_t i = 0; i < size / 4; ++i) p[i] = static_cast<float>(i * 7919 % 512) * 1e-3F - 0.25F;
  }
  return b;
}

struct Layer {
  Layer(const benchmark::State& b, DType t)
      : m(b.range(0)),
        n(b.range(1)),
        k(b.range(2)),
        dtype(t),
        x(buffer(m * k * dtype_bytes(t), t)),
        dy(buffer(m * n * dtype_bytes(t), t)),
        w(buffer(n * k * dtype_bytes(t), t)),
        bias(buffer(n * dtype_bytes(t), t)),
        out(buffer(std::max({m * n, m * k, n * k}) * 4, DType::kF32)),
        forward(buffer(linear_packed_bytes(n, k, t, PackFor::kForward), t)),
        backward(buffer(linear_packed_bytes(n, k, t, PackFor::kInputGradient), t)) {
    linear_pack(stream, forward.get(), w.get(), n, k, dtype, PackFor::kForward);
    linear_pack(stream, backward.get(), w.get(), n, k, dtype, PackFor::kInputGradient);
  }
  float* result() const { return reinterpret_cast<float*>(out.get()); }
  void report(benchmark::State& b) const {
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    b.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  }
  InlineStream stream{available_threads()};
  int64_t m, n, k;
  DType dtype;
  Buffer x, dy, w, bias, out, forward, backward;
};

void forward(benchmark::State& b, DType dtype) {
  Layer l(b, dtype);
  for (auto _ : b) linear_forward(l.stream, l.result(), l.x.get(), l.forward.get(), l.bias.get(), l.m, l.n, l.k, dtype);
  l.report(b);
}
void input_gradient(benchmark::State& b, DType dtype) {
  Layer l(b, dtype);
  for (auto _ : b)
    linear_input_gradient(l.stream, l.result(), l.dy.get(), l.backward.get(), l.m, l.n, l.k, dtype, false);
  l.report(b);
}
void weight_gradient(benchmark::State& b, DType dtype) {
  Layer l(b, dtype);
  std::memset(l.out.get(), 0, static_cast<size_t>(l.n * l.k) * 4);
  const Buffer scratch = buffer(linear_weight_gradient_scratch(l.m, l.n, l.k, dtype), dtype);
  for (auto _ : b)
    linear_weight_gradient(l.stream, l.result(), scratch.get(), l.dy.get(), l.x.get(), l.m, l.n, l.k, dtype);
  l.report(b);
}
void pack(benchmark::State& b, DType dtype) {
  Layer l(b, dtype);
  for (auto _ : b) linear_pack(l.stream, l.forward.get(), l.w.get(), l.n, l.k, dtype, PackFor::kForward);
  b.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(l.n * l.k), benchmark::Counter::kIsIterationInvariantRate);
}
void cast(benchmark::State& b) {
  InlineStream stream{available_threads()};
  const int64_t n = b.range(0);
  const Buffer in = buffer(n * 4, DType::kF32), out = buffer(n * 2, DType::kBF16);
  for (auto _ : b) cast_operand(stream, out.get(), reinterpret_cast<const float*>(in.get()), n, DType::kBF16);
  b.counters["elements/s"] = benchmark::Counter(static_cast<double>(n), benchmark::Counter::kIsIterationInvariantRate);
}

void sizes(benchmark::internal::Benchmark* b) {
  b->UseRealTime()->Unit(benchmark::kMicrosecond)->ArgNames({"M", "N", "K"});
  b->Args({320, 192, 192})->Args({320, 768, 192})->Args({320, 192, 768})->Args({2, 1152, 192})->Args({1300, 768, 192});
  b->Args({1560, 1536, 1536})->Args({1560, 8960, 1536})->Args({1560, 1536, 8960});
}
BENCHMARK_CAPTURE(forward, bf16, DType::kBF16)->Apply(sizes);
BENCHMARK_CAPTURE(input_gradient, bf16, DType::kBF16)->Apply(sizes);
BENCHMARK_CAPTURE(weight_gradient, bf16, DType::kBF16)->Apply(sizes);
BENCHMARK_CAPTURE(pack, bf16, DType::kBF16)->Apply(sizes);
BENCHMARK_CAPTURE(forward, fp32, DType::kF32)->Apply(sizes);
BENCHMARK_CAPTURE(weight_gradient, fp32, DType::kF32)->Apply(sizes);
BENCHMARK(cast)->UseRealTime()->Unit(benchmark::kMicrosecond)->Arg(320 * 192)->Arg(1560 * 8960);

}  // namespace
}  // namespace megaslide
