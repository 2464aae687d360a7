// How a training step draws noise levels and weighs its loss: the words of run.yaml, which diffusion/flow_matching.h
// computes.
#pragma once

namespace megaslide {

// The variable u that train.flow_shift maps to a noise level.
enum class TimestepSampling {
  kLogitNormal,  // sigmoid(logit_mean + logit_std·N(0,1))
  kUniform,      // U(0, 1)
  kSigmoid,      // sigmoid(sigmoid_scale·N(0,1)), never shifted
  kShift,        // the same, shifted
  kMode,         // 1 − x − s·(cos²(πx/2) − 1 + x), x ~ U(0, 1), s = mode_scale
};

enum class LossWeighting { kNone, kSigmaSqrt, kCosmap, kLogitNormal, kMode, kBell };
enum class LossType { kMse, kHuber, kSmoothL1 };

}  // namespace megaslide
