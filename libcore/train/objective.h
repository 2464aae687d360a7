// What a run's configuration says about noise levels and loss, in the terms of those who compute them.
#pragma once
#include "config/run_config.h"
#include "diffusion/flow_matching.h"
#include "kernels/loss/loss.h"
#include "train/training_data.h"

namespace megaslide {

// A usage Error where the model has two networks and the run does not say which is trained, or the other way round.
void require_expert(const RunConfig& run, const ModelConfig& model);

// Noise levels of the run: its distribution, cut to its timesteps and to those of the network that is trained. A usage Error
// where (next to) nothing is left.
TimestepDistribution timestep_distribution(const RunConfig& run, const ModelConfig& model);
LossTerm loss_term(const RunConfig& run);

// From a clean latent, noise and a noise level to what the network is given and what it should answer.
class Objective {
 public:
  Objective(const RunConfig& run, const ModelConfig& model);
  const TimestepDistribution& distribution() const { return distribution_; }

  // `grid` with as many timesteps a sample as the objective needs.
  BatchShape shape(BatchShape grid) const;
  // Zeros of a microbatch's sizes; loss weights where some may differ from 1.
  HostBatch empty_batch(const BatchShape& shape) const;
  // Latent, target, timesteps and loss weights of sample i. `noise` may be the sample's latent itself. `weighted`: by the
  // run's scheme, else every sample counts the same.
  void fill(HostBatch& batch, int64_t i, std::span<const float> x0, std::span<const float> noise, double sigma, bool weighted) const;

 private:
  bool clean_first(const BatchShape& shape) const { return clean_first_ && shape.frames > 1; }

  TimestepDistribution distribution_;
  LossWeight weight_;
  bool clean_first_, weighted_;
  int64_t channels_, text_width_;
};

}  // namespace megaslide
