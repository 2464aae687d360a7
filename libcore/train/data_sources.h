// The kinds of training data, and what they share.
#pragma once
#include <memory>
#include <span>

#include "train/training_data.h"

namespace megaslide {

std::unique_ptr<TrainingData> open_cache_data(const RunConfig& run, const ModelConfig& model, const ModelParts& parts);
std::unique_ptr<TrainingData> open_replay_data(const RunConfig& run, const ModelConfig& model);

// Error where a latent (C, T, h, w) of `what` has other channels than the model, or a longer grid than its positions reach.
void require_latent(const Shape& latent, const ModelConfig& model, const std::string& what);

inline std::span<float> sample_of(HostTensor& t, int64_t i) {
  const int64_t n = t.elements() / t.shape()[0];
  return {t.f32() + i * n, static_cast<size_t>(n)};
}
inline std::span<const float> floats_of(const TensorView& v) {
  return {reinterpret_cast<const float*>(v.data), static_cast<size_t>(v.elements())};
}

}  // namespace megaslide
