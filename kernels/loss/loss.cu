#include "kernels/loss/loss.h"

#include <algorithm>
#include <cmath>

#include "kernels/elements.cuh"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

// Samples are blockIdx.y and every 65535th after it.
__global__ void __launch_bounds__(kFlatThreads) flow_mix_kernel(float* x_t, float* target, const float* x0, const float* noise,
                                                                const float* sigma, int64_t samples, int64_t numel, bool aligned) {
  const FlatQuad u(numel);
  for (int64_t b = blockIdx.y; b < samples; b += gridDim.y) {
    const float s = sigma[b], keep = 1.0f - s;
    const int64_t at = b * numel + u.at;
    Quad x = load_quad(x0 + at, u.left, aligned), e = load_quad(noise + at, u.left, aligned);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float v = x.v[i], w = e.v[i];
      x.v[i] = keep * v + s * w;
      e.v[i] = w - v;
    }
    store_quad(x_t + at, x, u.left, aligned);
    store_quad(target + at, e, u.left, aligned);
  }
}

constexpr int kBlock = 16384, kLanes = 16;  // of loss.h
constexpr int kLossThreads = 1024;
constexpr int kBlocksAtOnce = kLossThreads / kLanes;

struct Term {
  bool mse;
  double delta, factor;  // factor: 1, or 1/δ of smooth L1
  explicit Term(const LossTerm& t) : mse(t.kind == LossKind::kMse), delta(t.delta), factor(t.kind == LossKind::kSmoothL1 ? 1 / delta : 1.0) {}
  __device__ double value(double d) const {
    if (mse) return d * d;
    const double a = fabs(d);
    return factor * (a < delta ? 0.5 * d * d : delta * (a - 0.5 * delta));
  }
  __device__ double slope(double d) const {
    if (mse) return 2 * d;
    return factor * (d < -delta ? -delta : delta < d ? delta : d);
  }
};

struct LossArgs {
  const float *v, *target, *weight;
  int64_t n;  // below 2^31
  unsigned area, channels, frames;
  // Of the frame that element i is of, and where that ends.
  struct Weight {
    double value;
    int64_t end;
  };
  __device__ Weight weight_of(int64_t i) const {
    if (weight == nullptr) return {1, n};
    const unsigned frame = static_cast<unsigned>(i) / area;
    return {static_cast<double>(weight[frame / (channels * frames) * frames + frame % frames]), int64_t{area} * (frame + 1)};
  }
};

__device__ __forceinline__ double difference(float v, float target) { return static_cast<double>(v) - static_cast<double>(target); }

__global__ void __launch_bounds__(256) velocity_gradient_kernel(float* dout, LossArgs a, Term term, double factor) {
  const int64_t i = element_index();
  if (i >= a.n) return;
  const double w = a.weight_of(i).value;
  dout[i] = w == 0 ? 0.0f : static_cast<float>(factor * w * term.slope(difference(a.v[i], a.target[i])));
}

// One lane's sum over the elements [begin, end) of a block, in order.
__device__ double lane_sum(const LossArgs& a, const Term& term, int64_t begin, int64_t end, unsigned lane) {
  constexpr int kAhead = 8;  // loads under way
  LossArgs::Weight w{0, begin};
  double sum = 0;
  for (int64_t first = begin + lane; first < end; first += kAhead * kLanes) {
    float v[kAhead] = {}, target[kAhead] = {};
    MS_UNROLL
    for (int k = 0; k < kAhead; ++k)
      if (first + k * kLanes < end) v[k] = a.v[first + k * kLanes], target[k] = a.target[first + k * kLanes];
    MS_UNROLL
    for (int k = 0; k < kAhead; ++k) {
      const int64_t i = first + k * kLanes;
      if (i >= end) break;
      if (i >= w.end) w = a.weight_of(i);
      if (w.value != 0) sum += w.value * term.value(difference(v[k], target[k]));
    }
  }
  return sum;
}

// One block of threads for all of it, 16 threads a block of elements: the sums need no memory but its own, and a step
// calls it once. n: the mean's divisor.
__global__ void __launch_bounds__(kLossThreads) velocity_loss_kernel(double* loss, LossArgs a, Term term, double n, bool add) {
  double* sums = prim::dynamic_shared<double>();
  const auto count = static_cast<unsigned>((a.n + kBlock - 1) / kBlock);
  const unsigned lane = threadIdx.x % kLanes;
  for (unsigned first = 0; first < count; first += kBlocksAtOnce) {
    const unsigned block = first + threadIdx.x / kLanes;
    const int64_t begin = int64_t{block} * kBlock, end = begin + kBlock < a.n ? begin + kBlock : a.n;
    double sum = lane_sum(a, term, begin, end, lane);
    for (int half = kLanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(prim::kFullMask, sum, half);
    if (lane == 0 && block < count) sums[block] = sum;
  }
  for (unsigned step = 1; step < count; step *= 2) {
    __syncthreads();
    for (unsigned i = 2 * step * threadIdx.x; i + step < count; i += 2 * step * kLossThreads) sums[i] += sums[i + step];
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const double own = count == 0 ? 0 : sums[0] / n;
  *loss = add ? *loss + own : own;
}

}  // namespace

namespace cuda {

void flow_mix(Stream& stream, float* x_t, float* target, const float* x0, const float* noise, const float* sigma, int64_t b,
              int64_t numel) {
  if (b == 0 || numel == 0) return;
  dim3 grid = flat_grid(numel);
  grid.y = static_cast<unsigned>(std::min<int64_t>(b, 65535));
  const bool aligned = quads_aligned(b == 1 ? 4 : numel, x_t, target, x0, noise);
  prim::launch(flow_mix_kernel, grid, dim3(kFlatThreads), 0, stream, x_t, target, x0, noise, sigma, b, numel, aligned);
}

void velocity_loss(Stream& stream, double* loss, float* dout, const float* v, const float* target, const float* weight, LossGrid grid,
                   LossTerm term, float scale) {
  const int64_t elements = grid.elements(), blocks = (elements + kBlock - 1) / kBlock;
  constexpr int64_t kMaxBlocks = 6144;  // whose sums lie in 48 KiB of shared memory
  if (blocks > kMaxBlocks) throw Error(fmt::format("a loss of {} elements: the CUDA kernel takes up to {}", elements, kMaxBlocks * kBlock));
  const auto n = static_cast<double>(std::max<int64_t>(1, grid.mean_of ? grid.mean_of : elements));
  const LossArgs a{v, target, weight, elements, static_cast<unsigned>(grid.area), static_cast<unsigned>(grid.channels),
                   static_cast<unsigned>(grid.frames)};
  prim::launch(velocity_loss_kernel, dim3(1), dim3(kLossThreads), static_cast<size_t>(std::max<int64_t>(1, blocks)) * sizeof(double), stream,
               loss, a, Term(term), n, grid.add);
  if (dout != nullptr && elements > 0)
    prim::launch(velocity_gradient_kernel, element_grid(elements), element_block(), 0, stream, dout, a, Term(term),
                 static_cast<double>(scale) / n);
}

}  // namespace cuda
}  // namespace megaslide
