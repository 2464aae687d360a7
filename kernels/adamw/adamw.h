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
// and division are IEEE. A NaN result is stored as 0x7fc00000, since processors differ in which NaN they make. The
// state is decoded to fp32, updated and encoded; p is computed with the moments as they are before they are encoded.
#pragma once
#include <bit>
#include <cstdint>

#include "base/host_device.h"
#include "kernels/kernel.h"
#include "tensor/dtype.h"
#include "tensor/moment_levels.h"

namespace megaslide {

// Where the master p lies. `fp32`: p is stored and its bf16 weight w beside it. `split`: the weight w and a signed
// 16-bit remainder r, with bits(p) = (bits(w) << 16) + r for every bit pattern. w is p rounded to the nearest bf16, and
// away from zero where p lies exactly between two: with ties to even, an even w would stand for 65,537 masters, one
// more than r can tell apart. Both codecs round so, and give equal (p, w, m, v). Whoever derives w from p uses
// master_weight(). `bf16-sr`: the weight is the master; p is rounded to it stochastically, so that steps far below half
// an ulp of it count by their mean.
enum class MasterCodec { kSplit, kFp32, kBf16Sr };

// Where m and v lie. `fp32`: as they are. `bf16`: rounded stochastically. `int8`: blocks of 256 consecutive elements of
// the array, the last of them shorter, with a scale each for m and v:
//
//   m = s·sign(q)·(q/127)²        q in [−127, 127],  s = max |m|
//   sqrt(v) = s·(q/255)²          q in [0, 255],     s = max sqrt(v);  q > 0 unless v = 0
//
// rounded stochastically by the value of q, which is whole for the block's largest value. A scale other than 0 is at
// least 2^−100 (m) or 2^−46 (v), which keeps what is decoded from underflow. A block with a value that is not finite
// has the scale NaN and decodes to NaN throughout.
//
// Rounding is stochastic because to nearest the moments get stuck: a step takes (1−β2)/2 of sqrt(v), less than half the
// distance between neighbours. In tests/adamw/convergence_test.cc, in parts of the fp32 state's figure over four seeds:
//
//                                                            stochastic       to nearest
//   bf16 v, gradients fall to 1%: sqrt(v) afterwards         0.99 … 1.00      4.6
//   int8 v, the same: loss of the parameters beside them     0.98 … 1.03      3.3 … 3.6
//   int8 m, gradients end: distance moved afterwards         1.01 … 1.03      2.4 … 3.7
enum class MomentCodec { kFp32, kBf16, kInt8 };

struct AdamWStep {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  int64_t step = 1;  // counts from 1
  float clip = 1;    // factor on the gradient
  // Of stochastic rounding: its random bits are a function of (seed, step, index of the element).
  uint64_t seed = 0;
  uint64_t first = 0;  // index of element 0 of the arrays, below 2^59; distinct elements of a model have distinct ones
};

// The arrays of n elements. Those that a codec does not have are not looked at.
struct AdamWState {
  MasterCodec masters = MasterCodec::kSplit;
  MomentCodec moments = MomentCodec::kFp32;
  float* p = nullptr;    // kFp32
  bf16* w = nullptr;     // all; may be nullptr with kFp32: then no bf16 weight is kept
  int16_t* r = nullptr;  // kSplit
  void* m = nullptr;     // float, bf16 or int8_t
  void* v = nullptr;     // float, bf16 or uint8_t
  float* m_scale = nullptr;  // kInt8, moment_blocks(n)
  float* v_scale = nullptr;
};

// The bf16 weight of a master, and what `split` keeps beside it. A NaN whose upper bits are 0x7fff8000 or more gives a
// weight of ±0: updates never make one.
MS_HOST_DEVICE inline bf16 master_weight(float p) { return {static_cast<uint16_t>((std::bit_cast<uint32_t>(p) + 0x8000U) >> 16)}; }
MS_HOST_DEVICE inline int16_t master_remainder(float p) { return static_cast<int16_t>(std::bit_cast<uint32_t>(p) & 0xffffU); }
MS_HOST_DEVICE inline float join_master(bf16 w, int16_t r) {
  return std::bit_cast<float>((uint32_t{w.bits} << 16) + static_cast<uint32_t>(int32_t{r}));
}

// Bytes of m or v of n elements, and of its scales.
constexpr int64_t moment_bytes(MomentCodec c, int64_t n) {
  return c == MomentCodec::kFp32 ? 4 * n : c == MomentCodec::kBf16 ? 2 * n : n;
}
constexpr int64_t moment_scale_bytes(MomentCodec c, int64_t n) {
  return c == MomentCodec::kInt8 ? moment_blocks(n) * static_cast<int64_t>(sizeof(float)) : 0;
}
// Bytes a parameter: of both moments; of the master beside the bf16 weight.
constexpr double moment_bytes_each(MomentCodec c) {
  return static_cast<double>(moment_bytes(c, kMomentBlock) + moment_scale_bytes(c, kMomentBlock)) * 2 / kMomentBlock;
}
constexpr int64_t master_bytes_each(MasterCodec c) {
  return c == MasterCodec::kFp32 ? 4 : c == MasterCodec::kSplit ? 2 : 0;
}
// Bytes a parameter that an update reads and writes: the state, the weight (only written where masters are fp32) and
// the gradient.
constexpr double update_bytes_each(MasterCodec masters, MomentCodec moments, int64_t gradient_bytes,
                                   bool has_weight = true) {
  const int64_t weight = masters != MasterCodec::kFp32 ? 4 : has_weight ? 2 : 0;
  return 2 * moment_bytes_each(moments) +
         static_cast<double>(2 * master_bytes_each(masters) + weight + gradient_bytes);
}

// One update of n parameters in place. `gradient` is BF16 or F32.
void adamw_update(ThreadPool& pool, const AdamWState& state, const void* gradient, DType gradient_dtype, int64_t n,
                  const AdamWStep& step);

// The same as a kernel of a device in whose memory state, gradient and `factor` lie. The factor takes the place of
// step.clip; where it is NaN the state stays as it is.
using AdamWByFactor = void(Stream&, AdamWState state, const void* gradient, DType gradient_dtype, int64_t n,
                           AdamWStep step, const float* factor);
namespace cpu {
AdamWByFactor adamw_by_factor;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL AdamWByFactor adamw_by_factor;
}  // namespace cuda
inline Cost adamw_by_factor_cost(AdamWState a, const void*, DType gradient_dtype, int64_t n, AdamWStep, const float*) {
  const auto elements = static_cast<double>(n);
  return {KernelClass::kUpdate, 15 * elements,
          elements * update_bytes_each(a.masters, a.moments, dtype_bytes(gradient_dtype), a.w != nullptr)};
}
inline constexpr Kernel<AdamWByFactor> adamw_by_factor{"adamw", &cpu::adamw_by_factor, &cuda::adamw_by_factor, &adamw_by_factor_cost};

// m and v of n elements from and to fp32, with scales where the codec has them. Encoding is to nearest (bf16: ties to
// even; int8: of the level), so that what was decoded is encoded to the same bits. v is not negative.
void encode_m(ThreadPool& pool, MomentCodec codec, void* m, float* scale, const float* in, int64_t n);
void encode_v(ThreadPool& pool, MomentCodec codec, void* v, float* scale, const float* in, int64_t n);
void decode_m(ThreadPool& pool, MomentCodec codec, float* out, const void* m, const float* scale, int64_t n);
void decode_v(ThreadPool& pool, MomentCodec codec, float* out, const void* v, const float* scale, int64_t n);

// Σ g² in fp64. Lane i mod 16 of each block of 16,384 elements is summed in order, lanes and blocks by fixed trees.
// Infinite or NaN where an element is. `gradient` is BF16 or F32.
double squared_norm(ThreadPool& pool, const void* gradient, DType gradient_dtype, int64_t n);

// n masters to weights and remainders, and back; weights alone.
void split_master(ThreadPool& pool, bf16* w, int16_t* r, const float* p, int64_t n);
void join_master(ThreadPool& pool, float* p, const bf16* w, const int16_t* r, int64_t n);
void round_master(ThreadPool& pool, bf16* w, const float* p, int64_t n);

// Gradients to the codec in which they return to the host: to nearest, ties to even, the bits of to_bf16().
void convert_gradient(ThreadPool& pool, bf16* out, const float* in, int64_t n);

// The specification, one element or block at a time, on the calling thread. The functions above give these bits.
namespace plain {
void adamw_update(const AdamWState& state, const void* gradient, DType gradient_dtype, int64_t n,
                  const AdamWStep& step);
void encode_m(MomentCodec codec, void* m, float* scale, const float* in, int64_t n);
void encode_v(MomentCodec codec, void* v, float* scale, const float* in, int64_t n);
void decode_m(MomentCodec codec, float* out, const void* m, const float* scale, int64_t n);
void decode_v(MomentCodec codec, float* out, const void* v, const float* scale, int64_t n);
double squared_norm(const void* gradient, DType gradient_dtype, int64_t n);
}  // namespace plain

}  // namespace megaslide
