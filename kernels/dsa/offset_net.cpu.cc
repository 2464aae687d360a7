#include "kernels/dsa/offset_net.h"

#include <algorithm>
#include <vector>

#include "kernels/attention/scratch.h"
#include "kernels/dsa/offset_net_pieces.h"

namespace megaslide {
namespace {

constexpr int64_t kChunk = 64;     // tokens of a row-wise piece
constexpr int64_t kChannels = 16;  // channels of a column-wise piece

int64_t rows(const OffsetNetShape& s) { return s.batch * s.tokens(); }
int64_t chunks(const OffsetNetShape& s) { return (rows(s) + kChunk - 1) / kChunk; }

struct BackwardWorkspace {
  BackwardWorkspace(Carver& c, const OffsetNetShape& s)
      : dy(c.take<float>(rows(s) * s.channels)), partial(c.take<float>(chunks(s) * 3 * s.channels)) {}
  float* dy;       // (B,N,C): gradient at the convolution's output
  float* partial;  // (chunks, 3, C): sums over a chunk for dnorm_weight, dnorm_bias, dconv_bias
};

// The parameters in fp32, the convolution's as [27][C].
OffsetNetParams widen_params(std::vector<float>& memory, const OffsetNetShape& s, const void* conv_weight,
                             const void* conv_bias, const void* norm_weight, const void* norm_bias) {
  const size_t c = static_cast<size_t>(s.channels);
  memory.assign(57 * c, 0.0f);
  float *conv = memory.data(), *raw = conv + 30 * c;
  OffsetNetParams p{conv, conv + 27 * c, conv + 28 * c, conv + 29 * c};
  convert_to_f32(raw, conv_weight, s.weight_dtype, 27 * s.channels);
  for (size_t i = 0; i < c; ++i)
    for (size_t k = 0; k < 27; ++k) conv[k * c + i] = raw[i * 27 + k];
  if (conv_bias != nullptr) convert_to_f32(conv + 27 * c, conv_bias, s.weight_dtype, s.channels);
  convert_to_f32(conv + 28 * c, norm_weight, s.weight_dtype, s.channels);
  convert_to_f32(conv + 29 * c, norm_bias, s.weight_dtype, s.channels);
  return p;
}

}  // namespace

int64_t offset_net_backward_workspace_bytes(const OffsetNetShape& shape) {
  Carver c;
  BackwardWorkspace(c, shape);
  return c.used();
}

Cost offset_net_forward_cost(void*, float*, const void*, const void*, const void*, const void*, const void*,
                             OffsetNetShape s) {
  // 27 multiply-adds, and about 30 operations of norm and GELU, a value.
  const double n = static_cast<double>(rows(s)) * static_cast<double>(s.channels);
  return {KernelClass::kVector, 84 * n,
          n * static_cast<double>(dtype_bytes(s.x_dtype) + dtype_bytes(s.out_dtype) + 4)};
}
Cost offset_net_backward_cost(float*, float*, float*, float*, float*, const float*, const float*, const void*,
                              const void*, const void*, const void*, void*, OffsetNetShape s) {
  const double n = static_cast<double>(rows(s)) * static_cast<double>(s.channels);
  return {KernelClass::kVector, 158 * n, n * static_cast<double>(dtype_bytes(s.x_dtype) + 7 * 4)};
}

namespace cpu {

void offset_net_forward(Stream& stream, void* g, float* conv_out, const void* x, const void* conv_weight,
                        const void* conv_bias, const void* norm_weight, const void* norm_bias, OffsetNetShape s) {
  std::vector<float> memory;
  const OffsetNetParams p = widen_params(memory, s, conv_weight, conv_bias, norm_weight, norm_bias);
  stream.parallel_for(rows(s), kChunk, [&](int64_t begin, int64_t end) {
    offset_net_forward_piece(g, conv_out, x, p, s, begin, end);
  });
}

void offset_net_backward(Stream& stream, float* dx, float* dconv_weight, float* dconv_bias, float* dnorm_weight,
                         float* dnorm_bias, const float* dg, const float* conv_out, const void* x,
                         const void* conv_weight, const void* norm_weight, const void* norm_bias, void* workspace,
                         OffsetNetShape s) {
  std::vector<float> memory;
  const OffsetNetParams p = widen_params(memory, s, conv_weight, nullptr, norm_weight, norm_bias);
  Carver carver(workspace);
  const BackwardWorkspace w(carver, s);
  const int64_t c = s.channels;
  stream.parallel_for(rows(s), kChunk, [&](int64_t begin, int64_t end) {
    offset_net_norm_piece(w.dy, w.partial + begin / kChunk * 3 * c, dg, conv_out, p, s, begin, end);
  });
  stream.parallel_for(c, 64, [&](int64_t begin, int64_t end) {  // chunks in order
    float* const sums[3] = {dnorm_weight, dnorm_bias, dconv_bias};
    for (int64_t i = 0; i < chunks(s); ++i)
      for (int k = 0; k < 3; ++k)
        for (int64_t j = begin; j < end; ++j) sums[k][j] += w.partial[(i * 3 + k) * c + j];
  });
  stream.parallel_for(rows(s), kChunk, [&](int64_t begin, int64_t end) {
    offset_net_input_piece(dx, w.dy, p, s, begin, end);
  });
  stream.parallel_for(c, kChannels, [&](int64_t begin, int64_t end) {
    offset_net_weight_piece(dconv_weight, w.dy, x, s, begin, end);
  });
}

}  // namespace cpu
}  // namespace megaslide
