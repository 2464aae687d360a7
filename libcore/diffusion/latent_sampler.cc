#include "diffusion/latent_sampler.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "diffusion/flow_matching.h"

namespace megaslide {

BatchShape sampling_shape(const Network& network, int64_t frames, int64_t height, int64_t width, int64_t text_rows,
                          const SamplingOptions& options) {
  MS_CHECK(height % network.patch_height == 0 && width % network.patch_width == 0);
  BatchShape shape;
  shape.batch = uses_guidance(options) ? 2 : 1;
  shape.frames = frames;
  shape.height = height / network.patch_height;
  shape.width = width / network.patch_width;
  shape.context_rows = text_rows;
  return shape;
}

void sample_latent(Device& device, const PipelineOf& pipeline, const LatentRequest& request, const SamplingOptions& options,
                   const StopToken& stop, const std::function<void(int64_t)>& on_step) {
  const auto n = request.latent.size();
  const auto branches = static_cast<size_t>(request.shape.batch);
  MS_CHECK(branches == (uses_guidance(options) ? 2u : 1u));
  MS_CHECK(branches == 1 || request.negative.size() == request.text.size());

  const SigmaSchedule schedule = make_sigma_schedule(options.solver, options.grid, options.steps, options.flow_shift);
  const auto scheduler = make_scheduler(options.solver, schedule);

  std::vector<float> text(request.text.begin(), request.text.end());
  if (branches == 2) text.insert(text.end(), request.negative.begin(), request.negative.end());
  std::vector<float> input(n * branches), velocity(n * branches), timesteps(branches);
  const MicroBatch batch{request.shape, input.data(), timesteps.data(), text.data(), nullptr};

  for (int64_t k = 0; k < options.steps; ++k) {
    stop.throw_if_requested();
    for (size_t b = 0; b < branches; ++b)
      std::copy(request.latent.begin(), request.latent.end(), input.begin() + static_cast<std::ptrdiff_t>(b * n));
    const double t = schedule.timesteps[static_cast<size_t>(k)];
    const int network = network_at(t, options);
    const double guidance = network == 1 && options.guidance_scale_2 > 0 ? options.guidance_scale_2 : options.guidance_scale;
    std::fill(timesteps.begin(), timesteps.end(), static_cast<float>(t));
    device.synchronize(pipeline(network).predict(batch, velocity.data()));

    const std::span<float> v(velocity.data(), n);
    if (branches == 2) apply_guidance(v, {velocity.data() + n, n}, std::max(guidance, 1.0));
    scheduler->step(request.latent, v);
    if (!std::all_of(request.latent.begin(), request.latent.end(), [](float x) { return std::isfinite(x); }))
      throw Error(fmt::format("the latent is not finite after sampling step {} of {}", k + 1, options.steps),
                  "the weights may be damaged (shard-weights --verify), or try --compute-dtype fp32");
    if (on_step) on_step(k);
  }
}

}  // namespace megaslide
