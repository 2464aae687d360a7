// What a trained model is measured by, on clips whose motion is known and on its own samples.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "motion_batch.h"

namespace megaslide {

// Sum and number of what goes into a mean.
struct MeanOf {
  double sum = 0;
  int64_t count = 0;
  void add(double x) { sum += x, ++count; }
  double mean() const;  // NaN of nothing
};

// Mean squared error of the velocity, by kind of token (kTokenKinds) and over all tokens.
struct TokenLosses {
  std::array<MeanOf, 3> kinds;
  MeanOf all;
};
// `out`: (B,C,T,2H,2W), what finetune --probe wrote for the batch. An Error where it is of another shape.
TokenLosses token_losses(const MotionBatch& batch, std::span<const float> out);

// Latents (C,T,2H,2W) as tokens (T,H,W) of 4C numbers: 2x2 cells, the network's patches.
std::vector<float> as_tokens(std::span<const float> latent, const Shape& shape);

// Mean cosine of a token and the token at its place in the next latent frame.
double still_cosine(std::span<const float> latent, const Shape& shape);
// The same of tokens that show a sprite, with what lies where the sprite goes (between four tokens: linear), for targets inside
// the picture that show the same surface.
MeanOf tracked_cosine(const MotionBatch& batch, int64_t sample, std::span<const float> clean);

// Mean, and half of the 95% interval of Student's t over its values; the half is NaN below two.
struct Interval {
  double mean = 0, half = 0;
  int64_t n = 0;
};
Interval interval_of(std::span<const double> values);

}  // namespace megaslide
