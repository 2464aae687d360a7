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
  double guidance_scale = 5;    // ≤ 1: the conditional pass alone
  double boundary = 0;          // of two networks: the second serves timesteps below 1000·boundary …
  double guidance_scale_2 = 0;  // … with this guidance; 0: the same
  Solver solver = Solver::kUniPC;
  SigmaGrid grid = SigmaGrid::kDiffusers;
};

// Guidance runs both branches as one batch of two, so that the weights travel once a step.
inline bool uses_guidance(const SamplingOptions& options) {
  return options.guidance_scale > 1 || (options.boundary > 0 && options.guidance_scale_2 > 1);
}

// The shape a pipeline needs to sample latents of (channels, frames, height, width) cells.
BatchShape sampling_shape(const Network& network, int64_t frames, int64_t height, int64_t width, int64_t text_rows,
                          const SamplingOptions& options);

struct LatentRequest {
  BatchShape shape;                 // sampling_shape()
  std::span<float> latent;          // (Cin, T, h, w): noise in, normalised clean latent out
  std::span<const float> text;      // (S, text_dim), zero rows past the prompt
  std::span<const float> negative;  // same size; read only with guidance
};

// Which network serves timestep t: 0, or 1 for the second of two (spec wan.md D.7).
inline int network_at(double timestep, const SamplingOptions& options) { return timestep < 1000 * options.boundary ? 1 : 0; }

// The pipeline of a network; what it returns is used until the next call.
using PipelineOf = std::function<Pipeline&(int network)>;

// Runs options.steps steps. `on_step(k)` follows step k = 0, 1, … and may look at the latent; `stop` is polled between
// steps (throws Stopped). Throws Error when the latent stops being finite: damaged weights, not a black video.
void sample_latent(Device& device, const PipelineOf& pipeline, const LatentRequest& request, const SamplingOptions& options,
                   const StopToken& stop, const std::function<void(int64_t step)>& on_step = {});

}  // namespace megaslide
