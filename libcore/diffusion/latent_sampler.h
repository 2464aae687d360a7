// Denoising one latent with a streamed network: solver, guidance, one pass of the pipeline a step.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "base/stop.h"
#include "device/device.h"
#include "diffusion/schedulers.h"
#include "model/layer.h"
#include "stream/pipeline.h"

namespace megaslide {

struct SamplingOptions {
  int64_t steps = 50;
  double flow_shift = 5;
  double guidance_scale = 5;  // ≤ 1: the conditional pass alone
  Solver solver = Solver::kUniPC;
  SigmaGrid grid = SigmaGrid::kDiffusers;
};

// Guidance runs both branches as one batch of two, so that the weights travel once a step.
inline bool uses_guidance(const SamplingOptions& options) { return options.guidance_scale > 1; }

// The shape a pipeline needs to sample latents of (channels, frames, height, width) cells.
BatchShape sampling_shape(const Network& network, int64_t frames, int64_t height, int64_t width, int64_t text_rows,
                          const SamplingOptions& options);

struct LatentRequest {
  BatchShape shape;                 // sampling_shape()
  std::span<float> latent;          // (Cin, T, h, w): noise in, normalised clean latent out
  std::span<const float> text;      // (S, text_dim), zero rows past the prompt
  std::span<const float> negative;  // same size; read only with guidance
};

// Runs options.steps steps. `on_step(k)` follows step k = 0, 1, … and may look at the latent; `stop` is polled between
// steps (throws Stopped). Throws Error when the latent stops being finite: damaged weights, not a black video.
void sample_latent(Device& device, Pipeline& pipeline, const LatentRequest& request, const SamplingOptions& options,
                   const StopToken& stop, const std::function<void(int64_t step)>& on_step = {});

}  // namespace megaslide
