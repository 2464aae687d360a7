// The five products of kernel B in fp32 vectors, for fp32 tensors and for bf16 ones on processors without a tile unit:
// as those of dsa_halo.h, with rows of operands padded to 16 numbers and nothing rounded.
#pragma once
#include <cstdint>

#include "kernels/dsa/dsa_halo.h"
#include "tensor/dtype.h"

namespace megaslide {

int64_t dsa_vector_scratch(const DsaHalo& halo, int64_t width);  // bytes
// plane (plane keys, width): one packing for both products.
void dsa_vector_pack(float* plane, const void* tensor, int64_t stride, int64_t d, const DsaHalo& halo, int64_t index,
                     DType dtype);
void dsa_vector_scores(float* scores, int64_t row, int64_t m, const float* a, const void* const* planes, int64_t d,
                       const DsaHalo& halo, void* scratch);
void dsa_vector_weigh(float* result, const float* weights, int64_t row, int64_t m, const void* const* planes, int64_t d,
                      const DsaHalo& halo);
void dsa_vector_keep(float* kept, const float* weights, int64_t row, const DsaHalo& halo);  // (32, plane keys)
void dsa_vector_outer(float* sums, const float* kept, const float* b, int64_t count, int64_t d, const DsaHalo& halo,
                      bool accumulate);
// gradient[key][c] += sums[key][c] over one plane; sums (plane keys, width).
void dsa_vector_add(float* gradient, int64_t stride, const float* sums, int64_t width, int64_t d, const DsaHalo& halo,
                    int64_t index);
// a = x as fp32, zeros up to width.
void dsa_vector_widen(float* a, const void* x, int64_t d, int64_t width, DType dtype);
// Σ x · y
float dsa_vector_dot(const float* x, const float* y, int64_t d);
// out = x · factor, d numbers. False where one is not finite.
bool dsa_vector_store(float* out, const float* x, float factor, int64_t d);

}  // namespace megaslide
