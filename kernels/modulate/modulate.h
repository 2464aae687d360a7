// Modulation vectors and gated residual additions (spec wan.md A.5, A.6, A.9, A.14), fp32.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/row_pieces.h"
#include "tensor/dtype.h"

namespace megaslide {

// m[b,s] = table[s] + e[b,s], plus 1 where bit s of `plus_one` is set (scales are stored as 1 + scale). With e_slots =
// 1 all slots read the same e[b] (the head); otherwise e_slots = slots.
using ModulationForward = void(Stream&, float* m /*(B,slots,D)*/, const void* table /*(slots,D) dtype*/,
                               const float* e /*(B,e_slots,D)*/, int64_t batch, int64_t slots, int64_t e_slots,
                               int64_t width, uint32_t plus_one, DType dtype);
// dtable += Σ_b dm, de += dm (summed over the slots when e_slots = 1).
using ModulationBackward = void(Stream&, float* dtable /*(slots,D)*/, float* de /*(B,e_slots,D)*/,
                                const float* dm /*(B,slots,D)*/, int64_t batch, int64_t slots, int64_t e_slots,
                                int64_t width);

// y = x + gate ⊙ a, with a first rounded to dtype and kept for backward (a_kept may be nullptr). Row r reads the gate
// at gate + (r / group_rows) * group_stride; a null gate is 1 everywhere. y may be x.
using GatedAddForward = void(Stream&, float* y /*(R,D)*/, void* a_kept /*(R,D) dtype*/, const float* x /*(R,D)*/,
                             const float* a /*(R,D)*/, const float* gate, int64_t rows, int64_t width,
                             int64_t group_rows, int64_t group_stride, DType dtype);
// da = gate ⊙ dy, overwritten and rounded to dtype; dgate += Σ dy ⊙ a over the rows of a group; dbias += Σ_rows of the
// unrounded da (the gradient of the bias of the projection that made a). scratch: gated_add_scratch floats.
using GatedAddBackward = void(Stream&, void* da /*(R,D) dtype*/, float* dgate, float* dbias /*(D)*/, float* scratch,
                              const float* dy /*(R,D)*/, const void* a_kept /*(R,D) dtype*/, const float* gate,
                              int64_t rows, int64_t width, int64_t group_rows, int64_t group_stride, DType dtype);
inline int64_t gated_add_scratch(int64_t rows, int64_t group_rows, int64_t width) {
  return row_sum_scratch(rows, group_rows, 2 * width);
}

namespace cpu {
ModulationForward modulation_forward;
ModulationBackward modulation_backward;
GatedAddForward gated_add_forward;
GatedAddBackward gated_add_backward;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL ModulationForward modulation_forward;
MS_OPTIONAL ModulationBackward modulation_backward;
MS_OPTIONAL GatedAddForward gated_add_forward;
MS_OPTIONAL GatedAddBackward gated_add_backward;
}  // namespace cuda

inline Cost modulation_forward_cost(float*, const void*, const float*, int64_t batch, int64_t slots, int64_t e_slots,
                                    int64_t width, uint32_t, DType dtype) {
  const double n = static_cast<double>(width);
  return {KernelClass::kVector, 2 * n * static_cast<double>(batch * slots),
          n * static_cast<double>(4 * batch * (slots + e_slots) + slots * dtype_bytes(dtype))};
}
inline Cost modulation_backward_cost(float*, float*, const float*, int64_t batch, int64_t slots, int64_t e_slots,
                                     int64_t width) {
  const double n = static_cast<double>(width);
  return {KernelClass::kVector, 2 * n * static_cast<double>(batch * slots),
          4 * n * static_cast<double>(batch * slots + 2 * (batch * e_slots + slots))};
}
inline Cost gated_add_forward_cost(float*, void*, const float*, const float*, const float*, int64_t rows, int64_t width,
                                   int64_t, int64_t, DType dtype) {
  const double n = static_cast<double>(rows * width);
  return {KernelClass::kVector, 2 * n, n * static_cast<double>(12 + dtype_bytes(dtype))};
}
inline Cost gated_add_backward_cost(void*, float*, float*, float*, const float*, const void*, const float*,
                                    int64_t rows, int64_t width, int64_t, int64_t, DType dtype) {
  const double n = static_cast<double>(rows * width);
  return {KernelClass::kVector, 4 * n, n * static_cast<double>(4 + 2 * dtype_bytes(dtype))};
}

inline constexpr Kernel<ModulationForward> modulation_forward{"modulation_forward", &cpu::modulation_forward,
                                                              &cuda::modulation_forward, &modulation_forward_cost};
inline constexpr Kernel<ModulationBackward> modulation_backward{
    "modulation_backward", &cpu::modulation_backward, &cuda::modulation_backward, &modulation_backward_cost};
inline constexpr Kernel<GatedAddForward> gated_add_forward{"gated_add_forward", &cpu::gated_add_forward,
                                                           &cuda::gated_add_forward, &gated_add_forward_cost};
inline constexpr Kernel<GatedAddBackward> gated_add_backward{"gated_add_backward", &cpu::gated_add_backward,
                                                             &cuda::gated_add_backward, &gated_add_backward_cost};

}  // namespace megaslide
