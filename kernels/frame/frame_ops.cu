#include "kernels/frame/frame_ops.h"

#include "kernels/elements.cuh"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

// A thread a channel of a cell, channels innermost.
struct FrameElement {
  int64_t y, x, channel;
  __device__ FrameElement(int64_t i, int64_t width, int64_t channels)
      : y(i / channels / width), x(i / channels % width), channel(i % channels) {}
};

// Element of the planes that channel `c` of cell (y,x) is.
__device__ __forceinline__ int64_t plane_element(const FramePlanes& p, const FrameElement& e) {
  const int64_t plane = e.channel / (p.patch * p.patch), r = e.channel / p.patch % p.patch, q = e.channel % p.patch;
  return plane * p.plane + (e.y * p.patch + q) * p.width + e.x * p.patch + r;
}

template <class T>
__global__ void __launch_bounds__(256) frame_from_planes_kernel(T* frame, FrameLayout l, const float* planes, FramePlanes p,
                                                                const float* scale, const float* shift) {
  const int64_t i = element_index();
  if (i >= l.height * l.width * p.count) return;
  const FrameElement e(i, l.width, p.count);
  const int64_t plane = e.channel / (p.patch * p.patch);
  float v = planes[plane_element(p, e)];
  if (scale != nullptr) v = v * scale[plane] + shift[plane];
  store_one(frame + l.cell(e.y, e.x) + p.first + e.channel, v);
}

template <class T>
__global__ void __launch_bounds__(256) frame_to_planes_kernel(float* planes, const T* frame, FrameLayout l, FramePlanes p) {
  const int64_t i = element_index();
  if (i >= l.height * l.width * p.count) return;
  const FrameElement e(i, l.width, p.count);
  planes[plane_element(p, e)] = prim::widen(frame[l.cell(e.y, e.x) + p.first + e.channel]);
}

struct Resampling {
  FrameLayout out, in;
  int64_t ft, fs, a;
};

template <class T>
__global__ void __launch_bounds__(256) frame_average_kernel(T* out, const T* in, Resampling s, bool add) {
  const int64_t i = element_index();
  if (i >= s.out.height * s.out.width * s.out.channels) return;
  const FrameElement e(i, s.out.width, s.out.channels);
  const int64_t parts = s.ft * s.fs * s.fs, group = s.in.channels * parts / s.out.channels;
  const T* from = in + s.in.cell(s.fs * e.y, s.fs * e.x);
  float sum = 0;
  for (int64_t f = e.channel * group; f < (e.channel + 1) * group; ++f)
    if (f / (s.fs * s.fs) % s.ft == s.a) sum += prim::widen(from[f / parts + f / s.fs % s.fs * s.in.row() + f % s.fs * s.in.stored()]);
  T* to = out + s.out.cell(e.y, e.x) + e.channel;
  const float share = sum * (1.0f / static_cast<float>(group));
  store_one(to, add ? prim::widen(*to) + share : share);
}

template <class T>
__global__ void __launch_bounds__(256) frame_repeat_kernel(T* out, const T* in, Resampling s) {
  const int64_t i = element_index();
  if (i >= s.out.height * s.out.width * s.out.channels) return;
  const FrameElement e(i, s.out.width, s.out.channels);
  const int64_t repeats = s.out.channels * s.ft * s.fs * s.fs / s.in.channels;
  const int64_t channel = (((e.channel * s.ft + s.a) * s.fs + e.y % s.fs) * s.fs + e.x % s.fs) / repeats;
  out[s.out.cell(e.y, e.x) + e.channel] = in[s.in.cell(e.y / s.fs, e.x / s.fs) + channel];
}

}  // namespace

namespace cuda {

void frame_from_planes(Stream& stream, void* frame, FrameLayout l, const float* planes, FramePlanes p, const float* scale,
                       const float* shift) {
  const int64_t n = l.height * l.width * p.count;
  if (n == 0) return;
  by_type(l.dtype, [&]<class T>(T*) {
    prim::launch(frame_from_planes_kernel<T>, element_grid(n), element_block(), 0, stream, static_cast<T*>(frame), l, planes, p, scale, shift);
  });
}

void frame_to_planes(Stream& stream, float* planes, const void* frame, FrameLayout l, FramePlanes p) {
  const int64_t n = l.height * l.width * p.count;
  if (n == 0) return;
  by_type(l.dtype, [&]<class T>(T*) {
    prim::launch(frame_to_planes_kernel<T>, element_grid(n), element_block(), 0, stream, planes, static_cast<const T*>(frame), l, p);
  });
}

void frame_average(Stream& stream, void* out, FrameLayout out_layout, const void* in, FrameLayout in_layout, int64_t ft, int64_t fs,
                   int64_t a, bool add) {
  const int64_t n = out_layout.height * out_layout.width * out_layout.channels;
  if (n == 0) return;
  by_type(out_layout.dtype, [&]<class T>(T*) {
    prim::launch(frame_average_kernel<T>, element_grid(n), element_block(), 0, stream, static_cast<T*>(out), static_cast<const T*>(in),
                 Resampling{out_layout, in_layout, ft, fs, a}, add);
  });
}

void frame_repeat(Stream& stream, void* out, FrameLayout out_layout, const void* in, FrameLayout in_layout, int64_t ft, int64_t fs,
                  int64_t a) {
  const int64_t n = out_layout.height * out_layout.width * out_layout.channels;
  if (n == 0) return;
  by_type(out_layout.dtype, [&]<class T>(T*) {
    prim::launch(frame_repeat_kernel<T>, element_grid(n), element_block(), 0, stream, static_cast<T*>(out), static_cast<const T*>(in),
                 Resampling{out_layout, in_layout, ft, fs, a});
  });
}

}  // namespace cuda
}  // namespace megaslide
