#include "attention_check/peaks.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/gemm/gemm.h"
#include "tensor/tensor.h"

namespace megaslide {
namespace {

constexpr double kSeconds = 0.15;

double best_seconds(FunctionRef<void()> work) {
  using Clock = std::chrono::steady_clock;
  double best = std::numeric_limits<double>::infinity();
  work();  // code is generated and memory touched
  for (const auto begin = Clock::now(); std::chrono::duration<double>(Clock::now() - begin).count() < kSeconds;) {
    const auto start = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

HostTensor ones(DType dtype, int64_t n) {
  HostTensor t(dtype, {n});
  const std::vector<float> x(static_cast<size_t>(n), 1.0f);
  convert_from_f32(t.data(), dtype, x.data(), n);
  return t;
}

}  // namespace

MachinePeaks measure_peaks(DType dtype, int threads) {
  InlineStream s(threads);
  MachinePeaks peaks;
  {
    constexpr int64_t kSide = 1024;
    const HostTensor x = ones(dtype, kSide * kSide);
    HostTensor y(DType::kF32, {kSide * kSide}), packed(DType::kU8, {linear_packed_bytes(kSide, kSide, dtype, PackFor::kForward)});
    linear_pack(s, packed.data(), x.data(), kSide, kSide, dtype, PackFor::kForward);
    const double seconds = best_seconds([&] { linear_forward(s, y.f32(), x.data(), packed.data(), nullptr, kSide, kSide, kSide, dtype); });
    peaks.flops = 2.0 * kSide * kSide * kSide / seconds;
  }
  constexpr int64_t kElements = 16 << 20;
  const HostTensor b = ones(DType::kF32, kElements), c = ones(DType::kF32, kElements);
  HostTensor a(DType::kF32, {kElements});
  const double seconds = best_seconds([&] {
    s.parallel_for(kElements, 1 << 16, [&](int64_t begin, int64_t end) {
      const float *from = b.f32(), *other = c.f32();
      float* to = a.f32();
      for (int64_t i = begin; i < end; ++i) to[i] = from[i] + 3.0f * other[i];
    });
  });
  peaks.bytes_per_second = 12.0 * kElements / seconds;
  return peaks;
}

}  // namespace megaslide
