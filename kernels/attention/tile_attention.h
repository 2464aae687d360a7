// Softmax attention of one head on this processor's tile unit: bf16 operands, fp32 sums and softmax, P and dS rounded to
// bf16 as operands of the second products. One call is a piece of work of one thread. Products go over keys and queries
// in ascending blocks whatever the cut into pieces, so forward results do not depend on it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/tile/unit.h"

namespace megaslide {

// Row i of a tensor starts at pointer + i · its stride (elements).
struct TileHead {
  const uint16_t *q, *k, *v;
  int64_t q_stride, k_stride;  // of k and v alike
  int64_t queries, keys, d;
  float scale;
};

struct TileHeadResult {
  float* out;
  int64_t out_stride;
  float* lse;
  int64_t lse_stride;
};
size_t tile_attention_forward_scratch(const TileHead& head);
// Queries [begin, end), begin a multiple of kTileQueries. scratch: 64-byte aligned.
inline constexpr int64_t kTileQueries = 64;
void tile_attention_forward(TileUnit unit, const TileHead& head, int64_t begin, int64_t end,
                            const TileHeadResult& o, void* scratch);

struct TileHeadGradient {
  const float *out, *dout;  // strides as q
  const float* lse;
  int64_t lse_stride;
  float* dq;  // a row every dq_stride
  int64_t dq_stride;
  float *dk, *dv;  // strides as k
};
size_t tile_attention_backward_scratch(const TileHead& head, int64_t begin, int64_t end);
// Keys [begin, end), begin a multiple of kTileKeys: dk and dv of these are overwritten, and dq with what these keys give.
inline constexpr int64_t kTileKeys = 256;
void tile_attention_backward(TileUnit unit, const TileHead& head, int64_t begin, int64_t end,
                             const TileHeadGradient& gradient, void* scratch);

}  // namespace megaslide
