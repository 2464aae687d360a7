#include "kernels/loss/loss.h"

#include <algorithm>
#include <vector>

namespace megaslide::cpu {
namespace {
constexpr int64_t kBlock = 16384;
constexpr int64_t kLanes = 16;

// One block: Σ of squares in kLanes interleaved sums, and the gradient.
double block_loss(float* dout, const float* v, const float* target, int64_t n, double factor) {
  double lanes[kLanes] = {};
  const auto one = [&](int64_t i, int64_t lane) {
    const double d = static_cast<double>(v[i]) - static_cast<double>(target[i]);
    lanes[lane] += d * d;
    if (dout) dout[i] = static_cast<float>(factor * d);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) one(i + l, l);
  for (; i < n; ++i) one(i, i % kLanes);
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}
}  // namespace

void flow_mix(Stream& stream, float* x_t, float* target, const float* x0, const float* noise, const float* sigma,
              int64_t b, int64_t numel) {
  const int64_t blocks = (numel + kBlock - 1) / kBlock;  // a sample
  stream.parallel_for(b * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const float s = sigma[p / blocks], keep = 1.0F - s;
      const int64_t first = p / blocks * numel + p % blocks * kBlock;
      const int64_t last = std::min(first + kBlock, (p / blocks + 1) * numel);
      for (int64_t i = first; i < last; ++i) {
        x_t[i] = keep * x0[i] + s * noise[i];
        target[i] = noise[i] - x0[i];
      }
    }
  });
}

void mse_loss(Stream& stream, double* loss, float* dout, const float* v, const float* target, int64_t b, int64_t numel,
              float scale) {
  const int64_t n = b * numel;
  const double factor = 2.0 * static_cast<double>(scale) / static_cast<double>(n);
  std::vector<double> sums(static_cast<size_t>((n + kBlock - 1) / kBlock));
  stream.parallel_for(n, kBlock, [&](int64_t begin, int64_t end) {
    sums[static_cast<size_t>(begin / kBlock)] =
        block_loss(dout ? dout + begin : nullptr, v + begin, target + begin, end - begin, factor);
  });
  for (size_t count = sums.size(); count > 1; count = (count + 1) / 2)
    for (size_t i = 0; i < count; i += 2) sums[i / 2] = i + 1 < count ? sums[i] + sums[i + 1] : sums[i];
  *loss = n > 0 ? sums[0] / static_cast<double>(n) : 0;
}

}  // namespace megaslide::cpu
