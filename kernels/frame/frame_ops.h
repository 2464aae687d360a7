// What a video autoencoder does to frames (kernels/conv3d/frame.h) besides convolutions (spec wan.md C.2, C.7).
#pragma once
#include <cstdint>

#include "kernels/conv3d/frame.h"
#include "kernels/kernel.h"

namespace megaslide {

// Planes of fp32 values, as tensors [C, T, H, W] hold one frame of T, and the channels of a frame that they become:
// channel (c·p + r)·p + q is pixel (p·y + q, p·x + r) of plane c, p = patch.
struct FramePlanes {
  int64_t plane = 0;  // elements from one channel's plane to the next
  int64_t width = 0;  // elements from one row to the next
  int64_t patch = 1;
  int64_t first = 0, count = 0;  // channels of the frame
};
// frame[first + c] = planes[c] · scale[c] + shift[c]; scale and shift (of planes) may be nullptr together.
using FrameFromPlanes = void(Stream&, void* frame, FrameLayout layout, const float* planes, FramePlanes p,
                             const float* scale, const float* shift);
using FrameToPlanes = void(Stream&, float* planes, const void* frame, FrameLayout layout, FramePlanes p);

// Softmax(q·kᵀ/√C)·v over all cells of a frame, one head. qkv: fp32, border 0, channels q, k, v (C each); out: border
// 0. fp32 inside.
using FrameAttention = void(Stream&, void* out, FrameLayout layout, const float* qkv, FrameLayout qkv_layout);

// One input frame's share of the mean of C.7's AvgDown3D: of the group of channels, time steps and cells that an output
// averages, those with time step `a`. out = share, or += with `add`. Factors are 1 or 2; spatial: `fs`, temporal: `ft`.
using FrameAverage = void(Stream&, void* out, FrameLayout out_layout, const void* in, FrameLayout in_layout, int64_t ft,
                          int64_t fs, int64_t a, bool add);
// Output frame `a` of C.7's DupUp3D of one input frame.
using FrameRepeat = void(Stream&, void* out, FrameLayout out_layout, const void* in, FrameLayout in_layout, int64_t ft,
                         int64_t fs, int64_t a);

namespace cpu {
FrameFromPlanes frame_from_planes;
FrameToPlanes frame_to_planes;
FrameAttention frame_attention;
FrameAverage frame_average;
FrameRepeat frame_repeat;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL FrameFromPlanes frame_from_planes;
MS_OPTIONAL FrameToPlanes frame_to_planes;
MS_OPTIONAL FrameAttention frame_attention;
MS_OPTIONAL FrameAverage frame_average;
MS_OPTIONAL FrameRepeat frame_repeat;
}  // namespace cuda

inline Cost frame_pass_cost(double bytes) { return {KernelClass::kVector, 0, bytes}; }
inline Cost frame_from_planes_cost(void*, FrameLayout l, const float*, FramePlanes, const float*, const float*) {
  return frame_pass_cost(2.0 * static_cast<double>(l.bytes()));
}
inline Cost frame_to_planes_cost(float*, const void*, FrameLayout l, FramePlanes) {
  return frame_pass_cost(2.0 * static_cast<double>(l.bytes()));
}
inline Cost frame_attention_cost(void*, FrameLayout l, const float*, FrameLayout q) {
  const auto n = static_cast<double>(l.height * l.width);
  return {KernelClass::kAttention, 4 * n * n * static_cast<double>(l.channels),
          static_cast<double>(l.bytes() + q.bytes())};
}
inline Cost frame_average_cost(void*, FrameLayout o, const void*, FrameLayout i, int64_t, int64_t, int64_t, bool) {
  return frame_pass_cost(static_cast<double>(o.bytes() + i.bytes()));
}
inline Cost frame_repeat_cost(void*, FrameLayout o, const void*, FrameLayout i, int64_t, int64_t, int64_t) {
  return frame_pass_cost(static_cast<double>(o.bytes() + i.bytes()));
}

inline constexpr Kernel<FrameFromPlanes> frame_from_planes{"frame_from_planes", &cpu::frame_from_planes, &cuda::frame_from_planes,
                                                           &frame_from_planes_cost};
inline constexpr Kernel<FrameToPlanes> frame_to_planes{"frame_to_planes", &cpu::frame_to_planes, &cuda::frame_to_planes,
                                                       &frame_to_planes_cost};
inline constexpr Kernel<FrameAttention> frame_attention{"frame_attention", &cpu::frame_attention, &cuda::frame_attention,
                                                        &frame_attention_cost};
inline constexpr Kernel<FrameAverage> frame_average{"frame_average", &cpu::frame_average, &cuda::frame_average, &frame_average_cost};
inline constexpr Kernel<FrameRepeat> frame_repeat{"frame_repeat", &cpu::frame_repeat, &cuda::frame_repeat, &frame_repeat_cost};

}  // namespace megaslide
