#include "train/objective.h"

#include <algorithm>

#include "base/error.h"
#include "train/data_sources.h"

namespace megaslide {

void require_expert(const RunConfig& run, const ModelConfig& model) {
  if (model.boundary > 0 && !run.model.expert)
    throw usage_error(fmt::format("model {} has two networks, on either side of timestep {}: model.expert says which is trained", model.name, 1000 * model.boundary),
                      "--set model.expert=high, and another run with model.expert=low");
  if (model.boundary <= 0 && run.model.expert) throw usage_error(fmt::format("model.expert: model {} has one network", model.name), "leave model.expert out");
}

TimestepDistribution timestep_distribution(const RunConfig& run, const ModelConfig& model) {
  require_expert(run, model);
  const RunConfig::Train& t = run.train;
  TimestepDistribution d;
  d.sampling = t.timestep_sampling;
  d.mean = t.logit_mean;
  d.scale = t.timestep_sampling == TimestepSampling::kLogitNormal ? t.logit_std : t.sigmoid_scale;
  d.mode_scale = t.mode_scale;
  d.shift = t.flow_shift.value_or(model.flow_shift);
  d.low = t.min_timestep / 1000;
  d.high = t.max_timestep / 1000;
  if (run.model.expert == RunConfig::Expert::kHigh) d.low = std::max(d.low, model.boundary);
  if (run.model.expert == RunConfig::Expert::kLow) d.high = std::min(d.high, model.boundary);
  if (d.low >= d.high)
    throw usage_error(fmt::format("no timestep is left: train.min_timestep {} and train.max_timestep {} lie beside those of model.expert, which meet at {}",
                                  t.min_timestep, t.max_timestep, 1000 * model.boundary),
                      "leave out train.min_timestep and train.max_timestep");
  require_slice(d);
  return d;
}

LossTerm loss_term(const RunConfig& run) {
  const LossKind kind = run.train.loss_type == LossType::kMse ? LossKind::kMse : run.train.loss_type == LossType::kHuber ? LossKind::kHuber : LossKind::kSmoothL1;
  return {kind, static_cast<float>(run.train.huber_delta)};
}

Objective::Objective(const RunConfig& run, const ModelConfig& model)
    : distribution_(timestep_distribution(run, model)),
      weight_({run.train.weighting_scheme, run.train.logit_mean, run.train.logit_std, run.train.mode_scale, run.train.flow_shift.value_or(model.flow_shift)}),
      clean_first_(run.train.first_frame == RunConfig::FirstFrame::kClean),
      weighted_(run.train.weighting_scheme != LossWeighting::kNone), channels_(model.in_channels), text_width_(model.text_dim) {}

BatchShape Objective::shape(BatchShape grid) const {
  if (clean_first(grid)) grid.times = grid.frames;
  return grid;
}

HostBatch Objective::empty_batch(const BatchShape& shape) const {
  HostBatch b;
  b.shape = shape;
  const Shape latent{shape.batch, channels_, shape.frames, shape.height * 2, shape.width * 2};
  b.latent = HostTensor(DType::kF32, latent);
  b.target = HostTensor(DType::kF32, latent);
  b.timesteps = HostTensor(DType::kF32, {shape.batch, shape.times});
  b.text = HostTensor(DType::kF32, {shape.batch, shape.context_rows, text_width_});
  if (weighted_ || clean_first(shape)) b.loss_weights = HostTensor(DType::kF32, {shape.batch, shape.frames});
  b.tokens = shape.rows();
  return b;
}

void Objective::fill(HostBatch& b, int64_t i, std::span<const float> x0, std::span<const float> noise, double sigma, bool weighted) const {
  const auto x = sample_of(b.latent, i), times = sample_of(b.timesteps, i);
  add_noise(x, sample_of(b.target, i), x0, noise, sigma);
  std::ranges::fill(times, static_cast<float>(timestep_of_sigma(sigma)));
  if (b.loss_weights.empty()) return;
  const auto weights = sample_of(b.loss_weights, i);
  const auto frames = static_cast<size_t>(b.shape.frames);
  double weight = weighted ? weight_(sigma) : 1;
  // The mean stays one over the frames that are learnt.
  if (clean_first(b.shape)) weight *= static_cast<double>(frames) / static_cast<double>(frames - 1);
  std::ranges::fill(weights, static_cast<float>(weight));
  if (!clean_first(b.shape)) return;
  times[0] = weights[0] = 0;
  const size_t channel = x.size() / static_cast<size_t>(channels_), frame = channel / frames;
  for (size_t at = 0; at < x.size(); at += channel) std::copy_n(x0.begin() + static_cast<std::ptrdiff_t>(at), frame, x.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace megaslide
