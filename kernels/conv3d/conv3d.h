// Causal convolutions of a video autoencoder, one output frame at a time (spec wan.md C.2): a tap along time is a frame
// of its own, so that a stream of frames needs no copy of its history, and a frame that does not exist is skipped.
//
//   u[y,x,:] = b + Σ_{t,i,j} W[:,:,t,i,j] · frame_t[s·y + dy + i, s·x + dx + j, :]  (+ residual)  (+ residual2)
//   raw = u,   normed = SiLU( γ · √C · u / max(‖u‖, 1e-12) )
//
// Both results are optional; a norm without SiLU is for attention. With `slope`, u is first slope · u where it is below 0.
// Sums are fp32 in one order for every output alike: a result depends neither on the threads nor on where in the frame or
// clip its cell lies. On a GPU the norm takes u as `raw` keeps it, rounded where frames are bf16.
//
// fp32 frames on a processor with AMX: numbers are three bf16 parts there, six products of parts are taken (gemm/split_linear.h),
// weights take 6 bytes each. Results are as near to the exact ones as those of fp32 products, in under half their time.
// Magnitudes below 2^-100 may count as 0; those above 2^127 become NaN, as do infinities.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/conv3d/frame.h"
#include "kernels/kernel.h"

namespace megaslide {

inline constexpr int kConvMaxFrames = 3;

struct ConvShape {
  int64_t in = 0, out = 0;  // channels
  int64_t kt = 1, kh = 1, kw = 1;
  MS_HOST_DEVICE int64_t taps() const { return kt * kh * kw; }
  int64_t weights() const { return in * out * taps(); }
};

// What happens to a frame of sums on its way to memory. Vectors are padded with zeros to a multiple of kConvPanel.
struct FrameFinish {
  FrameLayout out;                 // of every frame below
  int64_t step = 1, y = 0, x = 0;  // result (r,c) is cell (step·r + y, step·c + x): upsampling by phases
  const float* bias = nullptr;     // (C)
  const void* residual = nullptr;
  const void* residual2 = nullptr;
  const float* slope = nullptr;  // (C), of convolutions alone: zeros are a ReLU
  void* raw = nullptr;
  void* normed = nullptr;
  const float* gamma = nullptr;  // (C), with `normed`
  bool silu = true;
};

struct FrameConv {
  ConvShape shape;
  const void* packed = nullptr;  // conv_pack's, for in.dtype
  FrameLayout in;
  const void* frames[kConvMaxFrames] = {};  // kt of them, oldest first; nullptr is a frame of zeros, the last is none
  int64_t stride = 1, dy = 0, dx = 0;
  int64_t rows = 0, columns = 0;  // of results
  FrameFinish finish;
};

// Weights W (out,in,kt,kh,kw) fp32 re-laid for this processor's unit (kernels/tile/unit.h), rounded to bf16 for kBF16.
// Read by this process only. `packed` is 64-byte aligned. `target`: kCpu or kCuda, whose form it is.
int64_t conv_packed_bytes(const ConvShape& shape, DType dtype, Backend target = Backend::kCpu);
using ConvPack = void(Stream&, void* packed, const float* w, ConvShape shape, DType dtype);

using FrameConvForward = void(Stream&, FrameConv call);

// The same finish for a frame that is there already: raw and normed of `in` (layout finish.out).
using FrameFinishForward = void(Stream&, const void* in, FrameFinish finish);

namespace cpu {
ConvPack conv_pack;
FrameConvForward frame_conv;
FrameFinishForward frame_finish;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL ConvPack conv_pack;
MS_OPTIONAL FrameConvForward frame_conv;
MS_OPTIONAL FrameFinishForward frame_finish;
}  // namespace cuda

// The plain twin: fp64 sums, one cell after the other; w as conv_pack takes it.
namespace reference {
void frame_conv(const FrameConv& call, const float* w);
}

// Nearest ×2 upsampling in front of a 3×3 convolution with padding 1, folded: output (2y+a, 2x+b) sees 2×2 cells of the
// input, (y−1+a+i, x−1+b+j). Phase (a,b) at folded + (2a+b)·in·out·4 holds W'(out,in,1,2,2), sums of up to four weights
// in fp32: equal in exact arithmetic.
void fold_upsample(float* folded, const float* w /*(out,in,3,3)*/, int64_t out, int64_t in);

namespace conv3d {
// Cells of a piece: results are computed in bands of whole rows or parts of a row.
struct Bands {
  int64_t rows, columns;  // of a piece
  int64_t down, across;   // pieces
};
Bands bands(int64_t rows, int64_t columns);
}  // namespace conv3d

inline Cost conv_pack_cost(void*, const float*, ConvShape s, DType dtype) {
  return {KernelClass::kPack, 0, static_cast<double>(s.weights()) * static_cast<double>(4 + dtype_bytes(dtype))};
}
inline Cost frame_conv_cost(FrameConv c) {
  const auto cells = static_cast<double>(c.rows * c.columns), w = static_cast<double>(c.shape.weights());
  const auto e = static_cast<double>(dtype_bytes(c.in.dtype));
  return {KernelClass::kGemm, 2 * cells * w,
          e * (w + cells * static_cast<double>(c.shape.kt * c.shape.in * c.stride * c.stride + 2 * c.shape.out))};
}
inline Cost frame_finish_cost(const void*, FrameFinish f) {
  return {KernelClass::kVector, 0, 3.0 * static_cast<double>(f.out.bytes())};
}

inline constexpr Kernel<ConvPack> conv_pack{"conv_pack", &cpu::conv_pack, &cuda::conv_pack, &conv_pack_cost};
inline constexpr Kernel<FrameConvForward> frame_conv{"frame_conv", &cpu::frame_conv, &cuda::frame_conv, &frame_conv_cost};
inline constexpr Kernel<FrameFinishForward> frame_finish{"frame_finish", &cpu::frame_finish, &cuda::frame_finish,
                                                         &frame_finish_cost};

}  // namespace megaslide
