// The activations of published vision transformers, fp32 arithmetic:
//   kGelu      x·Φ(x), Φ the normal distribution (½ (1 + erf(x/√2))): DINO
//   kQuickGelu x·σ(1.702 x): OpenAI's CLIP
// GELU in its tanh form is kernels/activation/activation.h.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

enum class MlpActivation { kGelu, kQuickGelu };

// y = f(x), rounded to dtype (bf16 or fp32); y may be x where it is fp32. Relative to f(x), in fp32, at most 1e-6 for |x| ≤ 5 and
// 2^-21 (1 + x²/4) for any x whose result is a normal number.
using MlpActivationForward = void(Stream&, void* y /*(n) dtype*/, const float* x /*(n)*/, int64_t n, MlpActivation f, DType dtype);

namespace cpu {
MlpActivationForward mlp_activation_forward;
}
namespace cuda {
MS_OPTIONAL MlpActivationForward mlp_activation_forward;
}

// The plain twin.
namespace reference {
double mlp_activation(double x, MlpActivation f);
}

// Of rows at hand, on the calling thread: for kernels that make the rows themselves.
void mlp_activation_rows(void* y, const float* x, int64_t n, MlpActivation f, DType dtype);

// An exponential counts 16 operations, a quotient 1.
inline Cost mlp_activation_forward_cost(void*, const float*, int64_t n, MlpActivation f, DType dtype) {
  return {KernelClass::kVector, (f == MlpActivation::kGelu ? 42.0 : 20.0) * static_cast<double>(n), static_cast<double>(n * (4 + dtype_bytes(dtype)))};
}

inline constexpr Kernel<MlpActivationForward> mlp_activation_forward{"mlp_activation_forward", &cpu::mlp_activation_forward,
                                                                     &cuda::mlp_activation_forward, &mlp_activation_forward_cost};

}  // namespace megaslide
