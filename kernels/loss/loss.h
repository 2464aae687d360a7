// Flow matching: the noised sample with its target, and the loss of the velocity with its gradient.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"

namespace megaslide {

// x_t = (1−σ_b)·x0 + σ_b·noise, target = noise − x0. Both overwritten.
using FlowMix = void(Stream&, float* x_t /*(B,numel)*/, float* target /*(B,numel)*/, const float* x0 /*(B,numel)*/,
                     const float* noise /*(B,numel)*/, const float* sigma /*(B)*/, int64_t b, int64_t numel);

enum class LossKind { kMse, kHuber, kSmoothL1 };
// ℓ(d): d² | with δ: d²/2 where |d| < δ, else δ(|d| − δ/2) | that divided by δ.
struct LossTerm {
  LossKind kind = LossKind::kMse;
  float delta = 1;
};
struct LossGrid {
  int64_t batch = 1, channels = 1, frames = 1, area = 1;  // area: cells of a latent frame
  // Where this is a part of something longer: the elements of the whole, whose mean the loss is, and whether the parts before
  // it are already in `loss`.
  int64_t mean_of = 0;
  bool add = false;
  int64_t elements() const { return batch * channels * frames * area; }
};

// loss = Σ weight(b,t)·ℓ(v−target) / (B·C·T·area), one fp64 number in device memory, overwritten: blocks of 16,384 elements
// summed in 16 interleaved lanes each, lanes and blocks by fixed trees. dout = scale·weight·ℓ'(v−target) / (B·C·T·area),
// overwritten; may be nullptr. Of a part, the divisor is the whole's. `weight` may be nullptr: all 1, with the same bits as
// ones. Where it is 0 the difference is not looked at. `scale` multiplies the gradient alone (1/microbatches).
using VelocityLoss = void(Stream&, double* loss /*(1)*/, float* dout /*(B,C,T,area)*/, const float* v /*(B,C,T,area)*/,
                          const float* target /*(B,C,T,area)*/, const float* weight /*(B,T)*/, LossGrid grid, LossTerm term,
                          float scale);

namespace cpu {
FlowMix flow_mix;
VelocityLoss velocity_loss;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL FlowMix flow_mix;
MS_OPTIONAL VelocityLoss velocity_loss;
}  // namespace cuda

inline Cost flow_mix_cost(float*, float*, const float*, const float*, const float*, int64_t b, int64_t numel) {
  return {KernelClass::kVector, 4.0 * static_cast<double>(b * numel), 16.0 * static_cast<double>(b * numel)};
}
inline Cost velocity_loss_cost(double*, float*, const float*, const float*, const float*, LossGrid grid, LossTerm, float) {
  const auto n = static_cast<double>(grid.elements());
  return {KernelClass::kVector, 4 * n, 12 * n};
}

// The plain twin: fp64, one element after the other.
namespace reference {
void velocity_loss(double* loss, float* dout, const float* v, const float* target, const float* weight, LossGrid grid, LossTerm term,
                   float scale);
}  // namespace reference

inline constexpr Kernel<FlowMix> flow_mix{"flow_mix", &cpu::flow_mix, &cuda::flow_mix, &flow_mix_cost};
inline constexpr Kernel<VelocityLoss> velocity_loss{"velocity_loss", &cpu::velocity_loss, &cuda::velocity_loss, &velocity_loss_cost};

}  // namespace megaslide
