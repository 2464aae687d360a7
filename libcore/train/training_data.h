// What a run trains on: cached latents, or stored batches that are replayed. A microbatch is a pure function of the
// configuration, the step, its number, and where a resumed run had got to.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "config/run_config.h"
#include "model/model_parts.h"
#include "stream/pipeline.h"
#include "tensor/tensor.h"

namespace megaslide {

// Owns the host tensors of one microbatch.
struct HostBatch {
  BatchShape shape;
  HostTensor latent, timesteps, text, target;
  HostTensor loss_weights;  // (B, T), or empty: all 1
  std::vector<int32_t> shots;  // (2, B, T), first and last frame of each frame's shot, or empty: one shot each
  std::vector<float> displacement;  // (B, N, T, 2), of models that need it
  int64_t tokens = 0;       // token rows of all samples
  MicroBatch view() const {
    return {shape, latent.f32(), timesteps.f32(), text.f32(), target.f32(), loss_weights.empty() ? nullptr : loss_weights.f32(),
            shots.empty() ? nullptr : shots.data(), displacement.empty() ? nullptr : displacement.data()};
  }
};

class TrainingData {
 public:
  virtual ~TrainingData() = default;
  // Every shape that batch() or validation_batch() can return; at least one.
  virtual std::vector<BatchShape> shapes() const = 0;
  virtual HostBatch batch(int64_t step, int micro) const = 0;  // step from 1, micro from 0
  virtual int microbatches(int64_t step) const = 0;            // at least 1 up to last_step()
  virtual int max_microbatches() const = 0;                    // of any step
  virtual int64_t last_step() const = 0;                       // of the run

  // Microbatches that steps 1 … `step` take, and the place from which a resumed run goes on after `step`: its later steps
  // may be of another size than those before.
  virtual int64_t position(int64_t step) const = 0;
  virtual void resume_after(int64_t step, int64_t position) = 0;

  // What each sample is made of, in the data's order; empty where nothing is known. A run goes on only with the same.
  virtual std::vector<std::string> keys() const { return {}; }
  // Lines for the log: what there is, and how an epoch uses it.
  virtual std::vector<std::string> summary() const { return {}; }

  // Held-out batches: fixed noise and noise levels, so that values can be compared across steps. 0: none.
  virtual int64_t validation_batches() const { return 0; }
  virtual HostBatch validation_batch(int64_t index) const;
  virtual int64_t host_bytes() const = 0;  // kept in memory, for the ledger
};

// All microbatches of a step, with loss weights such that every sample of the step counts the same whatever the sizes.
std::vector<HostBatch> batches_of(const TrainingData& data, int64_t step);

// From run.data.cache or run.data.replay. Throws Error when the data does not go with the model or its codec and text
// encoder.
std::unique_ptr<TrainingData> open_training_data(const RunConfig& run, const ModelConfig& model, const ModelParts& parts);

// A latent (Cin, T, h, w) as the network's token grid; Error when sides are not multiples of the patch.
BatchShape batch_shape_of(const Shape& latent, int64_t batch, int64_t context_rows, const std::string& what);

}  // namespace megaslide
