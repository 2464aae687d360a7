// Products of bf16 operands on processors without bf16 arithmetic: panels are widened to fp32 in the thread's scratch
// and multiplied there. Products of two bf16 numbers are exact in fp32, so only the order of sums differs.
#pragma once
#include "tensor/dtype.h"

namespace megaslide::gemm {

// All on the calling thread; w is the plain weight (N,K).
// y (rows,N) = x (rows,K) · Wᵀ + bias; bias may be nullptr.
void widened_forward(float* y, const bf16* x, const bf16* w, const bf16* bias, int64_t rows, int64_t n, int64_t k);
// dx (rows,K) = or += dy (rows,N) · W.
void widened_input_gradient(float* dx, const bf16* dy, const bf16* w, int64_t rows, int64_t n, int64_t k,
                            bool accumulate);
// One piece (pn, pk) of dw. dy (M,N) and x (M,K) start at the piece's columns.
void widened_weight_gradient(float* dw, const bf16* dy, const bf16* x, int64_t m, int64_t n, int64_t k, int64_t pn,
                             int64_t pk);

}  // namespace megaslide::gemm
