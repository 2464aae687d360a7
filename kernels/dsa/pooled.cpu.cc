#include "kernels/dsa/pooled.h"

#include <algorithm>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/scratch.h"

namespace megaslide {
namespace {

AttentionShape tile_attention(const PooledShape& s) {
  return {s.batch, s.tiles(), s.tiles(), s.heads, s.head_dim, s.scale};
}
int64_t pooled_elements(const PooledShape& s) { return s.batch * s.tiles() * s.heads * s.head_dim; }

struct Saved {
  template <class P>
  static auto parts(P* base, const PooledShape& s) {
    const int64_t n = pooled_elements(s);
    struct R { P *q, *k, *v, *out, *lse; };
    return R{base, base + n, base + 2 * n, base + 3 * n, base + 4 * n};
  }
};

struct BackwardWorkspace {
  BackwardWorkspace(Carver& c, const PooledShape& s)
      : dout(c.take<float>(pooled_elements(s))), dq(c.take<float>(pooled_elements(s))),
        dk(c.take<float>(pooled_elements(s))), dv(c.take<float>(pooled_elements(s))),
        attention(c.take<std::byte>(dense_attention_backward_workspace_bytes(tile_attention(s), DType::kF32))) {}
  float *dout, *dq, *dk, *dv;
  std::byte* attention;
};

// The tokens of a tile. body(row of (B·N) tokens).
template <class F>
void for_tile(const PooledShape& s, int64_t batch, int64_t tile, F body) {
  const int64_t nh = (s.height + s.tile[1] - 1) / s.tile[1], nw = (s.width + s.tile[2] - 1) / s.tile[2];
  const int64_t t0 = tile / (nh * nw) * s.tile[0], h0 = tile / nw % nh * s.tile[1], w0 = tile % nw * s.tile[2];
  for (int64_t t = t0; t < std::min(t0 + s.tile[0], s.frames); ++t)
    for (int64_t h = h0; h < std::min(h0 + s.tile[1], s.height); ++h)
      for (int64_t w = w0; w < std::min(w0 + s.tile[2], s.width); ++w)
        body(batch * s.tokens() + (t * s.height + h) * s.width + w);
}

template <class T>
void average(float* mean, const T* tensor, const PooledShape& s, int64_t batch, int64_t tile) {
  const int64_t c = s.heads * s.head_dim;
  std::fill(mean, mean + c, 0.0f);
  float count = 0;
  for_tile(s, batch, tile, [&](int64_t row) {
    for (int64_t i = 0; i < c; ++i) mean[i] += to_float(tensor[row * c + i]);
    count += 1;
  });
  for (int64_t i = 0; i < c; ++i) mean[i] /= count;
}

void average(float* mean, const void* tensor, DType dtype, const PooledShape& s, int64_t batch, int64_t tile) {
  dtype == DType::kBF16 ? average(mean, static_cast<const bf16*>(tensor), s, batch, tile)
                        : average(mean, static_cast<const float*>(tensor), s, batch, tile);
}

std::vector<float> widen_gate(const void* gate, const PooledShape& s) {
  std::vector<float> g(static_cast<size_t>(s.heads));
  convert_to_f32(g.data(), gate, s.gate_dtype, s.heads);
  return g;
}

double token_elements(const PooledShape& s) {
  return static_cast<double>(s.batch) * static_cast<double>(s.tokens()) * static_cast<double>(s.heads * s.head_dim);
}
double attention_flops(const PooledShape& s) {
  return static_cast<double>(pooled_elements(s)) * static_cast<double>(s.tiles());
}

}  // namespace

int64_t pooled_workspace_bytes(const PooledShape& s) {
  Carver backward;
  BackwardWorkspace(backward, s);
  return std::max(dense_attention_forward_workspace_bytes(tile_attention(s), DType::kF32), backward.used());
}

Cost pooled_forward_cost(float*, float*, const void*, const void*, const void*, const void*, void*, PooledShape s,
                         DType t) {
  const double n = token_elements(s);
  return {KernelClass::kAttention, 5 * n + 4 * attention_flops(s), n * (3.0 * static_cast<double>(dtype_bytes(t)) + 8)};
}
Cost pooled_backward_cost(float*, float*, float*, float*, const float*, const void*, const float*, void*,
                          PooledShape s) {
  const double n = token_elements(s);
  return {KernelClass::kAttention, 6 * n + 10 * attention_flops(s), n * 28};
}

namespace cpu {

void pooled_forward(Stream& stream, float* out, float* saved, const void* q, const void* k, const void* v,
                    const void* gate, void* workspace, PooledShape s, DType dtype) {
  const auto x = Saved::parts(saved, s);
  const int64_t tiles = s.tiles(), c = s.heads * s.head_dim;
  stream.parallel_for(s.batch * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      average(x.q + i * c, q, dtype, s, i / tiles, i % tiles);
      average(x.k + i * c, k, dtype, s, i / tiles, i % tiles);
      average(x.v + i * c, v, dtype, s, i / tiles, i % tiles);
    }
  });
  dense_attention_forward(stream, x.out, x.lse, x.q, x.k, x.v, workspace, tile_attention(s), DType::kF32);
  const std::vector<float> g = widen_gate(gate, s);
  stream.parallel_for(s.batch * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for_tile(s, i / tiles, i % tiles, [&](int64_t row) {
        for (int64_t h = 0; h < s.heads; ++h)
          for (int64_t e = h * s.head_dim; e < (h + 1) * s.head_dim; ++e)
            out[row * c + e] += g[static_cast<size_t>(h)] * x.out[i * c + e];
      });
  });
}

void pooled_backward(Stream& stream, float* dq, float* dk, float* dv, float* dgate, const float* saved,
                     const void* gate, const float* dout, void* workspace, PooledShape s) {
  const auto x = Saved::parts(saved, s);
  Carver carver(workspace);
  const BackwardWorkspace w(carver, s);
  const int64_t tiles = s.tiles(), c = s.heads * s.head_dim;
  stream.parallel_for(s.batch * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {  // Σ of dout over the tile; the gate comes in below
      std::fill(w.dout + i * c, w.dout + (i + 1) * c, 0.0f);
      for_tile(s, i / tiles, i % tiles, [&](int64_t row) {
        for (int64_t e = 0; e < c; ++e) w.dout[i * c + e] += dout[row * c + e];
      });
    }
  });
  const std::vector<float> g = widen_gate(gate, s);
  stream.parallel_for(s.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) {
      double sum = 0;  // many cancelling terms
      for (int64_t i = 0; i < s.batch * tiles; ++i)
        for (int64_t e = h * s.head_dim; e < (h + 1) * s.head_dim; ++e) {
          sum += static_cast<double>(w.dout[i * c + e]) * x.out[i * c + e];
          w.dout[i * c + e] *= g[static_cast<size_t>(h)];
        }
      dgate[h] += static_cast<float>(sum);
    }
  });
  dense_attention_backward(stream, w.dq, w.dk, w.dv, x.q, x.k, x.v, x.out, x.lse, w.dout, w.attention,
                           tile_attention(s), DType::kF32);
  stream.parallel_for(s.batch * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float count = 0;
      for_tile(s, i / tiles, i % tiles, [&](int64_t) { count += 1; });
      for_tile(s, i / tiles, i % tiles, [&](int64_t row) {
        for (int64_t e = 0; e < c; ++e) {
          dq[row * c + e] += w.dq[i * c + e] / count;
          dk[row * c + e] += w.dk[i * c + e] / count;
          dv[row * c + e] += w.dv[i * c + e] / count;
        }
      });
    }
  });
}

}  // namespace cpu
}  // namespace megaslide
