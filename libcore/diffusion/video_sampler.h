// From prompts to videos with one model: text encoder, streamed transformer, codec.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/stop.h"
#include "diffusion/latent_sampler.h"
#include "io/model_directory.h"
#include "io/video.h"
#include "model/model_parts.h"
#include "tensor/tensor.h"

namespace megaslide {

// Where a network's weights are while it samples: all in memory, or read layer by layer in each step. kAuto: in memory
// where they leave a quarter of what is available.
enum class WeightPlace { kAuto, kMemory, kDisk };
WeightPlace parse_weight_place(const std::string& word);  // "auto", "memory", "disk"

struct VideoSamplerOptions {
  SamplingOptions sampling;
  int64_t num_frames = 81, height = 480, width = 832;
  DType compute_dtype = DType::kBF16;
  int threads = 1;
  WeightPlace weights = WeightPlace::kAuto;
  Backend backend = Backend::kCpu;  // of the transformer and of decode(); kCuda: of a program with CUDA
  std::string parts;  // folder of the second network, where it is not the model's own
};

// Finds what does not fit the model, each "--option: value, what would do"; empty when all is well.
std::vector<std::string> sampling_option_errors(const ModelConfig& model, const VideoSamplerOptions& options);

// Shape (C, T, h, w) of the latent of a video.
Shape latent_shape(const ModelConfig& model, int64_t num_frames, int64_t height, int64_t width);

// The networks of a model, by noise level: one, or two where config.boundary > 0. Of a checkpoint of one of two networks
// the other comes from `parts`, or where that is empty from the model it was trained from. Error where one is missing.
std::vector<ModelDirectory> networks_of(const ModelDirectory& model, const std::string& parts = {});

class VideoSampler {
 public:
  // Reads the weights. Throws a usage Error with all of sampling_option_errors().
  VideoSampler(const ModelDirectory& model, const VideoSamplerOptions& options);
  ~VideoSampler();
  VideoSampler(const VideoSampler&) = delete;
  VideoSampler& operator=(const VideoSampler&) = delete;

  // Standard normal (C, T, h, w): a function of the seed alone.
  HostTensor initial_noise(uint64_t seed) const;
  // The normalised latent (C, T, h, w). `negative` is read only with guidance. The result depends on noise, text and
  // options, not on what was sampled before, nor on the threads.
  HostTensor sample(HostTensor noise, const HostTensor& text, const HostTensor& negative, const StopToken& stop,
                    const std::function<void(int64_t step, std::span<const float> latent)>& on_step) const;

  // decode_latent() on the sampler's device. The network's buffers leave it where both have no room, until the next sample.
  HostTensor decode(const ModelParts& parts, const TensorView& latent, bool vae_tiling) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Rows (text_len, text_dim) of each prompt, zero past its end. Warns where one is cut.
std::vector<HostTensor> encode_prompt_rows(const ModelParts& parts, std::span<const std::string> prompts, DType compute_dtype, int threads);

// (3, F, H, W) in [−1, 1], clipped, of a normalised latent (C, T, h, w), and its pictures. A learned codec decodes on a
// device of `backend`; with vae_tiling it takes large pictures tile by tile.
HostTensor decode_latent(const ModelParts& parts, const TensorView& latent, DType compute_dtype, int threads,
                         Backend backend = Backend::kCpu, bool vae_tiling = false);
std::vector<Picture> pictures_of(const HostTensor& video);

}  // namespace megaslide
