// AdamW with decoupled weight decay (Loshchilov & Hutter, ICLR 2019), in torch.optim.AdamW's order of operations, over
// host memory. A pure function of (state, gradient, step): the same bits whatever the instruction set, the position in
// the array and the number of threads.
//
//   ĝ = clip·g
//   p = p − (lr·wd)·p
//   m = β1·m + (1−β1)·ĝ
//   v = β2·v + ((1−β2)·ĝ)·ĝ
//   p = p − lr/(1−β1^s) · ( m / ( sqrt(v)/sqrt(1−β2^s) + ε ) )
//
// Coefficients are formed in fp64 and rounded once to fp32; each "a·b ± c" above is one fused multiply-add; square root
// and division are IEEE. A NaN result is stored as 0x7fc00000, since processors differ in which NaN they make.
//
// Master codecs. `fp32`: the master p is stored and its bf16 weight w beside it. `split`: the weight w and a signed
// 16-bit remainder r, with bits(p) = (bits(w) << 16) + r for every bit pattern. w is p rounded to the nearest bf16, and
// away from zero where p lies exactly between two: with ties to even, an even w would stand for 65,537 masters, one
// more than r can tell apart. Both codecs round so, and give equal (p, w, m, v). Whoever derives w from p uses
// master_weight().
#pragma once
#include <bit>
#include <cstdint>

#include "base/thread_pool.h"
#include "tensor/dtype.h"

namespace megaslide {

struct AdamWStep {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  int64_t step = 1;  // counts from 1
  float clip = 1;  // factor on the gradient
};

// The bf16 weight of a master, and what `split` keeps beside it. A NaN whose upper bits are 0x7fff8000 or more gives a
// weight of ±0: updates never make one.
inline bf16 master_weight(float p) { return {static_cast<uint16_t>((std::bit_cast<uint32_t>(p) + 0x8000U) >> 16)}; }
inline int16_t master_remainder(float p) { return static_cast<int16_t>(std::bit_cast<uint32_t>(p) & 0xffffU); }
inline float join_master(bf16 w, int16_t r) {
  return std::bit_cast<float>((uint32_t{w.bits} << 16) + static_cast<uint32_t>(int32_t{r}));
}

// One update of n parameters in place. `gradient` is BF16 or F32.
void adamw_update_split(ThreadPool& pool, bf16* w, int16_t* r, float* m, float* v, const void* gradient,
                        DType gradient_dtype, int64_t n, const AdamWStep& step);
// w may be nullptr: then no bf16 weight is kept.
void adamw_update_fp32(ThreadPool& pool, float* p, bf16* w, float* m, float* v, const void* gradient,
                       DType gradient_dtype, int64_t n, const AdamWStep& step);

// Σ g² in fp64. Lane i mod 16 of each block of 16,384 elements is summed in order, lanes and blocks by fixed trees.
// Infinite or NaN where an element is. `gradient` is BF16 or F32.
double squared_norm(ThreadPool& pool, const void* gradient, DType gradient_dtype, int64_t n);

// n masters to weights and remainders, and back; weights alone.
void split_master(ThreadPool& pool, bf16* w, int16_t* r, const float* p, int64_t n);
void join_master(ThreadPool& pool, float* p, const bf16* w, const int16_t* r, int64_t n);
void round_master(ThreadPool& pool, bf16* w, const float* p, int64_t n);

// Gradients to the codec in which they return to the host: to nearest, ties to even, the bits of to_bf16().
void convert_gradient(ThreadPool& pool, bf16* out, const float* in, int64_t n);

// The specification, one element at a time, on the calling thread. The functions above give these bits.
namespace plain {
void adamw_update_split(bf16* w, int16_t* r, float* m, float* v, const void* gradient, DType gradient_dtype, int64_t n,
                        const AdamWStep& step);
void adamw_update_fp32(float* p, bf16* w, float* m, float* v, const void* gradient, DType gradient_dtype, int64_t n,
                       const AdamWStep& step);
double squared_norm(const void* gradient, DType gradient_dtype, int64_t n);
}  // namespace plain

}  // namespace megaslide
