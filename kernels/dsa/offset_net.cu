#include <cmath>

#include "kernels/dsa/offset_net_cuda.h"
#include "kernels/elements.cuh"

namespace megaslide {
namespace {

constexpr int kTaps = kOffsetNetTaps, kChunk = kOffsetNetChunk;
constexpr int kThreads = 128;  // four warps a row
constexpr int64_t kMaxChannels = 40000;  // a row lies in shared memory

struct Grid {
  int frames, height, width, channels;
  int64_t rows;  // batch · tokens
  float eps;
  explicit Grid(const OffsetNetShape& s)
      : frames(static_cast<int>(s.frames)), height(static_cast<int>(s.height)), width(static_cast<int>(s.width)),
        channels(static_cast<int>(s.channels)), rows(count32(s.batch * s.tokens(), "tokens")), eps(s.eps) {
    if (s.channels > kMaxChannels) throw Error(fmt::format("{} channels: the CUDA offset net takes up to {}", s.channels, kMaxChannels));
  }
  // Rows from `row` to the token that lies `sign` times the tap's step away; false outside the grid.
  __device__ bool distance(int row, int tap, int sign, int& rows_away) const {
    const int token = row % (frames * height * width);
    const int dt = sign * (tap / 9 - 1), dh = sign * (tap / 3 % 3 - 1), dw = sign * (tap % 3 - 1);
    const int t = token / (height * width) + dt, h = token / width % height + dh, w = token % width + dw;
    rows_away = (dt * height + dh) * width + dw;
    return t >= 0 && t < frames && h >= 0 && h < height && w >= 0 && w < width;
  }
};

struct Gelu {
  float value, slope;
};
// ½ z (1 + tanh(√(2/π)(z + 0.044715 z³))) and its derivative.
__device__ Gelu gelu(float z) {
  constexpr float kA = 0.7978845608028654f, kB = 0.044715f;
  const float t = tanhf(kA * fmaf(z * z * z, kB, z)), half = 0.5f * z;
  const float inner = kA * fmaf(3 * kB, z * z, 1.0f);
  return {fmaf(half, t, half), 0.5f * fmaf(z * (1 - t * t), inner, 1 + t)};
}

// Mean and 1/√(var + eps) of a row, by the block.
__device__ float2 row_stats(float* part, const float* y, int n, float eps) {
  float sum = 0, square = 0;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kThreads) sum += y[c];
  const float mean = block_sum(part, sum) / static_cast<float>(n);
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kThreads) square = fmaf(y[c] - mean, y[c] - mean, square);
  return {mean, 1 / sqrtf(block_sum(part, square) / static_cast<float>(n) + eps)};
}

struct ForwardArgs {
  void* g;
  float* conv_out;
  bool g_is_bf16;
  AnyElements x, conv_weight, conv_bias, norm_weight, norm_bias;
  Grid grid;
};

__global__ void __launch_bounds__(kThreads) offset_net_forward_kernel(ForwardArgs a) {
  float *part = prim::dynamic_shared<float>(), *y = part + 4;
  const int row = static_cast<int>(blockIdx.x), n = a.grid.channels, first = static_cast<int>(threadIdx.x);
  const int64_t at = int64_t{row} * n;
  for (int c = first; c < n; c += kThreads) {
    float sum = a.conv_bias.at(c);
    for (int tap = 0; tap < kTaps; ++tap) {
      int away;
      if (a.grid.distance(row, tap, 1, away))
        sum = fmaf(a.conv_weight.at(int64_t{c} * kTaps + tap), a.x.at(at + int64_t{away} * n + c), sum);
    }
    y[c] = sum;
    if (a.conv_out != nullptr) a.conv_out[at + c] = sum;
  }
  const float2 stats = row_stats(part, y, n, a.grid.eps);
  for (int c = first; c < n; c += kThreads) {
    const float g = gelu(fmaf((y[c] - stats.x) * stats.y, a.norm_weight.at(c), a.norm_bias.at(c))).value;
    if (a.g_is_bf16) {
      static_cast<bf16*>(a.g)[at + c].bits = static_cast<uint16_t>(prim::pack_bf16(g, 0));
    } else {
      static_cast<float*>(a.g)[at + c] = g;
    }
  }
}

// All of backward; OffsetNetBackwardSpace at the end.
struct BackwardArgs {
  float *dx, *dconv_weight, *dconv_bias, *dnorm_weight, *dnorm_bias;
  const float *dg, *conv_out;
  AnyElements x, conv_weight, norm_weight, norm_bias;
  Grid grid;
  int chunks, planes;
  float* dy;
  float2* stats;
  float *partial, *taps;

  BackwardArgs(float* const (&gradients)[5], const float* dg_, const float* conv_out_, const void* x_, const void* conv_weight_,
               const void* norm_weight_, const void* norm_bias_, const OffsetNetBackwardSpace& w, const OffsetNetShape& s)
      : dx(gradients[0]), dconv_weight(gradients[1]), dconv_bias(gradients[2]), dnorm_weight(gradients[3]),
        dnorm_bias(gradients[4]), dg(dg_), conv_out(conv_out_), x(x_, s.x_dtype), conv_weight(conv_weight_, s.weight_dtype),
        norm_weight(norm_weight_, s.weight_dtype), norm_bias(norm_bias_, s.weight_dtype), grid(s),
        chunks(static_cast<int>(w.chunks)), planes(static_cast<int>(w.planes)), dy(w.dy),
        stats(reinterpret_cast<float2*>(w.stats)), partial(w.partial), taps(w.taps) {}
};

// The gradients at the norm's output and at its weight's, for one value.
__device__ float2 norm_gradient(const BackwardArgs& a, int64_t at, int c, float2 stats) {
  const float hat = (a.conv_out[at + c] - stats.x) * stats.y;
  const float dz = a.dg[at + c] * gelu(fmaf(hat, a.norm_weight.at(c), a.norm_bias.at(c))).slope;
  return {dz, hat};
}

__global__ void __launch_bounds__(kThreads) offset_net_norm_kernel(BackwardArgs a) {
  float* part = prim::dynamic_shared<float>();
  const int n = a.grid.channels, first = static_cast<int>(threadIdx.x);
  const int64_t at = int64_t{blockIdx.x} * n;
  const float2 stats = row_stats(part, a.conv_out + at, n, a.grid.eps);
  float sum = 0, dot = 0;
  for (int c = first; c < n; c += kThreads) {
    const float2 g = norm_gradient(a, at, c, stats);
    const float dhat = g.x * a.norm_weight.at(c);
    sum += dhat;
    dot = fmaf(dhat, g.y, dot);
    a.dy[at + c] = dhat;
  }
  const float mean = block_sum(part, sum) / static_cast<float>(n), project = block_sum(part, dot) / static_cast<float>(n);
  for (int c = first; c < n; c += kThreads) {
    const float hat = (a.conv_out[at + c] - stats.x) * stats.y;
    a.dy[at + c] = fmaf(-hat, project, a.dy[at + c] - mean) * stats.y;
  }
  if (first == 0) a.stats[blockIdx.x] = stats;
}

// Sums over the tokens of a chunk, a thread a channel.
__global__ void __launch_bounds__(kThreads) offset_net_chunk_kernel(BackwardArgs a) {
  const int n = a.grid.channels, c = static_cast<int>(blockIdx.x * kThreads + threadIdx.x), chunk = static_cast<int>(blockIdx.y);
  if (c >= n) return;
  float dweight = 0, dbias = 0, dconv_bias = 0;
  const int64_t last = int64_t{chunk} * kChunk + kChunk < a.grid.rows ? int64_t{chunk} * kChunk + kChunk : a.grid.rows;
  for (int64_t row = int64_t{chunk} * kChunk; row < last; ++row) {
    const float2 g = norm_gradient(a, row * n, c, a.stats[row]);
    dweight = fmaf(g.x, g.y, dweight);
    dbias += g.x;
    dconv_bias += a.dy[row * n + c];
  }
  float* to = a.partial + int64_t{chunk} * 3 * n + c;
  to[0] = dweight, to[n] = dbias, to[2 * n] = dconv_bias;
}

__global__ void __launch_bounds__(kThreads) offset_net_input_kernel(BackwardArgs a) {
  const int row = static_cast<int>(blockIdx.x), n = a.grid.channels;
  const int64_t at = int64_t{row} * n;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kThreads) {
    float sum = a.dx[at + c];
    for (int tap = 0; tap < kTaps; ++tap) {
      int away;
      if (a.grid.distance(row, tap, -1, away))
        sum = fmaf(a.conv_weight.at(int64_t{c} * kTaps + tap), a.dy[at + int64_t{away} * n + c], sum);
    }
    a.dx[at + c] = sum;
  }
}

// The convolution's weight gradient over one frame, a thread a channel.
__global__ void __launch_bounds__(kThreads) offset_net_tap_kernel(BackwardArgs a) {
  const int n = a.grid.channels, c = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (c >= n) return;
  const int plane = a.grid.height * a.grid.width, row0 = static_cast<int>(blockIdx.y) * plane;
  float sum[kTaps] = {};
  for (int row = row0; row < row0 + plane; ++row) {
    const float dy = a.dy[int64_t{row} * n + c];
    MS_UNROLL
    for (int tap = 0; tap < kTaps; ++tap) {
      int away;
      if (a.grid.distance(row, tap, 1, away)) sum[tap] = fmaf(dy, a.x.at(int64_t{row + away} * n + c), sum[tap]);
    }
  }
  MS_UNROLL
  for (int tap = 0; tap < kTaps; ++tap) a.taps[(int64_t{blockIdx.y} * kTaps + tap) * n + c] = sum[tap];
}

// Adds the partial sums up, in order: the three over chunks, then 27 over frames.
__global__ void __launch_bounds__(256) offset_net_reduce_kernel(BackwardArgs a) {
  const int n = a.grid.channels;
  const int64_t i = element_index();
  if (i >= int64_t{n} * (3 + kTaps)) return;
  const int which = static_cast<int>(i / n), c = static_cast<int>(i % n);
  if (which < 3) {
    float* to = (which == 0 ? a.dnorm_weight : which == 1 ? a.dnorm_bias : a.dconv_bias) + c;
    for (int chunk = 0; chunk < a.chunks; ++chunk) *to += a.partial[(int64_t{chunk} * 3 + which) * n + c];
    return;
  }
  const int tap = which - 3;
  float sum = 0;
  for (int plane = 0; plane < a.planes; ++plane) sum += a.taps[(int64_t{plane} * kTaps + tap) * n + c];
  a.dconv_weight[int64_t{c} * kTaps + tap] += sum;
}

}  // namespace

namespace cuda {

void offset_net_forward(Stream& stream, void* g, float* conv_out, const void* x, const void* conv_weight,
                        const void* conv_bias, const void* norm_weight, const void* norm_bias, OffsetNetShape s) {
  const ForwardArgs a{g, conv_out, s.out_dtype == DType::kBF16, {x, s.x_dtype}, {conv_weight, s.weight_dtype},
                      {conv_bias, s.weight_dtype}, {norm_weight, s.weight_dtype}, {norm_bias, s.weight_dtype}, Grid(s)};
  if (a.grid.rows == 0) return;
  prim::launch(offset_net_forward_kernel, dim3(static_cast<unsigned>(a.grid.rows)), dim3(kThreads),
               sizeof(float) * (4 + static_cast<size_t>(s.channels)), stream, a);
}

void offset_net_backward(Stream& stream, float* dx, float* dconv_weight, float* dconv_bias, float* dnorm_weight,
                         float* dnorm_bias, const float* dg, const float* conv_out, const void* x,
                         const void* conv_weight, const void* norm_weight, const void* norm_bias, void* workspace,
                         OffsetNetShape s) {
  Carver carver(workspace);
  const BackwardArgs a({dx, dconv_weight, dconv_bias, dnorm_weight, dnorm_bias}, dg, conv_out, x, conv_weight, norm_weight,
                       norm_bias, OffsetNetBackwardSpace(carver, s), s);
  if (a.grid.rows == 0) return;
  const auto rows = static_cast<unsigned>(a.grid.rows), columns = static_cast<unsigned>((s.channels + kThreads - 1) / kThreads);
  if (a.chunks > 65535 || a.planes > 65535) throw Error(fmt::format("{} tokens, {} frames: more than the CUDA offset net takes", rows, a.planes));
  prim::launch(offset_net_norm_kernel, dim3(rows), dim3(kThreads), 4 * sizeof(float), stream, a);
  prim::launch(offset_net_chunk_kernel, dim3(columns, static_cast<unsigned>(a.chunks)), dim3(kThreads), 0, stream, a);
  prim::launch(offset_net_input_kernel, dim3(rows), dim3(kThreads), 0, stream, a);
  prim::launch(offset_net_tap_kernel, dim3(columns, static_cast<unsigned>(a.planes)), dim3(kThreads), 0, stream, a);
  prim::launch(offset_net_reduce_kernel, element_grid(s.channels * (3 + kTaps)), element_block(), 0, stream, a);
}

}  // namespace cuda
}  // namespace megaslide
