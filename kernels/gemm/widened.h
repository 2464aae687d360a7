// Products of bf16 operands on processors without bf16 arithmetic: panels are widened to fp32 in the thread's scratch
// and multiplied there. Products of two bf16 numbers are exact in fp32, so only the order of sums differs.
#pragma once
#include "kernels/stream.h"
#include "tensor/dtype.h"

namespace megaslide::gemm {

// As the kernels of gemm.h; w is the plain weight (N,K).
void widened_forward(Stream& stream, float* y, const void* x, const void* w, const void* bias, int64_t m, int64_t n,
                     int64_t k);
void widened_input_gradient(Stream& stream, float* dx, const void* dy, const void* w, int64_t m, int64_t n, int64_t k,
                            bool accumulate);
// One piece (pn, pk) of dw, on the calling thread. dy (M,N) and x (M,K) start at the piece's columns.
void widened_weight_gradient(float* dw, const bf16* dy, const bf16* x, int64_t m, int64_t n, int64_t k, int64_t pn,
                             int64_t pk);

}  // namespace megaslide::gemm
