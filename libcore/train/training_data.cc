#include "train/training_data.h"

#include <algorithm>

#include "base/disk_watch.h"
#include "base/error.h"
#include "train/data_sources.h"
#include "train/displacement.h"

namespace megaslide {

HostBatch TrainingData::validation_batch(int64_t) const {
  MS_CHECK(false, "no validation data");
  __builtin_unreachable();
}

BatchShape batch_shape_of(const Shape& latent, int64_t batch, int64_t context_rows, const std::string& what) {
  if (latent.size() != 4 || latent[2] % 2 != 0 || latent[3] % 2 != 0)
    throw Error(fmt::format("{}: a latent [C, T, h, w] with even h and w is needed, this one is {}", what, to_string(latent)),
                "encode the clips again with a --size whose sides are multiples of twice the codec's stride");
  if (batch < 1 || context_rows < 1 || std::any_of(latent.begin(), latent.end(), [](int64_t n) { return n < 1; }))
    throw Error(fmt::format("{}: nothing to compute on: {} samples of {} with {} text rows", what, batch, to_string(latent), context_rows),
                "every size must be at least 1");
  return {batch, latent[1], latent[2] / 2, latent[3] / 2, context_rows};
}

void require_latent(const Shape& latent, const ModelConfig& model, const std::string& what) {
  if (latent.empty() || latent[0] != model.in_channels)
    throw Error(fmt::format("{}: latents have {} channels, the model takes {}", what, latent.empty() ? 0 : latent[0], model.in_channels),
                "encode the clips with this model (encode-clips --model)");
  if (latent.size() != 4) return;
  const int64_t longest = std::max({latent[1], latent[2] / 2, latent[3] / 2});
  if (longest > model.rope_max_seq_len)
    throw Error(fmt::format("{}: a token grid of {}x{}x{}, the model's positions reach {}", what, latent[1], latent[2] / 2, latent[3] / 2, model.rope_max_seq_len),
                "encode the clips again, shorter or smaller");
}

std::vector<HostBatch> batches_of(const TrainingData& data, int64_t step) {
  std::vector<HostBatch> all;
  int64_t samples = 0;
  for (int a = 0; a < data.microbatches(step); ++a) {
    // Mapped files are read: a disk that hangs is noticed here.
    const DiskOperation operation("read", fmt::format("the data of step {}", step));
    all.push_back(data.batch(step, a));
    samples += all.back().shape.batch;
  }
  const auto count = static_cast<int64_t>(all.size());
  for (HostBatch& b : all) {
    // The step's loss is the mean over microbatches, each the mean over its samples.
    if (b.shape.batch * count == samples) continue;
    const float factor = static_cast<float>(static_cast<double>(b.shape.batch * count) / static_cast<double>(samples));
    if (b.loss_weights.empty()) {
      b.loss_weights = HostTensor(DType::kF32, {b.shape.batch, b.shape.frames});
      std::fill_n(b.loss_weights.f32(), b.loss_weights.elements(), 1.0F);
    }
    for (int64_t i = 0; i < b.loss_weights.elements(); ++i) b.loss_weights.f32()[i] *= factor;
  }
  return all;
}

std::unique_ptr<TrainingData> open_training_data(const RunConfig& run, const ModelConfig& model, const ModelParts& parts) {
  check_displacement(run, model);
  return run.data.replay.empty() ? open_cache_data(run, model, parts) : open_replay_data(run, model);
}

}  // namespace megaslide
