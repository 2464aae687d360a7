// Resizing, warping and blending of frames.
#include "kernels/flow/interpolation.h"

#include <cmath>

#include "kernels/flow/frame_rows.cuh"

namespace megaslide {
namespace {

// Two neighbours of a position, and the weight of the second.
struct Taps {
  int a, b;
  float weight;
  // Position p in [0, n − 1] once clamped; NaN counts as 0.
  __device__ Taps(float p, int64_t n) {
    const int last = static_cast<int>(n) - 1;
    const float at = p > 0 ? fminf(p, static_cast<float>(last)) : 0.0f;
    a = static_cast<int>(at);
    b = a < last ? a + 1 : last;
    weight = at - static_cast<float>(a);
  }
};

// The four cells of a position in a frame.
struct Corners {
  const float *aa, *ab, *ba, *bb;
  float y, x;
  __device__ Corners(const float* in, const FrameLayout& l, const Taps& v, const Taps& h)
      : aa(in + l.cell(v.a, h.a)), ab(in + l.cell(v.a, h.b)), ba(in + l.cell(v.b, h.a)), bb(in + l.cell(v.b, h.b)), y(v.weight), x(h.weight) {}
  // Channels [c, c + 4).
  __device__ __forceinline__ Quad at(int c) const {
    const Quad q = load_aligned_quad(aa + c), r = load_aligned_quad(ab + c), s = load_aligned_quad(ba + c), t = load_aligned_quad(bb + c);
    Quad out;
    MS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float top = fmaf(x, r.v[i], (1 - x) * q.v[i]), bottom = fmaf(x, t.v[i], (1 - x) * s.v[i]);
      out.v[i] = fmaf(y, bottom, (1 - y) * top);
    }
    return out;
  }
};

// A thread a channel: cells begin anywhere in theirs.
__global__ void __launch_bounds__(kRowThreads) frame_channels_kernel(float* out, FrameLayout o, const float* in, FrameLayout l, ChannelMove m, FrameRows r) {
  const unsigned count = static_cast<unsigned>(m.count), unit = r.unit();
  if (unit >= r.units) return;
  const unsigned x = unit / count, c = unit % count;
  float* to = out + o.cell(r.row(), x) + m.to + c;
  const float v = in[l.cell(m.first_row + r.row(), x) + m.from + c];
  *to = m.add ? *to + v : v;
}

__global__ void __launch_bounds__(kRowThreads) frame_resize_kernel(float* out, FrameLayout o, const float* in, FrameLayout l, FrameScaling s, FrameRows r) {
  const unsigned quads = static_cast<unsigned>(o.stored() / 4), unit = r.unit();
  if (unit >= r.units) return;
  const int x = static_cast<int>(unit / quads), channel = static_cast<int>(unit % quads) * 4;
  const float ratio = static_cast<float>(s.down) / static_cast<float>(s.up);  // a power of 2
  const auto taps = [&](int64_t at, int64_t n) { return Taps((static_cast<float>(at) + 0.5f) * ratio - 0.5f, n); };
  Quad v = Corners(in, l, taps(s.first_row + r.row(), l.height), taps(x, l.width)).at(channel);
  float* to = out + o.cell(r.row(), x) + channel;
  const Quad before = s.add ? load_aligned_quad(to) : Quad();
  MS_UNROLL
  for (int i = 0; i < 4; ++i) v.v[i] = s.add ? before.v[i] + s.factor * v.v[i] : s.factor * v.v[i];
  store_aligned_quad(to, v);
}

// A thread a quad of the channels that exist.
__global__ void __launch_bounds__(kRowThreads) frame_warp_kernel(float* out, FrameLayout o, const float* in, FrameLayout l, const float* flow, FrameLayout f,
                                                                 WarpPlace p, FrameRows r) {
  const unsigned quads = static_cast<unsigned>((l.channels + 3) / 4), unit = r.unit();
  if (unit >= r.units) return;
  const int x = static_cast<int>(unit / quads), channel = static_cast<int>(unit % quads) * 4;
  const int64_t row = p.first_row + r.row();
  const float* v = flow + f.cell(row, x) + p.from;
  const Corners k(in, l, Taps(static_cast<float>(row) + v[1], l.height), Taps(static_cast<float>(x) + v[0], l.width));
  store_quad(out + o.cell(r.row(), x) + p.to + channel, k.at(channel), static_cast<int>(l.channels) - channel, p.to % 4 == 0);
}

// Where a clamped position of the padded picture lies in the stored one.
struct PixelTaps {
  int64_t a, b;
  float weight;
  __device__ PixelTaps(float p, int64_t padded, int64_t before, int64_t n) {
    const Taps t(p, padded);
    const auto stored = [&](int64_t i) { return i < before ? int64_t{0} : i - before < n ? i - before : n - 1; };
    a = stored(t.a), b = stored(t.b), weight = t.weight;
  }
};

// The three values at a position, 0 … 255.
__device__ __forceinline__ void sample(float (&values)[3], const PictureCells& p, float y, float x, int64_t height, int64_t width) {
  const PixelTaps v(y, height, p.top, p.height), h(x, width, p.left, p.width);
  const uint8_t *top = p.rgb + 3 * v.a * p.width, *bottom = p.rgb + 3 * v.b * p.width;
  MS_UNROLL
  for (int c = 0; c < 3; ++c) {
    const auto at = [&](const uint8_t* row, int64_t i) { return static_cast<float>(row[3 * i + c]); };
    const float above = (1 - h.weight) * at(top, h.a) + h.weight * at(top, h.b), below = (1 - h.weight) * at(bottom, h.a) + h.weight * at(bottom, h.b);
    values[c] = (1 - v.weight) * above + v.weight * below;
  }
}

// A thread a candidate of a cell.
__global__ void __launch_bounds__(kRowThreads) blend_candidates_kernel(float* out, FrameLayout o, CandidateBlend b, FrameRows r) {
  const unsigned count = static_cast<unsigned>(b.count), unit = r.unit();
  if (unit >= r.units) return;
  const int x = static_cast<int>(unit / count), k = static_cast<int>(unit % count), n = static_cast<int>(count);
  const float *decoded = b.decoded + b.decoded_layout.cell(r.row(), x), *base = b.base + b.base_layout.cell(r.row(), x);
  const float *flow0 = decoded + 2 * k, *flow1 = decoded + 2 * (n + k), *residual = decoded + 5 * n + 3 * k;
  const float mask = 1 / (1 + expf(-decoded[4 * n + k])), column = static_cast<float>(x), row = static_cast<float>(b.first_row + r.row());
  float first[3], second[3];
  sample(first, b.first, row + (base[1] + flow0[1]), column + (base[0] + flow0[0]), b.height, b.width);
  sample(second, b.second, row + (base[3] + flow1[1]), column + (base[2] + flow1[0]), b.height, b.width);
  float* to = out + o.cell(r.row(), x) + 3 * k;
  MS_UNROLL
  for (int c = 0; c < 3; ++c) to[c] = (mask * first[c] + (1 - mask) * second[c]) * (1.0f / 255) + residual[c];
}

// A thread a pixel. NaN stays: whoever asks for bytes refuses it.
__global__ void __launch_bounds__(kRowThreads) predict_rows_kernel(float* picture, const float* candidates, FrameLayout l, const float* correction,
                                                                   FrameLayout cl, PictureRows p, FrameRows r) {
  const unsigned x = r.unit();
  if (x >= r.units) return;
  const int64_t y = p.first + r.row(), row = y - p.first_row;
  MS_UNROLL
  for (int c = 0; c < 3; ++c) {
    const float* from = candidates + l.cell(row, x) + c;
    float sum = 0;
    for (int64_t k = 0; k < p.count; ++k) sum += from[3 * k];
    const float v = sum / static_cast<float>(p.count) + correction[cl.cell(row, x) + c];
    picture[(c * p.height + y) * p.width + x] = v < 0 ? 0 : v > 1 ? 1 : v;
  }
}

}  // namespace

namespace cuda {

void frame_channels(Stream& stream, float* out, FrameLayout o, const float* in, FrameLayout i, ChannelMove m) {
  MS_CHECK(m.to + m.count <= o.stored() && m.from + m.count <= i.stored() && m.first_row + o.height <= i.height && o.width == i.width);
  const FrameRows r(o.height, o.width * m.count);
  if (!r.empty()) prim::launch(frame_channels_kernel, r.grid, dim3(kRowThreads), 0, stream, out, o, in, i, m, r);
}

void frame_resize(Stream& stream, float* out, FrameLayout o, const float* in, FrameLayout i, FrameScaling s) {
  MS_CHECK(o.stored() == i.stored() && o.width == i.width * s.up / s.down && s.first_row + o.height <= i.height * s.up / s.down);
  const FrameRows r = quad_rows(o);
  if (!r.empty()) prim::launch(frame_resize_kernel, r.grid, dim3(kRowThreads), 0, stream, out, o, in, i, s, r);
}

void frame_warp(Stream& stream, float* out, FrameLayout o, const float* in, FrameLayout i, const float* flow, FrameLayout f, WarpPlace p) {
  MS_CHECK(p.to + i.channels <= o.stored() && p.first_row + o.height <= i.height && o.width == i.width && f.height == i.height && f.width == i.width);
  const FrameRows r(o.height, o.width * ((i.channels + 3) / 4));
  if (!r.empty()) prim::launch(frame_warp_kernel, r.grid, dim3(kRowThreads), 0, stream, out, o, in, i, flow, f, p, r);
}

void blend_candidates(Stream& stream, float* out, FrameLayout o, CandidateBlend b) {
  MS_CHECK(o.channels == 3 * b.count && b.decoded_layout.channels == 8 * b.count && o.width == b.width && b.first_row + o.height <= b.height);
  const FrameRows r(o.height, o.width * b.count);
  if (!r.empty()) prim::launch(blend_candidates_kernel, r.grid, dim3(kRowThreads), 0, stream, out, o, b, r);
}

void predict_rows(Stream& stream, float* picture, const float* candidates, FrameLayout l, const float* correction, FrameLayout cl, PictureRows p) {
  const FrameRows r(p.rows, p.width);
  if (!r.empty()) prim::launch(predict_rows_kernel, r.grid, dim3(kRowThreads), 0, stream, picture, candidates, l, correction, cl, p, r);
}

}  // namespace cuda
}  // namespace megaslide
