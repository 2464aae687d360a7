// What pooled.h's CUDA entries share; they take heads of up to 256 channels.
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/attention/scratch.h"
#include "kernels/dsa/pooled.h"

namespace megaslide::cuda {

inline AttentionShape tile_attention(const PooledShape& s) { return {s.batch, s.tiles(), s.tiles(), s.heads, s.head_dim, s.scale}; }
inline int64_t pooled_elements(const PooledShape& s) { return s.batch * s.tiles() * s.heads * s.head_dim; }

struct PooledBackwardSpace {
  PooledBackwardSpace(Carver& c, const PooledShape& s)
      : dout(c.take<float>(pooled_elements(s))), dq(c.take<float>(pooled_elements(s))), dk(c.take<float>(pooled_elements(s))),
        dv(c.take<float>(pooled_elements(s))),
        attention(c.take<std::byte>(cuda::dense_attention_backward_workspace_bytes(tile_attention(s), DType::kF32))) {}
  float *dout, *dq, *dk, *dv;
  std::byte* attention;
};

}  // namespace megaslide::cuda
