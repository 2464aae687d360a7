// One run of sample-video: what the command line says, checked before anything is loaded, then done.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/stop.h"
#include "diffusion/video_sampler.h"

namespace megaslide {

// Unset fields take the model's defaults.
struct SampleJob {
  std::string model;                  // a model directory, a checkpoint, or a foreign checkpoint (io/open_model.h)
  std::string parts;                  // model directory with the codec, text encoder and second network; empty: the model's own
  std::vector<std::string> prompts;   // in order; --prompt and the lines of --prompts
  bool from_file = false;             // prompts came from a file: OUT is a folder, also for one prompt
  std::optional<std::string> negative_prompt;  // unset: the model's (default_negative_prompt)
  std::string out;                    // by extension: .mp4 .webm .gif .safetensors, else a folder
  std::string format = "mp4";         // of the videos in a folder: mp4, webm, gif, png
  std::string init_latents;           // file with `latents_init` (or `latents`)
  std::string text_embeds;            // file with `prompt_embeds`, `negative_prompt_embeds`
  std::string latents_out;            // file to write `latents` to
  std::string trajectory_out;         // file for the latents after each step of the first video
  std::string decode;                 // file with `latents`: decode them, sample nothing
  std::string contact_sheet;          // PNG with a row of pictures a video
  std::optional<int64_t> num_frames, height, width, steps;
  std::optional<double> guidance_scale, guidance_scale_2, flow_shift, fps;
  WeightPlace weights = WeightPlace::kAuto;
  std::string solver = "unipc", sigma_grid = "diffusers";
  uint64_t seed = 0;
  DType compute_dtype = DType::kBF16;
  int threads = 1;
  Backend backend = Backend::kCpu;  // of the transformer and a learned codec; the text encoder is the processor's
  bool vae_tiling = false;          // a learned codec takes large pictures tile by tile: less memory, slightly other pictures
};

struct SampledVideo {
  std::string path;  // empty where only latents were written
  std::string prompt;
  int64_t index = 0;  // 0 for the first of equal prompts; its seed is the run's plus this
  uint64_t seed = 0;
  int64_t frames = 0, width = 0, height = 0;
  double seconds = 0;  // sampling and decoding
};

struct SampleReport {
  std::vector<SampledVideo> videos;
  SamplingOptions sampling;
  double fps = 0;
};

// What Wan's own programs steer away from where nothing is said (spec wan.md D.9): a text in Chinese for models with
// UMT5, nothing for others.
std::string default_negative_prompt(const ModelConfig& model);

// Throws a usage Error for everything that can be known before the weights are read. In a folder of several videos a
// manifest.json lists path, prompt, index and seed of each.
SampleReport run_sample_job(const SampleJob& job, const StopToken& stop);

std::string to_json(const SampleReport& report, const SampleJob& job);  // one line

}  // namespace megaslide
