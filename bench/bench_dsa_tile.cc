// DSA at the width of Wan 1.3B (12 heads of 128, kernel 3x7x7, R = (1,2,2), 4 groups): kernel B beside kernel A and
// dense attention, in bf16 and fp32. ns a token; FLOP/s count the operator's own (4KC, 10KC; dense 4NC, 10NC).
//   bench_dsa_tile --benchmark_filter=full/bf16
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>

#include "base/philox.h"
#include "kernels/attention/attention.h"
#include "kernels/dsa/dsa.h"
#include "tensor/tensor.h"

namespace megaslide {
namespace {

HostTensor normals(int64_t n, DType dtype, uint64_t series) {
  HostTensor t(dtype, {n});
  const Random random(1, RandomPurpose::kTest);
  float x[4096];
  for (size_t i = 0; i < 4096; ++i) x[i] = static_cast<float>(random.normal(series, i));
  for (int64_t i = 0; i < n; i += 4096)
    convert_from_f32(t.data() + i * dtype_bytes(dtype), dtype, x, std::min<int64_t>(4096, n - i));
  return t;
}

struct Tensors {
  Tensors(int64_t tokens, int64_t heads, int64_t head_dim, DType t, bool backward)
      : n(tokens * heads * head_dim),
        q(normals(n, t, 1)), k(normals(n, t, 2)), v(normals(n, t, 3)), out(DType::kF32, {n}),
        lse(DType::kF32, {tokens * heads}) {
    if (!backward) return;
    dout = normals(n, DType::kF32, 4);
    for (HostTensor* g : {&dq, &dk, &dv}) *g = HostTensor(DType::kF32, {n});
  }
  int64_t n;
  HostTensor q, k, v, out, lse, dout, dq, dk, dv;
};

void report(benchmark::State& b, int64_t tokens, double flops) {
  b.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  b.counters["s/token"] = benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void dsa(benchmark::State& b, DsaOffsetMode mode, DType dtype, DsaKernel kernel, bool backward) {
  InlineStream stream(available_threads());
  DsaShape s;
  s.frames = b.range(0), s.height = b.range(1), s.width = b.range(2);
  s.heads = 12, s.head_dim = 128, s.groups = 4, s.scale = 0.0883883F, s.mode = mode;
  const int64_t window[3] = {3, 7, 7};
  const float reach[3] = {1, 2, 2};
  for (int a = 0; a < 3; ++a) s.kernel[a] = window[a], s.reach[a] = reach[a];
  limit_dsa_kernel(kernel);
  Tensors x(s.tokens(), s.heads, s.head_dim, dtype, backward);
  const int64_t count = s.tokens() * dsa_offset_count(s);
  HostTensor offsets = normals(count, DType::kF32, 5), doffsets;
  HostTensor workspace(DType::kU8, {std::max(dsa_forward_workspace_bytes(s, dtype), backward ? dsa_backward_workspace_bytes(s, dtype) : 0)});
  if (backward) doffsets = HostTensor(DType::kF32, {count});
  const auto forward = [&] {
    dsa_forward(stream, x.out.f32(), x.lse.f32(), x.q.data(), x.k.data(), x.v.data(), offsets.f32(), workspace.data(), s, dtype);
  };
  forward();
  for (auto _ : b) {
    if (!backward) {
      forward();
      continue;
    }
    dsa_backward(stream, x.dq.f32(), x.dk.f32(), x.dv.f32(), doffsets.f32(), x.q.data(), x.k.data(), x.v.data(),
                 offsets.f32(), x.out.f32(), x.lse.f32(), x.dout.f32(), workspace.data(), s, dtype);
  }
  limit_dsa_kernel(DsaKernel::kAuto);
  report(b, s.tokens(), (backward ? 10.0 : 4.0) * static_cast<double>(s.tokens() * s.slots() * s.heads * s.head_dim));
}

void dense(benchmark::State& b, DType dtype, bool backward) {
  InlineStream stream(available_threads());
  const int64_t tokens = b.range(0) * b.range(1) * b.range(2);
  const AttentionShape s{.batch = 1, .queries = tokens, .keys = tokens, .heads = 12, .head_dim = 128, .scale = 0.0883883F};
  Tensors x(tokens, s.heads, s.head_dim, dtype, backward);
  HostTensor workspace(DType::kU8, {std::max<int64_t>(1, dense_attention_backward_workspace_bytes(s, dtype))});
  const auto forward = [&] {
    dense_attention_forward(stream, x.out.f32(), x.lse.f32(), x.q.data(), x.k.data(), x.v.data(), workspace.data(), s, dtype);
  };
  forward();
  for (auto _ : b) {
    if (!backward) {
      forward();
      continue;
    }
    dense_attention_backward(stream, x.dq.f32(), x.dk.f32(), x.dv.f32(), x.q.data(), x.k.data(), x.v.data(), x.out.f32(),
                             x.lse.f32(), x.dout.f32(), workspace.data(), s, dtype);
  }
  report(b, tokens, (backward ? 10.0 : 4.0) * static_cast<double>(tokens) * static_cast<double>(x.n));
}

constexpr bool kForward = false, kBackward = true;
// NOLINTBEGIN(bugprone-macro-parentheses): a name of a benchmark, not an expression
#define MS_DSA(name, mode, dtype, kernel)                                                                    \
  BENCHMARK_CAPTURE(dsa, name/forward, mode, dtype, kernel, kForward)->Args({6, 30, 52})->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond); \
  BENCHMARK_CAPTURE(dsa, name/backward, mode, dtype, kernel, kBackward)->Args({6, 30, 52})->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond)
// NOLINTEND(bugprone-macro-parentheses)
MS_DSA(full/bf16/tile, DsaOffsetMode::kFull, DType::kBF16, DsaKernel::kTile);
MS_DSA(slice/bf16/tile, DsaOffsetMode::kSlice, DType::kBF16, DsaKernel::kTile);
MS_DSA(full/f32/tile, DsaOffsetMode::kFull, DType::kF32, DsaKernel::kTile);
MS_DSA(full/bf16/gather, DsaOffsetMode::kFull, DType::kBF16, DsaKernel::kGather);
MS_DSA(slice/bf16/gather, DsaOffsetMode::kSlice, DType::kBF16, DsaKernel::kGather);
BENCHMARK_CAPTURE(dense, bf16/forward, DType::kBF16, kForward)->Args({4, 30, 52})->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(dense, bf16/backward, DType::kBF16, kBackward)->Args({4, 30, 52})->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond);
#undef MS_DSA

}  // namespace
}  // namespace megaslide
