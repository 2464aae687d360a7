// Between latents and tokens (spec wan.md A.2, A.9), and the sinusoids of the timestep (A.3). Patches are 1×2×2: token
// l = (f·H + y)·W + x of a sample covers latent rows 2y, 2y+1 and columns 2x, 2x+1 of frame f.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

struct PatchShape {
  int64_t batch = 1;
  int64_t channels = 0;                       // C of the latent
  int64_t frames = 1, height = 1, width = 1;  // token grid (T, H, W); the latent is (B, C, T, 2H, 2W)
  int64_t rows() const { return batch * frames * height * width; }
  int64_t elements() const { return rows() * channels * 4; }
};

// Patch conv as a product: column c·4 + ph·2 + pw of a token's row. Overwritten, rounded to dtype (bf16 or fp32).
using PatchGather = void(Stream&, void* patches /*(R,4C) dtype*/, const float* latent, PatchShape shape, DType dtype);
// Its transpose: every latent element lies in one patch. Overwritten.
using PatchScatter = void(Stream&, float* latent, const float* patches /*(R,4C)*/, PatchShape shape);
// Head rows, column (ph·2 + pw)·C + c, to the latent, and back. Overwritten.
using Unpatchify = void(Stream&, float* latent, const float* rows /*(R,4C)*/, PatchShape shape);
using UnpatchifyBackward = void(Stream&, float* drows /*(R,4C)*/, const float* dlatent, PatchShape shape);

// [cos(t ω_i) | sin(t ω_i)], ω_i = 10000^(−i/half), i < half = width/2; angles in fp64. width is even.
using TimeFeatures = void(Stream&, float* features /*(B,width)*/, const float* timesteps /*(B)*/, int64_t batch,
                          int64_t width);

namespace cpu {
PatchGather patch_gather;
PatchScatter patch_scatter;
Unpatchify unpatchify;
UnpatchifyBackward unpatchify_backward;
TimeFeatures time_features;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL PatchGather patch_gather;
MS_OPTIONAL PatchScatter patch_scatter;
MS_OPTIONAL Unpatchify unpatchify;
MS_OPTIONAL UnpatchifyBackward unpatchify_backward;
MS_OPTIONAL TimeFeatures time_features;
}  // namespace cuda

inline Cost patch_gather_cost(void*, const float*, PatchShape shape, DType dtype) {
  return {KernelClass::kVector, 0, static_cast<double>(shape.elements() * (4 + dtype_bytes(dtype)))};
}
inline Cost patch_move_cost(float*, const float*, PatchShape shape) {
  return {KernelClass::kVector, 0, 8.0 * static_cast<double>(shape.elements())};
}
inline Cost time_features_cost(float*, const float*, int64_t batch, int64_t width) {
  const double n = static_cast<double>(batch * width);
  return {KernelClass::kVector, 50 * n, 4 * n};
}

inline constexpr Kernel<PatchGather> patch_gather{"patch_gather", &cpu::patch_gather, &cuda::patch_gather,
                                                  &patch_gather_cost};
inline constexpr Kernel<PatchScatter> patch_scatter{"patch_scatter", &cpu::patch_scatter, &cuda::patch_scatter,
                                                    &patch_move_cost};
inline constexpr Kernel<Unpatchify> unpatchify{"unpatchify", &cpu::unpatchify, &cuda::unpatchify, &patch_move_cost};
inline constexpr Kernel<UnpatchifyBackward> unpatchify_backward{"unpatchify_backward", &cpu::unpatchify_backward,
                                                                &cuda::unpatchify_backward, &patch_move_cost};
inline constexpr Kernel<TimeFeatures> time_features{"time_features", &cpu::time_features, &cuda::time_features,
                                                    &time_features_cost};

}  // namespace megaslide
