// Resizing, warping and blending of frames: rows on the pool's threads, channels in vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/flow/interpolation.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/flow/interpolation.h"
#include "kernels/simd-inl.h"

#include <algorithm>
#include <cmath>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

// Two neighbours of a position, and the weight of the second.
struct Taps {
  int64_t a, b;
  float weight;
};
// Position p in [0, n − 1] once clamped; NaN counts as 0.
HWY_INLINE Taps TapsAt(float p, int64_t n) {
  const float last = static_cast<float>(n - 1), at = p > 0 ? std::min(p, last) : 0.0f;
  const auto a = static_cast<int64_t>(at);
  return {a, std::min(a + 1, n - 1), at - static_cast<float>(a)};
}

// The four cells of a position in a frame.
struct Corners {
  const float *aa, *ab, *ba, *bb;
  float y, x;
};
HWY_INLINE Corners CornersAt(const float* in, const FrameLayout& l, const Taps& y, const Taps& x) {
  return {in + l.cell(y.a, x.a), in + l.cell(y.a, x.b), in + l.cell(y.b, x.a), in + l.cell(y.b, x.b), y.weight, x.weight};
}
template <class D>
HWY_INLINE hn::Vec<D> Bilinear(D d, const Corners& k, int64_t c) {
  const auto x1 = hn::Set(d, k.x), x0 = hn::Set(d, 1 - k.x);
  const auto top = hn::MulAdd(x1, hn::LoadU(d, k.ab + c), hn::Mul(x0, hn::LoadU(d, k.aa + c)));
  const auto bottom = hn::MulAdd(x1, hn::LoadU(d, k.bb + c), hn::Mul(x0, hn::LoadU(d, k.ba + c)));
  return hn::MulAdd(hn::Set(d, k.y), bottom, hn::Mul(hn::Set(d, 1 - k.y), top));
}

void ResizeRow(float* out, const FrameLayout& o, const float* in, const FrameLayout& i, const FrameScaling& s, int64_t r) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), stored = o.stored();
  const float ratio = static_cast<float>(s.down) / static_cast<float>(s.up);  // a power of 2
  const auto taps = [&](int64_t at, int64_t n) { return TapsAt((static_cast<float>(at) + 0.5f) * ratio - 0.5f, n); };
  const Taps y = taps(s.first_row + r, i.height);
  float* to = out + o.cell(r, 0);
  for (int64_t x = 0; x < o.width; ++x, to += stored) {
    const Corners k = CornersAt(in, i, y, taps(x, i.width));
    for (int64_t c = 0; c < stored; c += lanes) {
      const auto v = hn::Mul(hn::Set(d, s.factor), Bilinear(d, k, c));
      hn::StoreU(s.add ? hn::Add(hn::LoadU(d, to + c), v) : v, d, to + c);
    }
  }
}

void WarpRow(float* out, const FrameLayout& o, const float* in, const FrameLayout& i, const float* flow, const FrameLayout& f, const WarpPlace& p,
             int64_t r) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), channels = i.channels, row = p.first_row + r;
  for (int64_t x = 0; x < o.width; ++x) {
    const float* v = flow + f.cell(row, x) + p.from;
    const Corners k = CornersAt(in, i, TapsAt(static_cast<float>(row) + v[1], i.height), TapsAt(static_cast<float>(x) + v[0], i.width));
    float* to = out + o.cell(r, x) + p.to;
    int64_t c = 0;
    for (; c + lanes <= channels; c += lanes) hn::StoreU(Bilinear(d, k, c), d, to + c);
    for (; c < channels; ++c) hn::StoreU(Bilinear(TailTag(), k, c), TailTag(), to + c);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(ResizeRow);
HWY_EXPORT(WarpRow);

namespace {

// Where a clamped position of the padded picture lies in the stored one.
struct PixelTaps {
  int64_t a, b;
  float weight;
};
PixelTaps pixel_taps(float p, int64_t padded, int64_t before, int64_t n) {
  const float last = static_cast<float>(padded - 1), at = p > 0 ? std::min(p, last) : 0.0f;
  const auto a = static_cast<int64_t>(at);
  const auto stored = [&](int64_t i) { return std::clamp<int64_t>(std::min(i, padded - 1) - before, 0, n - 1); };
  return {stored(a), stored(a + 1), at - static_cast<float>(a)};
}

// The three values at a position, 0 … 255.
void sample(float (&values)[3], const PictureCells& p, float y, float x, int64_t height, int64_t width) {
  const PixelTaps v = pixel_taps(y, height, p.top, p.height), h = pixel_taps(x, width, p.left, p.width);
  const uint8_t *top = p.rgb + 3 * v.a * p.width, *bottom = p.rgb + 3 * v.b * p.width;
  for (int64_t c = 0; c < 3; ++c) {
    const auto at = [&](const uint8_t* row, int64_t i) { return static_cast<float>(row[3 * i + c]); };
    const float above = (1 - h.weight) * at(top, h.a) + h.weight * at(top, h.b);
    const float below = (1 - h.weight) * at(bottom, h.a) + h.weight * at(bottom, h.b);
    values[c] = (1 - v.weight) * above + v.weight * below;
  }
}

void blend_cell(float* out, const CandidateBlend& b, const float* decoded, const float* base, int64_t y, int64_t x) {
  const int64_t n = b.count;
  const auto column = static_cast<float>(x), row = static_cast<float>(y);
  for (int64_t k = 0; k < n; ++k) {
    const float *flow0 = decoded + 2 * k, *flow1 = decoded + 2 * (n + k), *residual = decoded + 5 * n + 3 * k;
    const float mask = 1 / (1 + std::exp(-decoded[4 * n + k]));
    float first[3], second[3];
    sample(first, b.first, row + (base[1] + flow0[1]), column + (base[0] + flow0[0]), b.height, b.width);
    sample(second, b.second, row + (base[3] + flow1[1]), column + (base[2] + flow1[0]), b.height, b.width);
    for (int64_t c = 0; c < 3; ++c) out[3 * k + c] = (mask * first[c] + (1 - mask) * second[c]) * (1.0f / 255) + residual[c];
  }
}

}  // namespace

namespace cpu {

void frame_channels(Stream& stream, float* out, FrameLayout o, const float* in, FrameLayout i, ChannelMove m) {
  MS_CHECK(m.to + m.count <= o.stored() && m.from + m.count <= i.stored() && m.first_row + o.height <= i.height && o.width == i.width);
  stream.parallel_for(o.height, 4, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y) {
      float* to = out + o.cell(y, 0) + m.to;
      const float* from = in + i.cell(m.first_row + y, 0) + m.from;
      for (int64_t x = 0; x < o.width; ++x, to += o.stored(), from += i.stored()) {
        if (!m.add) {
          std::memcpy(to, from, static_cast<size_t>(m.count) * sizeof(float));
          continue;
        }
        for (int64_t c = 0; c < m.count; ++c) to[c] += from[c];
      }
    }
  });
}

void frame_resize(Stream& stream, float* out, FrameLayout o, const float* in, FrameLayout i, FrameScaling s) {
  MS_CHECK(o.stored() == i.stored() && o.width == i.width * s.up / s.down && s.first_row + o.height <= i.height * s.up / s.down);
  stream.parallel_for(o.height, 4, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y) HWY_DYNAMIC_DISPATCH(ResizeRow)(out, o, in, i, s, y);
  });
}

void frame_warp(Stream& stream, float* out, FrameLayout o, const float* in, FrameLayout i, const float* flow, FrameLayout f, WarpPlace p) {
  MS_CHECK(p.to + i.channels <= o.stored() && p.first_row + o.height <= i.height && o.width == i.width && f.height == i.height && f.width == i.width);
  stream.parallel_for(o.height, 4, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y) HWY_DYNAMIC_DISPATCH(WarpRow)(out, o, in, i, flow, f, p, y);
  });
}

void blend_candidates(Stream& stream, float* out, FrameLayout o, CandidateBlend b) {
  MS_CHECK(o.channels == 3 * b.count && b.decoded_layout.channels == 8 * b.count && o.width == b.width && b.first_row + o.height <= b.height);
  stream.parallel_for(o.height, 4, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y)
      for (int64_t x = 0; x < o.width; ++x)
        blend_cell(out + o.cell(y, x), b, b.decoded + b.decoded_layout.cell(y, x), b.base + b.base_layout.cell(y, x), b.first_row + y, x);
  });
}

void predict_rows(Stream& stream, float* picture, const float* candidates, FrameLayout l, const float* correction, FrameLayout cl, PictureRows p) {
  stream.parallel_for(p.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t y = p.first + i, row = y - p.first_row;
      for (int64_t x = 0; x < p.width; ++x)
        for (int64_t c = 0; c < 3; ++c) {
          const float* from = candidates + l.cell(row, x) + c;
          float sum = 0;
          for (int64_t k = 0; k < p.count; ++k) sum += from[3 * k];
          const float v = sum / static_cast<float>(p.count) + correction[cl.cell(row, x) + c];
          // NaN stays: whoever asks for bytes refuses it.
          picture[(c * p.height + y) * p.width + x] = v < 0 ? 0 : v > 1 ? 1 : v;
        }
    }
  });
}

}  // namespace cpu
}  // namespace megaslide
#endif
