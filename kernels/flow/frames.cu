// Passes over frames of optical flow.
#include <cmath>

#include "kernels/flow/flow.h"
#include "kernels/flow/frame_rows.cuh"

namespace megaslide {
namespace {

// NaN stays.
__device__ __forceinline__ float relu(float v) { return v < 0 ? 0.0f : v; }
// e^x is kept a finite number; NaN stays.
__device__ __forceinline__ float sigmoid(float v) { return 1 / (1 + expf(-v > 88 ? 88.0f : -v)); }

// ---- pictures: a thread a channel of a cell ----

__device__ __forceinline__ int64_t clamped(int64_t i, int64_t n) { return i < 0 ? 0 : i < n ? i : n - 1; }

__global__ void __launch_bounds__(kRowThreads) picture_frame_kernel(float* frame, FrameLayout l, PictureCells p, FrameRows r) {
  const unsigned channels = static_cast<unsigned>(l.channels), block = static_cast<unsigned>(p.block), unit = r.unit();
  if (unit >= r.units) return;
  const unsigned x = unit / channels, channel = unit % channels;
  const int64_t row = clamped(p.block * r.row() + channel % block - p.top, p.height);
  const int64_t column = clamped(p.block * x + channel / block % block - p.left, p.width);
  const float v = static_cast<float>(p.rgb[3 * (row * p.width + column) + channel / (block * block)]);
  frame[l.cell(r.row(), x) + channel] = v * p.scale + p.shift;
}

// ---- instance norm: a block a band of rows and 16 channels, a thread four of them of every 64th cell ----

constexpr int kNormThreads = 256, kNormCells = kNormThreads / 4, kNormWarps = kNormThreads / 32;

struct Moments {
  double of[2][16];  // sums, sums of squares
};

__global__ void __launch_bounds__(kNormThreads) frame_moments_kernel(double* scratch, const float* frame, FrameLayout l) {
  Moments* part = prim::dynamic_shared<Moments>();  // a warp's
  const int thread = static_cast<int>(threadIdx.x), quad = thread % 4, warp = thread / 32;
  const int64_t band = blockIdx.x, stored = l.stored(), channel = int64_t{blockIdx.y} * 16;
  double sum[4] = {}, square[4] = {};
  for (int64_t y = l.height * band / kNormBands; y < l.height * (band + 1) / kNormBands; ++y)
    for (int64_t x = thread / 4; x < l.width; x += kNormCells) {
      const Quad q = load_aligned_quad(frame + l.cell(y, x) + channel + 4 * quad);
      MS_UNROLL
      for (int i = 0; i < 4; ++i) {
        const double v = static_cast<double>(q.v[i]);
        sum[i] += v;
        square[i] = fma(v, v, square[i]);
      }
    }
  MS_UNROLL
  for (int i = 0; i < 4; ++i) {
    for (int lanes = 16; lanes >= 4; lanes /= 2) {
      sum[i] += __shfl_xor_sync(prim::kFullMask, sum[i], lanes);
      square[i] += __shfl_xor_sync(prim::kFullMask, square[i], lanes);
    }
    if (thread % 32 < 4) part[warp].of[0][4 * quad + i] = sum[i], part[warp].of[1][4 * quad + i] = square[i];
  }
  __syncthreads();
  if (thread >= 32) return;
  double total = 0;
  for (int w = 0; w < kNormWarps; ++w) total += part[w].of[thread / 16][thread % 16];
  scratch[(2 * band + thread / 16) * stored + channel + thread % 16] = total;
}

// A thread a channel.
__global__ void __launch_bounds__(128) norm_scale_kernel(float* scale, float* shift, const double* scratch, int64_t stored, double cells, double eps) {
  const int64_t c = int64_t{blockIdx.x} * 128 + threadIdx.x;
  if (c >= stored) return;
  double sum = 0, square = 0;
  for (int64_t band = 0; band < kNormBands; ++band) sum += scratch[band * 2 * stored + c], square += scratch[(band * 2 + 1) * stored + c];
  const double mean = sum / cells, variance = square / cells - mean * mean, rstd = 1 / sqrt((variance > 0 ? variance : 0) + eps);
  scale[c] = static_cast<float>(rstd);
  shift[c] = static_cast<float>(-mean * rstd);
}

// ---- a thread a quad of channels of a cell ----

__device__ __forceinline__ Quad load_term(const FrameTerm& t, int64_t at, int channel) {
  Quad v = load_aligned_quad(t.frame + at);
  if (t.scale == nullptr) return v;
  const Quad scale = load_quad(t.scale + channel, 4, false), shift = load_quad(t.shift + channel, 4, false);
  MS_UNROLL
  for (int i = 0; i < 4; ++i) v.v[i] = fmaf(v.v[i], scale.v[i], shift.v[i]);
  return v;
}

// out may be either input.
__global__ void __launch_bounds__(kRowThreads) frame_relu_kernel(float* out, FrameLayout l, FrameTerm x, FrameTerm residual, FrameRows r) {
  const unsigned unit = r.unit();
  if (unit >= r.units) return;
  const int64_t at = l.cell(r.row(), 0) + int64_t{4} * unit;
  const int channel = static_cast<int>(unit % static_cast<unsigned>(l.stored() / 4)) * 4;
  Quad v = load_term(x, at, channel);
  const Quad added = residual.frame != nullptr ? load_term(residual, at, channel) : Quad();
  MS_UNROLL
  for (int i = 0; i < 4; ++i) v.v[i] = residual.frame != nullptr ? relu(relu(v.v[i]) + added.v[i]) : relu(v.v[i]);
  store_aligned_quad(out + at, v);
}

__global__ void __launch_bounds__(kRowThreads) frame_pool_kernel(float* out, FrameLayout o, const float* in, FrameLayout l, FrameRows r) {
  const unsigned quads = static_cast<unsigned>(o.stored() / 4), unit = r.unit();
  if (unit >= r.units) return;
  const unsigned x = unit / quads, channel = unit % quads * 4;
  const float *above = in + l.cell(2 * r.row(), int64_t{2} * x) + channel, *below = above + l.row();
  const Quad a = load_aligned_quad(above), b = load_aligned_quad(above + l.stored()), c = load_aligned_quad(below), d = load_aligned_quad(below + l.stored());
  Quad mean;
  MS_UNROLL
  for (int i = 0; i < 4; ++i) mean.v[i] = ((a.v[i] + b.v[i]) + (c.v[i] + d.v[i])) * 0.25f;
  store_aligned_quad(out + o.cell(r.row(), x) + channel, mean);
}

__global__ void __launch_bounds__(kRowThreads) gru_reset_kernel(float* gates, FrameLayout g, float* reset, const float* h, FrameLayout l, FrameRows r) {
  const unsigned quads = static_cast<unsigned>(l.stored() / 4), unit = r.unit();
  if (unit >= r.units) return;
  const unsigned x = unit / quads, channel = unit % quads * 4;
  float* update = gates + g.cell(r.row(), x) + channel;
  const int64_t at = l.cell(r.row(), x) + channel;
  Quad z = load_aligned_quad(update), v = load_aligned_quad(update + l.stored());
  const Quad state = load_aligned_quad(h + at);
  MS_UNROLL
  for (int i = 0; i < 4; ++i) z.v[i] = sigmoid(z.v[i]), v.v[i] = sigmoid(v.v[i]) * state.v[i];
  store_aligned_quad(update, z);
  store_aligned_quad(reset + at, v);
}

__global__ void __launch_bounds__(kRowThreads) gru_update_kernel(float* h, FrameLayout l, const float* gates, FrameLayout g, const float* q, FrameLayout ql,
                                                                 FrameRows r) {
  const unsigned quads = static_cast<unsigned>(l.stored() / 4), unit = r.unit();
  if (unit >= r.units) return;
  const unsigned x = unit / quads, channel = unit % quads * 4;
  float* to = h + l.cell(r.row(), x) + channel;
  Quad v = load_aligned_quad(q + ql.cell(r.row(), x) + channel);
  MS_UNROLL
  for (int i = 0; i < 4; ++i) v.v[i] = tanhf(v.v[i]);
  if (gates != nullptr) {
    const Quad z = load_aligned_quad(gates + g.cell(r.row(), x) + channel), before = load_aligned_quad(to);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) v.v[i] = fmaf(z.v[i], v.v[i], (1 - z.v[i]) * before.v[i]);
  }
  store_aligned_quad(to, v);
}

// ---- a block a row: what its cells see of their neighbours is there when all were written ----

__global__ void __launch_bounds__(kRowThreads) flow_advance_kernel(FlowStep s) {
  const FrameLayout& l = s.rows_layout;
  const int64_t y = blockIdx.x;
  const int width = static_cast<int>(l.width), channels = static_cast<int>(s.channels), taps = static_cast<int>(s.taps);
  float* flow = s.flow + y * l.width * s.pitch;
  for (int i = static_cast<int>(threadIdx.x); i < width * channels; i += kRowThreads) {
    const int x = i / channels, c = i % channels;
    float v = flow[x * s.pitch + c];
    if (s.delta != nullptr) {
      v += s.delta[s.delta_layout.cell(y, x) + c];
      flow[x * s.pitch + c] = v;
    }
    if (s.beside != nullptr) s.beside[s.beside_layout.cell(y, x) + s.first + c] = v;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < width * taps * channels; i += kRowThreads) {
    const int x = i / (taps * channels), k = i % (taps * channels), from = x + k / channels - taps / 2;
    s.rows[l.cell(y, x) + k] = from >= 0 && from < width ? flow[from * s.pitch + k % channels] : 0.0f;
  }
}

}  // namespace

namespace cuda {

void picture_frame(Stream& stream, float* frame, FrameLayout l, PictureCells p) {
  MS_CHECK(l.dtype == DType::kF32 && l.channels == 3 * p.block * p.block);
  const FrameRows r(l.height, l.width * l.channels);
  if (!r.empty()) prim::launch(picture_frame_kernel, r.grid, dim3(kRowThreads), 0, stream, frame, l, p, r);
}

void instance_norm_scale(Stream& stream, float* scale, float* shift, double* scratch, const float* frame, FrameLayout l, float eps) {
  const int64_t stored = l.stored();
  if (stored == 0) return;
  prim::launch(frame_moments_kernel, dim3(kNormBands, static_cast<unsigned>(stored / 16)), dim3(kNormThreads), kNormWarps * sizeof(Moments), stream, scratch,
               frame, l);
  prim::launch(norm_scale_kernel, dim3(static_cast<unsigned>((stored + 127) / 128)), dim3(128), 0, stream, scale, shift, scratch, stored,
               static_cast<double>(l.height * l.width), static_cast<double>(eps));
}

void frame_relu(Stream& stream, float* out, FrameLayout l, FrameTerm x, FrameTerm residual) {
  const FrameRows r = quad_rows(l);
  if (!r.empty()) prim::launch(frame_relu_kernel, r.grid, dim3(kRowThreads), 0, stream, out, l, x, residual, r);
}

void frame_pool(Stream& stream, float* out, FrameLayout o, const float* in, FrameLayout i) {
  MS_CHECK(o.height == i.height / 2 && o.width == i.width / 2 && o.stored() == i.stored());
  const FrameRows r = quad_rows(o);
  if (!r.empty()) prim::launch(frame_pool_kernel, r.grid, dim3(kRowThreads), 0, stream, out, o, in, i, r);
}

void flow_advance(Stream& stream, FlowStep s) {
  const FrameLayout& l = s.rows_layout;
  MS_CHECK(l.channels == s.taps * s.channels);
  if (l.height * l.width == 0) return;
  count32(l.width * l.channels + kRowThreads, "values of a row");
  prim::launch(flow_advance_kernel, dim3(count32(l.height, "rows")), dim3(kRowThreads), 0, stream, s);
}

void gru_reset(Stream& stream, float* gates, FrameLayout g, float* reset, const float* h, FrameLayout l) {
  MS_CHECK(g.stored() == 2 * l.stored());
  const FrameRows r = quad_rows(l);
  if (!r.empty()) prim::launch(gru_reset_kernel, r.grid, dim3(kRowThreads), 0, stream, gates, g, reset, h, l, r);
}

void gru_update(Stream& stream, float* h, FrameLayout l, const float* gates, FrameLayout g, const float* q, FrameLayout ql) {
  MS_CHECK(ql.stored() == l.stored() && (!gates || g.stored() == 2 * l.stored()));
  const FrameRows r = quad_rows(l);
  if (!r.empty()) prim::launch(gru_update_kernel, r.grid, dim3(kRowThreads), 0, stream, h, l, gates, g, q, ql, r);
}

}  // namespace cuda
}  // namespace megaslide
