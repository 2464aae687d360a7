#include "kernels/loss/loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace megaslide::cpu {
namespace {
constexpr int64_t kBlock = 16384;
constexpr int64_t kLanes = 16;

struct Mse {
  double value(double d) const { return d * d; }
  double slope(double d) const { return 2 * d; }
};
struct Huber {
  double delta, factor;  // factor: 1, or 1/δ of smooth L1
  double value(double d) const {
    const double a = std::abs(d);
    return factor * (a < delta ? 0.5 * d * d : delta * (a - 0.5 * delta));
  }
  double slope(double d) const { return factor * std::clamp(d, -delta, delta); }
};

// Elements [begin, end) of the flat tensors: Σ weight·ℓ in kLanes interleaved sums, and the gradient. Cells of one latent
// frame have one weight.
template <class Term>
double block_loss(const Term& term, float* dout, const float* v, const float* target, const float* weight, const LossGrid& grid,
                  int64_t begin, int64_t end, double factor) {
  double lanes[kLanes] = {};
  for (int64_t first = begin; first < end;) {
    const int64_t frame = first / grid.area, last = weight ? std::min(end, (frame + 1) * grid.area) : end;
    const double w = weight ? weight[frame / (grid.channels * grid.frames) * grid.frames + frame % grid.frames] : 1;
    if (w == 0) {
      if (dout) std::fill(dout + first, dout + last, 0.0F);
    } else {
      for (int64_t i = first; i < last; ++i) {
        const double d = static_cast<double>(v[i]) - static_cast<double>(target[i]);
        lanes[(i - begin) % kLanes] += w * term.value(d);
        if (dout) dout[i] = static_cast<float>(factor * w * term.slope(d));
      }
    }
    first = last;
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

template <class Term>
double sum_of_blocks(Stream& stream, const Term& term, float* dout, const float* v, const float* target, const float* weight,
                     const LossGrid& grid, double factor) {
  const int64_t n = grid.elements();
  if (n == 0) return 0;
  std::vector<double> sums(static_cast<size_t>((n + kBlock - 1) / kBlock));
  stream.parallel_for(n, kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; b += kBlock)
      sums[static_cast<size_t>(b / kBlock)] = block_loss(term, dout, v, target, weight, grid, b, std::min(end, b + kBlock), factor);
  });
  for (size_t count = sums.size(); count > 1; count = (count + 1) / 2)
    for (size_t i = 0; i < count; i += 2) sums[i / 2] = i + 1 < count ? sums[i] + sums[i + 1] : sums[i];
  return sums[0];
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

void velocity_loss(Stream& stream, double* loss, float* dout, const float* v, const float* target, const float* weight, LossGrid grid,
                   LossTerm term, float scale) {
  const auto n = static_cast<double>(std::max<int64_t>(1, grid.mean_of ? grid.mean_of : grid.elements()));
  const double factor = static_cast<double>(scale) / n, delta = term.delta;
  const auto sum = [&](const auto& of) { return sum_of_blocks(stream, of, dout, v, target, weight, grid, factor); };
  const double own = term.kind == LossKind::kMse ? sum(Mse{}) / n : sum(Huber{delta, term.kind == LossKind::kHuber ? 1.0 : 1 / delta}) / n;
  *loss = grid.add ? *loss + own : own;
}

}  // namespace megaslide::cpu
