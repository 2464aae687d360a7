// Optimizer update against a triad that moves the same bytes. `parameters/s` of each; the ratio is the target (>= 0.8).
//   bench_adamw --benchmark_enable_random_interleaving=true --benchmark_repetitions=5
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/adamw/adamw.h"

namespace megaslide {
namespace {

constexpr int64_t kParameters = 100'000'000;

template <class T>
struct Pages {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  Pages(ThreadPool& pool, int64_t n)
      : data(static_cast<T*>(
            std::aligned_alloc(1 << 21, (static_cast<size_t>(n) * sizeof(T) + (1 << 21) - 1) >> 21 << 21))) {
    pool.parallel_for(n, 1 << 20, [&](int64_t begin, int64_t end) {
      std::memset(data.get() + begin, 0, static_cast<size_t>(end - begin) * sizeof(T));
    });
  }
  operator T*() const { return data.get(); }
  std::unique_ptr<T, Free> data;
};

// Everything a 100 M parameter update touches, in one place so that programs of both codecs share the pages.
struct State {
  ThreadPool pool{available_threads()};
  Pages<float> p{pool, kParameters}, m{pool, kParameters}, v{pool, kParameters};
  Pages<bf16> w{pool, kParameters}, g{pool, kParameters};
  Pages<int16_t> r{pool, kParameters};
  Pages<float> g32{pool, kParameters};
  State() {
    const bf16 x = to_bf16(1e-3F);
    pool.parallel_for(kParameters, 1 << 20, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        g[i] = x;
        g32[i] = 1e-3F;
      }
    });
  }
};
State& state() {
  static State s;
  return s;
}

AdamWStep step_number(int64_t s) {
  AdamWStep step;
  step.step = s;
  return step;
}

void report(benchmark::State& b, double bytes) {
  b.counters["parameters/s"] =
      benchmark::Counter(static_cast<double>(kParameters), benchmark::Counter::kIsIterationInvariantRate);
  b.counters["bytes/s"] =
      benchmark::Counter(bytes * static_cast<double>(kParameters), benchmark::Counter::kIsIterationInvariantRate);
}

// 26 bytes a parameter: weight, remainder, m, v read and written, bf16 gradient read.
void split_bf16(benchmark::State& b) {
  State& s = state();
  int64_t step = 0;
  for (auto _ : b)
    adamw_update_split(s.pool, s.w, s.r, s.m, s.v, static_cast<bf16*>(s.g), DType::kBF16, kParameters,
                       step_number(++step));
  report(b, 26);
}
BENCHMARK(split_bf16)->UseRealTime()->Unit(benchmark::kMillisecond);

// 28: p, m, v read and written, weight written, bf16 gradient read.
void fp32_bf16(benchmark::State& b) {
  State& s = state();
  int64_t step = 0;
  for (auto _ : b)
    adamw_update_fp32(s.pool, s.p, s.w, s.m, s.v, static_cast<bf16*>(s.g), DType::kBF16, kParameters,
                      step_number(++step));
  report(b, 28);
}
BENCHMARK(fp32_bf16)->UseRealTime()->Unit(benchmark::kMillisecond);

// 28: p, m, v read and written, fp32 gradient read: the streams of torch.optim.AdamW(fused=True).
void fp32_fp32(benchmark::State& b) {
  State& s = state();
  int64_t step = 0;
  for (auto _ : b)
    adamw_update_fp32(s.pool, s.p, nullptr, s.m, s.v, static_cast<float*>(s.g32), DType::kF32, kParameters,
                      step_number(++step));
  report(b, 28);
}
BENCHMARK(fp32_fp32)->UseRealTime()->Unit(benchmark::kMillisecond);

// The same streams with one multiply-add an element: what the memory allows.
__attribute__((target_clones("arch=skylake-avx512", "avx2,fma", "default"), optimize("O3"))) void triad_piece(
    float* p, float* m, float* v, const float* g, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    p[i] = p[i] * 0.999F + g[i];
    m[i] = m[i] * 0.999F + g[i];
    v[i] = v[i] * 0.999F + g[i];
  }
}
void triad_28_bytes(benchmark::State& b) {
  State& s = state();
  for (auto _ : b)
    s.pool.parallel_for(kParameters, 65536, [&](int64_t begin, int64_t end) {
      triad_piece(s.p + begin, s.m + begin, s.v + begin, s.g32 + begin, end - begin);
    });
  report(b, 28);
}
BENCHMARK(triad_28_bytes)->UseRealTime()->Unit(benchmark::kMillisecond);

__attribute__((target_clones("arch=skylake-avx512", "avx2,fma", "default"), optimize("O3"))) void triad_split_piece(
    uint16_t* w, uint16_t* r, float* m, float* v, const uint16_t* g, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<float>(g[i]);
    w[i] = static_cast<uint16_t>(w[i] + g[i]);
    r[i] = static_cast<uint16_t>(r[i] + g[i]);
    m[i] = m[i] * 0.999F + x;
    v[i] = v[i] * 0.999F + x;
  }
}
void triad_26_bytes(benchmark::State& b) {
  State& s = state();
  auto* w = reinterpret_cast<uint16_t*>(static_cast<bf16*>(s.w));
  auto* r = reinterpret_cast<uint16_t*>(static_cast<int16_t*>(s.r));
  const auto* g = reinterpret_cast<const uint16_t*>(static_cast<bf16*>(s.g));
  for (auto _ : b)
    s.pool.parallel_for(kParameters, 65536, [&](int64_t begin, int64_t end) {
      triad_split_piece(w + begin, r + begin, s.m + begin, s.v + begin, g + begin, end - begin);
    });
  report(b, 26);
}
BENCHMARK(triad_26_bytes)->UseRealTime()->Unit(benchmark::kMillisecond);

void norm_bf16(benchmark::State& b) {
  State& s = state();
  for (auto _ : b) benchmark::DoNotOptimize(squared_norm(s.pool, static_cast<bf16*>(s.g), DType::kBF16, kParameters));
  report(b, 2);
}
BENCHMARK(norm_bf16)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megaslide
