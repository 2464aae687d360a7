#include "train/sample_in_training.h"

#include <fmt/ranges.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "diffusion/flow_matching.h"
#include "diffusion/prompts.h"
#include "diffusion/sample_output.h"
#include "diffusion/video_sampler.h"
#include "model/text_encoder.h"
#include "train/setup.h"
#include "model/video_codec.h"

namespace megaslide {
namespace {

VideoSamplerOptions sampler_options(const RunConfig& run, const ModelConfig& config) {
  VideoSamplerOptions o;
  o.sampling.steps = run.sample.steps.value_or(config.steps);
  o.sampling.guidance_scale = run.sample.guidance_scale.value_or(config.guidance_scale);
  o.sampling.flow_shift = run.sample.flow_shift.value_or(config.flow_shift);
  o.num_frames = run.sample.num_frames.value_or(config.num_frames);
  o.width = run.sample.width ? run.sample.width : config.width;
  o.height = run.sample.height ? run.sample.height : config.height;
  return o;
}

// A run holds one network; a video of a model of two needs both.
void require_one_network(const ModelConfig& config) {
  if (config.boundary > 0)
    throw usage_error(fmt::format("sample.prompts: model {} has two networks, and a run trains one of them", config.name),
                      "leave sample.prompts out, and sample from checkpoints with sample-video");
}

}  // namespace

std::vector<BatchShape> sampling_shapes(const RunConfig& run, const ModelConfig& config, const Network& network) {
  if (run.sample.prompts.empty()) return {};
  require_one_network(config);
  const VideoSamplerOptions o = sampler_options(run, config);
  if (const auto errors = sampling_option_errors(config, o); !errors.empty())
    throw usage_error(fmt::format("the sample section does not go with the model:\n  {}", fmt::join(errors, "\n  ")));
  const Shape latent = latent_shape(config, o.num_frames, o.height, o.width);
  return {sampling_shape(network, latent[1], latent[2], latent[3], config.text_len, o.sampling)};
}

SampleTexts encode_sample_prompts(const RunConfig& run, const ModelParts& parts, int threads) {
  if (run.sample.prompts.empty()) return {};
  require_one_network(parts.config);
  codec_identity(parts);  // a model without a codec is refused now, not when the first samples are due
  std::vector<std::string> prompts;
  for (const auto& named : name_prompts(run.sample.prompts)) prompts.push_back(named.prompt);
  prompts.push_back(run.sample.negative_prompt);
  return encode_prompt_rows(parts, prompts, compute_dtype(run), threads);
}

void sample_in_training(const SampleContext& c, int64_t step, const StopToken& stop) {
  const VideoSamplerOptions o = sampler_options(c.run, c.parts.config);
  const BatchShape shape = sampling_shapes(c.run, c.parts.config, c.network).front();
  const std::string folder = fmt::format("{}/samples/step-{:08}", c.run.output.output_dir, step);
  make_directories(folder);
  const auto floats = [](const HostTensor& t) { return std::span<const float>(t.f32(), static_cast<size_t>(t.elements())); };
  const auto prompts = name_prompts(c.run.sample.prompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto& named = prompts[i];
    HostTensor latent(DType::kF32, latent_shape(c.parts.config, o.num_frames, o.height, o.width));
    const std::span<float> x(latent.f32(), static_cast<size_t>(latent.elements()));
    fill_normal(x, static_cast<uint64_t>(c.run.sample.seed + named.repeat), RandomPurpose::kSample, 0);
    sample_latent(c.device, [&](int) -> Pipeline& { return c.pipeline; }, {shape, x, floats(c.texts[i]), floats(c.texts.back())}, o.sampling, stop);
    const HostTensor video = decode_latent(c.parts, latent.view(), compute_dtype(c.run), c.threads);
    write_video(folder + "/" + named.stem + ".mp4", OutputKind::kVideoFile, video, pictures_of(video), c.parts.config.fps);
  }
  log_info("samples of step {}: {}", step, folder);
}

}  // namespace megaslide
