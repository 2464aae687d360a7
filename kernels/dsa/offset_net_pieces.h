// Entry points of the SIMD part of the offset net on the CPU, one call a piece of work.
#pragma once
#include <cstdint>

#include "kernels/dsa/offset_net.h"

namespace megaslide {

// fp32, the convolution's weight as [27][C] with tap (dt·3 + dh)·3 + dw.
struct OffsetNetParams {
  const float *conv_weight, *conv_bias, *norm_weight, *norm_bias;
};

// Rows are tokens of all samples in one sequence, channels are columns.
void offset_net_forward_piece(void* g, float* conv_out, const void* x, const OffsetNetParams& p,
                              const OffsetNetShape& s, int64_t begin, int64_t end);
// dy from dg, and the piece's sums (3,C), overwritten.
void offset_net_norm_piece(float* dy, float* sums, const float* dg, const float* conv_out, const OffsetNetParams& p,
                           const OffsetNetShape& s, int64_t begin, int64_t end);
void offset_net_input_piece(float* dx, const float* dy, const OffsetNetParams& p, const OffsetNetShape& s, int64_t begin,
                            int64_t end);
// Channels [begin, end) of dconv_weight (C,27), accumulated.
void offset_net_weight_piece(float* dconv_weight, const float* dy, const void* x, const OffsetNetShape& s,
                             int64_t begin, int64_t end);

}  // namespace megaslide
