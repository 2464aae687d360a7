// What networks of optical flow do to frames (kernels/conv3d/frame.h, fp32) besides convolutions (spec vbench-networks.md
// §3.2, §3.3, §4). A flow lies row by row without a border, x before y, in cells: as a tensor (H,W,C) or a frame of border 0.
// Channels of a frame beyond its `channels` stay zero wherever its inputs have zeros there.
#pragma once
#include <cstdint>

#include "kernels/conv3d/frame.h"
#include "kernels/kernel.h"

namespace megaslide {

// Pixels of a picture as cells of block² of them, so that a convolution of stride 2 is one of stride 1 over blocks:
//   frame[y,x,(c·block + r)·block + q] = rgb[clamp(block·y + q − top), clamp(block·x + r − left), c] · scale + shift
struct PictureCells {
  const uint8_t* rgb = nullptr;  // (height, width, 3)
  int64_t width = 0, height = 0;
  int64_t left = 0, top = 0;  // pixels repeated before the first
  int64_t block = 1;
  float scale = 1, shift = 0;
};
using PictureFrame = void(Stream&, float* frame, FrameLayout layout, PictureCells picture);

// Instance norm of a frame as x·scale + shift a channel: scale = 1/√(variance + eps), shift = −mean·scale, biased variance
// over all cells, sums in fp64 by bands of rows in order. scale, shift: stored() values; scratch: instance_norm_scratch.
using InstanceNormScale = void(Stream&, float* scale, float* shift, double* scratch, const float* frame, FrameLayout layout, float eps);
inline constexpr int64_t kNormBands = 64;
inline int64_t instance_norm_scratch(const FrameLayout& l) { return kNormBands * 2 * l.stored(); }

// A frame, or frame·scale + shift.
struct FrameTerm {
  const float* frame = nullptr;
  const float *scale = nullptr, *shift = nullptr;  // (stored), together or not at all
};
// out = ReLU(x), or ReLU(ReLU(x) + residual). All of one layout; out may be either input.
using FrameRelu = void(Stream&, float* out, FrameLayout layout, FrameTerm x, FrameTerm residual);

// Means of 2×2 cells; an odd last row or column is dropped.
using FramePool = void(Stream&, float* out, FrameLayout out_layout, const float* in, FrameLayout in_layout);

// Correlations of a frame with another at flow positions, never the volume of all pairs. For every cell p, level l and
// offsets i, j = 0 … 2r with centre c = (p + flow_scale·flow[p]) / 2^l:
//   out[p, first + l·(2r+1)² + i·(2r+1) + j] = scale · ⟨from[p], level_l at c + (i−r, j−r)⟩      (x slowest)
// bilinear, zeros outside. The offsets of a level share one fraction: (2r+2)² products.
inline constexpr int kFlowLevels = 4;
struct CorrelationLookup {
  const float* from = nullptr;
  FrameLayout from_layout;
  const float* levels[kFlowLevels] = {};  // as `from`, pooled l times
  FrameLayout level_layouts[kFlowLevels];
  const float* flow = nullptr;  // (H,W,flow_pitch), the vector at flow_first
  int64_t flow_pitch = 2, flow_first = 0;
  float flow_scale = 1, scale = 1;
  int64_t radius = 4;  // at most 6
  int64_t first = 0;
};
using CorrelationForward = void(Stream&, float* out, FrameLayout out_layout, CorrelationLookup lookup);

// flow += delta, then the flow as convolutions read it: in `rows` unrolled along x, so that a k×k convolution of few
// channels is one of k×1, rows[y,x, j·C + c] = flow[y, x + j − k/2, c] with zeros outside; and in `beside` from `first` on.
struct FlowStep {
  float* flow = nullptr;  // (H,W,pitch), of which `channels` are the flow
  int64_t channels = 2, pitch = 2;
  const float* delta = nullptr;  // a frame, or nullptr
  FrameLayout delta_layout;
  float* rows = nullptr;
  FrameLayout rows_layout;
  int64_t taps = 7;  // k
  float* beside = nullptr;  // may be nullptr
  FrameLayout beside_layout;
  int64_t first = 0;
};
using FlowAdvance = void(Stream&, FlowStep step);

// Gates of a convolutional GRU, C = h_layout.stored(). gates (2C channels, z before r): z = σ(z) in place,
// reset = σ(r) ⊙ h.
using GruReset = void(Stream&, float* gates, FrameLayout gates_layout, float* reset, const float* h, FrameLayout h_layout);
// h = (1 − z) ⊙ h + z ⊙ tanh(q), z as gru_reset left it; gates nullptr: h = tanh(q). q_layout has C stored channels.
using GruUpdate = void(Stream&, float* h, FrameLayout h_layout, const float* gates, FrameLayout gates_layout, const float* q, FrameLayout q_layout);

// out (2,8H,8W): output (8y+a, 8x+b) = 8·Σ_k softmax_k(logits[y,x, 64k + 8a + b])·flow of neighbour k of (y,x), where
// k = 3·(dy+1) + dx+1; neighbours outside count as zero. logits: 576 channels; flow (H,W,2).
using ConvexUpsample = void(Stream&, float* out, const float* logits, FrameLayout layout, const float* flow);

namespace cpu {
PictureFrame picture_frame;
InstanceNormScale instance_norm_scale;
FrameRelu frame_relu;
FramePool frame_pool;
CorrelationForward correlation_lookup;
FlowAdvance flow_advance;
GruReset gru_reset;
GruUpdate gru_update;
ConvexUpsample convex_upsample;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL PictureFrame picture_frame;
MS_OPTIONAL InstanceNormScale instance_norm_scale;
MS_OPTIONAL FrameRelu frame_relu;
MS_OPTIONAL FramePool frame_pool;
MS_OPTIONAL CorrelationForward correlation_lookup;
MS_OPTIONAL FlowAdvance flow_advance;
MS_OPTIONAL GruReset gru_reset;
MS_OPTIONAL GruUpdate gru_update;
MS_OPTIONAL ConvexUpsample convex_upsample;
}  // namespace cuda

// The plain twins: fp64 inside, one value after the other.
namespace reference {
void instance_norm_scale(float* scale, float* shift, const float* frame, const FrameLayout& layout, double eps);
void correlation_lookup(float* out, const FrameLayout& out_layout, const CorrelationLookup& c);
void gru_step(float* h, const FrameLayout& layout, const float* gates, const FrameLayout& gates_layout, const float* q, const FrameLayout& q_layout);
void convex_upsample(float* out, const float* logits, const FrameLayout& layout, const float* flow);
}  // namespace reference

inline Cost flow_pass_cost(double frames, const FrameLayout& l) { return {KernelClass::kVector, 0, frames * static_cast<double>(l.bytes())}; }
inline Cost picture_frame_cost(float*, FrameLayout l, PictureCells) { return flow_pass_cost(1, l); }
inline Cost instance_norm_scale_cost(float*, float*, double*, const float*, FrameLayout l, float) { return flow_pass_cost(1, l); }
inline Cost frame_relu_cost(float*, FrameLayout l, FrameTerm, FrameTerm r) { return flow_pass_cost(r.frame ? 3 : 2, l); }
inline Cost frame_pool_cost(float*, FrameLayout, const float*, FrameLayout l) { return flow_pass_cost(1.25, l); }
inline Cost correlation_lookup_cost(float*, FrameLayout o, CorrelationLookup c) {
  const auto window = static_cast<double>((2 * c.radius + 2) * (2 * c.radius + 2));
  const auto cells = static_cast<double>(o.height * o.width * c.from_layout.channels);
  return {KernelClass::kVector, 2 * kFlowLevels * window * cells, 4 * kFlowLevels * window * cells};
}
inline Cost flow_advance_cost(FlowStep s) { return flow_pass_cost(2, s.rows_layout); }
inline Cost gru_reset_cost(float*, FrameLayout g, float*, const float*, FrameLayout) { return flow_pass_cost(2.5, g); }
inline Cost gru_update_cost(float*, FrameLayout h, const float*, FrameLayout, const float*, FrameLayout) { return flow_pass_cost(4, h); }
inline Cost convex_upsample_cost(float*, const float*, FrameLayout l, const float*) { return flow_pass_cost(1.25, l); }

inline constexpr Kernel<PictureFrame> picture_frame{"picture_frame", &cpu::picture_frame, &cuda::picture_frame, &picture_frame_cost};
inline constexpr Kernel<InstanceNormScale> instance_norm_scale{"instance_norm_scale", &cpu::instance_norm_scale, &cuda::instance_norm_scale,
                                                               &instance_norm_scale_cost};
inline constexpr Kernel<FrameRelu> frame_relu{"frame_relu", &cpu::frame_relu, &cuda::frame_relu, &frame_relu_cost};
inline constexpr Kernel<FramePool> frame_pool{"frame_pool", &cpu::frame_pool, &cuda::frame_pool, &frame_pool_cost};
inline constexpr Kernel<CorrelationForward> correlation_lookup{"correlation_lookup", &cpu::correlation_lookup, &cuda::correlation_lookup,
                                                               &correlation_lookup_cost};
inline constexpr Kernel<FlowAdvance> flow_advance{"flow_advance", &cpu::flow_advance, &cuda::flow_advance, &flow_advance_cost};
inline constexpr Kernel<GruReset> gru_reset{"gru_reset", &cpu::gru_reset, &cuda::gru_reset, &gru_reset_cost};
inline constexpr Kernel<GruUpdate> gru_update{"gru_update", &cpu::gru_update, &cuda::gru_update, &gru_update_cost};
inline constexpr Kernel<ConvexUpsample> convex_upsample{"convex_upsample", &cpu::convex_upsample, &cuda::convex_upsample, &convex_upsample_cost};

}  // namespace megaslide
