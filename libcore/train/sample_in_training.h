// Videos sampled while training, with the pipeline and the weights of the run: OUTPUT/samples/step-%08d/PROMPT-0.mp4.
#pragma once
#include <vector>

#include "base/stop.h"
#include "config/run_config.h"
#include "device/device.h"
#include "model/model_parts.h"
#include "stream/pipeline.h"
#include "tensor/tensor.h"

namespace megaslide {

// Rows of the run's prompts and, last, of the negative one; encoded once, before the training's memory is taken.
using SampleTexts = std::vector<HostTensor>;
SampleTexts encode_sample_prompts(const RunConfig& run, const ModelParts& parts, int threads);

struct SampleContext {
  const RunConfig& run;
  const ModelParts& parts;
  const SampleTexts& texts;
  const Network& network;
  Device& device;
  Pipeline& pipeline;
  int threads;
};

// The shapes that sampling will ask of the pipeline; none without prompts. Throws a usage Error for sizes that the model
// cannot make.
std::vector<BatchShape> sampling_shapes(const RunConfig& run, const ModelConfig& config, const Network& network);

// The pipeline's weights must be current (TrainStep::drain). Throws Stopped between sampling steps, and Error where a sample
// is not finite or cannot be written.
void sample_in_training(const SampleContext& context, int64_t step, const StopToken& stop);

}  // namespace megaslide
