// A block of UMT5-XXL, bf16, by tokens of the prompt; and what it costs to bring one in.
//   bench_umt5 --benchmark_filter=forward
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "device/device.h"
#include "kernels/relative_attention/relative_attention.h"
#include "model/umt5_block.h"

namespace megaslide {
namespace {

struct Setting {
  explicit Setting(int64_t rows)
      : slab(DType::kBF16, {block.layout().elements}), packed(DType::kU8, {block.packed_bytes(DType::kBF16, false)}),
        x(DType::kF32, {rows, config.width}), y(DType::kF32, {rows, config.width}) {
    // Small normal numbers: zeros and subnormals would not be typical of any unit.
    auto* w = reinterpret_cast<uint16_t*>(slab.data());
    for (int64_t i = 0; i < slab.elements(); ++i) w[i] = static_cast<uint16_t>(0x3c00 + i * 7919 % 512 + (i * 31 % 2 << 15));
    for (int64_t i = 0; i < x.elements(); ++i) x.f32()[i] = static_cast<float>(i * 7919 % 512) * 1e-3F - 0.25F;
    Workspace measure;
    forward(make_sim_device({})->compute(), measure, rows);
    space = HostTensor(DType::kU8, {measure.high_water()});
  }
  void forward(Stream& s, Workspace& w, int64_t rows) { block.forward({s, w, {.width = rows}, DType::kBF16, slab.data(), packed.data()}, {}, x.f32(), y.f32(), nullptr); }
  Umt5Config config;
  Umt5Block block{config};
  InlineStream stream{available_threads()};
  HostTensor slab, packed, x, y, space;
};

void pack(benchmark::State& b) {
  Setting s(1);
  for (auto _ : b) s.block.pack(s.stream, DType::kBF16, false, s.slab.data(), s.packed.data());
}
void forward(benchmark::State& b) {
  Setting s(b.range(0));
  s.block.pack(s.stream, DType::kBF16, false, s.slab.data(), s.packed.data());
  for (auto _ : b) {
    Workspace w(s.space.data(), s.space.bytes());
    s.forward(s.stream, w, b.range(0));
  }
  b.counters["tokens/s"] = benchmark::Counter(static_cast<double>(b.range(0)), benchmark::Counter::kIsIterationInvariantRate);
}
void attention(benchmark::State& b) {
  InlineStream stream{available_threads()};
  const int64_t n = b.range(0), heads = 64, d = 64;
  HostTensor q(DType::kBF16, {n, heads, d}), out(DType::kBF16, {n, heads, d}), bias(DType::kF32, {kRelativeBuckets, heads});
  for (auto _ : b) relative_attention_forward(stream, out.data(), q.data(), q.data(), q.data(), bias.f32(), n, heads, d, DType::kBF16);
}
BENCHMARK(pack)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(forward)->UseRealTime()->Unit(benchmark::kMillisecond)->ArgName("tokens")->Arg(20)->Arg(128)->Arg(512);
BENCHMARK(attention)->UseRealTime()->Unit(benchmark::kMillisecond)->ArgName("tokens")->Arg(128)->Arg(512);

}  // namespace
}  // namespace megaslide
