// Flow matching: the noised sample with its target, and the mean squared error with its gradient.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"

namespace megaslide {

// x_t = (1−σ_b)·x0 + σ_b·noise, target = noise − x0. Both overwritten.
using FlowMix = void(Stream&, float* x_t /*(B,numel)*/, float* target /*(B,numel)*/, const float* x0 /*(B,numel)*/,
                     const float* noise /*(B,numel)*/, const float* sigma /*(B)*/, int64_t b, int64_t numel);

// loss = Σ (v−target)² / (B·numel), one fp64 number in device memory, overwritten: blocks of 16,384 elements summed in
// 16 interleaved lanes each, lanes and blocks by fixed trees. dout = 2·scale·(v−target) / (B·numel), overwritten; may
// be nullptr. `scale` multiplies the gradient alone (1/microbatches, a sample's weight).
using MseLoss = void(Stream&, double* loss /*(1)*/, float* dout /*(B,numel)*/, const float* v /*(B,numel)*/,
                     const float* target /*(B,numel)*/, int64_t b, int64_t numel, float scale);

namespace cpu {
FlowMix flow_mix;
MseLoss mse_loss;
}  // namespace cpu
#ifdef MEGASLIDE_CUDA
namespace cuda {
FlowMix flow_mix;
MseLoss mse_loss;
}  // namespace cuda
#endif

inline Cost flow_mix_cost(float*, float*, const float*, const float*, const float*, int64_t b, int64_t numel) {
  return {KernelClass::kVector, 4.0 * static_cast<double>(b * numel), 16.0 * static_cast<double>(b * numel)};
}
inline Cost mse_loss_cost(double*, float*, const float*, const float*, int64_t b, int64_t numel, float) {
  return {KernelClass::kVector, 4.0 * static_cast<double>(b * numel), 12.0 * static_cast<double>(b * numel)};
}

inline constexpr Kernel<FlowMix> flow_mix{"flow_mix", &cpu::flow_mix, MS_CUDA(flow_mix), &flow_mix_cost};
inline constexpr Kernel<MseLoss> mse_loss{"mse_loss", &cpu::mse_loss, MS_CUDA(mse_loss), &mse_loss_cost};

}  // namespace megaslide
