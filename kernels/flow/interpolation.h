// What networks that interpolate frames along flows do besides (spec vbench-networks.md §3.2, §3.3). Frames are fp32; flows
// are frames as well: vectors x, y side by side in their channels, in cells of their own frame. `first_row`: row r of `out`
// stands for row first_row + r, so that rows may be computed in strips.
#pragma once
#include <cstdint>

#include "kernels/conv3d/frame.h"
#include "kernels/flow/flow.h"
#include "kernels/kernel.h"

namespace megaslide {

// out[r, x, to + c] (+)= in[first_row + r, x, from + c] for c below count.
struct ChannelMove {
  int64_t to = 0, from = 0, count = 0, first_row = 0;
  bool add = false;
};
using FrameChannels = void(Stream&, float* out, FrameLayout out_layout, const float* in, FrameLayout in_layout, ChannelMove move);

// out (+)= factor · in resized by up/down, one of which is 1: bilinear, half-pixel positions (x + ½)·down/up − ½, not below
// 0, two taps an axis, no antialiasing. Channels as stored.
struct FrameScaling {
  int64_t up = 1, down = 1;
  float factor = 1;
  bool add = false;
  int64_t first_row = 0;
};
using FrameResize = void(Stream&, float* out, FrameLayout out_layout, const float* in, FrameLayout in_layout, FrameScaling scaling);

// out[r, x, to + c] = channel c of `in` at (first_row + r, x) + the vector at `from` of the flow: bilinear, positions clamped
// to the frame. The flow has the rows of `in`.
struct WarpPlace {
  int64_t to = 0, from = 0, first_row = 0;
};
using FrameWarp = void(Stream&, float* out, FrameLayout out_layout, const float* in, FrameLayout in_layout, const float* flow, FrameLayout flow_layout,
                       WarpPlace place);

// Candidates of a frame between two pictures of one size (block, scale and shift of the pictures are not read), values of
// 0 … 1. `decoded`, 8·count channels: flow0 (2·count), flow1 (2·count), mask (count), residual (3·count); `base`: vectors
// for flow0, then flow1, which join each of them; both with the rows of `out`. For candidate k
//   out[r, x, 3k + c] = σ(mask_k)·first(p + base0 + flow0_k) + (1 − σ(mask_k))·second(p + base1 + flow1_k) + residual_k,c
// with pictures bilinear, positions clamped to the padded picture of height × width.
struct CandidateBlend {
  PictureCells first, second;
  int64_t height = 0, width = 0;
  const float* decoded = nullptr;
  FrameLayout decoded_layout;
  const float* base = nullptr;
  FrameLayout base_layout;
  int64_t count = 3;
  int64_t first_row = 0;
};
using BlendCandidates = void(Stream&, float* out, FrameLayout out_layout, CandidateBlend blend);

// Rows of a picture (3,height,width): clamp(mean of the candidates + correction, 0, 1). Row r of the picture, for rows
// [first, first + rows), is row r − first_row of the frames.
struct PictureRows {
  int64_t height = 0, width = 0;
  int64_t first = 0, rows = 0, first_row = 0;
  int64_t count = 3;
};
using PredictRows = void(Stream&, float* picture, const float* candidates, FrameLayout candidates_layout, const float* correction,
                         FrameLayout correction_layout, PictureRows rows);

namespace cpu {
FrameChannels frame_channels;
FrameResize frame_resize;
FrameWarp frame_warp;
BlendCandidates blend_candidates;
PredictRows predict_rows;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL FrameChannels frame_channels;
MS_OPTIONAL FrameResize frame_resize;
MS_OPTIONAL FrameWarp frame_warp;
MS_OPTIONAL BlendCandidates blend_candidates;
MS_OPTIONAL PredictRows predict_rows;
}  // namespace cuda

// The plain twins: fp64 inside, one value after the other.
namespace reference {
void frame_resize(float* out, const FrameLayout& out_layout, const float* in, const FrameLayout& l, const FrameScaling& scaling);
void frame_warp(float* out, const FrameLayout& out_layout, const float* in, const FrameLayout& l, const float* flow, const FrameLayout& flow_layout,
                const WarpPlace& place);
void blend_candidates(float* out, const FrameLayout& out_layout, const CandidateBlend& blend);
}  // namespace reference

inline Cost frame_channels_cost(float*, FrameLayout o, const float*, FrameLayout, ChannelMove m) {
  return {KernelClass::kVector, 0, 8.0 * static_cast<double>(o.height * o.width * m.count)};
}
inline Cost frame_resize_cost(float*, FrameLayout o, const float*, FrameLayout i, FrameScaling) {
  return {KernelClass::kVector, 0, static_cast<double>(o.bytes() + i.bytes())};
}
inline Cost frame_warp_cost(float*, FrameLayout o, const float*, FrameLayout i, const float*, FrameLayout, WarpPlace) {
  return {KernelClass::kVector, 0, 8.0 * static_cast<double>(o.height * o.width * i.channels)};
}
inline Cost blend_candidates_cost(float*, FrameLayout o, CandidateBlend b) {
  return {KernelClass::kVector, 0, static_cast<double>(o.bytes() + b.decoded_layout.bytes())};
}
inline Cost predict_rows_cost(float*, const float*, FrameLayout l, const float*, FrameLayout, PictureRows) {
  return {KernelClass::kVector, 0, 2.0 * static_cast<double>(l.bytes())};
}

inline constexpr Kernel<FrameChannels> frame_channels{"frame_channels", &cpu::frame_channels, &cuda::frame_channels, &frame_channels_cost};
inline constexpr Kernel<FrameResize> frame_resize{"frame_resize", &cpu::frame_resize, &cuda::frame_resize, &frame_resize_cost};
inline constexpr Kernel<FrameWarp> frame_warp{"frame_warp", &cpu::frame_warp, &cuda::frame_warp, &frame_warp_cost};
inline constexpr Kernel<BlendCandidates> blend_candidates{"blend_candidates", &cpu::blend_candidates, &cuda::blend_candidates, &blend_candidates_cost};
inline constexpr Kernel<PredictRows> predict_rows{"predict_rows", &cpu::predict_rows, &cuda::predict_rows, &predict_rows_cost};

}  // namespace megaslide
