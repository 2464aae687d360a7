// C entry points for compare_attention.py: dense attention and DSA of one sample.
#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/dsa/dsa.h"

using namespace megaslide;

namespace {

struct Runner {
  explicit Runner(int threads) : stream(threads) {}
  void* workspace(int64_t bytes) {
    if (static_cast<int64_t>(memory.size()) * 64 < bytes) memory.resize(static_cast<size_t>((bytes + 63) / 64));
    return memory.data();
  }
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  InlineStream stream;
  std::vector<Line> memory;
};

DType type_of(int bf16) { return bf16 != 0 ? DType::kBF16 : DType::kF32; }

// dims: T, H, W, heads, head_dim, groups, k_t, k_h, k_w, mode (0 full, 1 slice, 2 rigid).
DsaShape dsa_shape(const int* dims, const float* reach, float scale) {
  DsaShape s;
  s.frames = dims[0], s.height = dims[1], s.width = dims[2], s.heads = dims[3], s.head_dim = dims[4], s.groups = dims[5];
  for (int a = 0; a < 3; ++a) s.kernel[a] = dims[6 + a], s.reach[a] = reach[a];
  s.mode = static_cast<DsaOffsetMode>(dims[9]);
  s.scale = scale;
  return s;
}

}  // namespace

extern "C" {

void* ms_runner(int threads) { return new Runner(threads); }
// 0 the best there is, 1 gather, 2 tile.
void ms_dsa_kernel(int which) { limit_dsa_kernel(static_cast<DsaKernel>(which)); }

void ms_dense_forward(void* runner, float* out, float* lse, const void* q, const void* k, const void* v, int64_t tokens,
                      int heads, int head_dim, float scale, int bf16) {
  auto& r = *static_cast<Runner*>(runner);
  const AttentionShape s{.batch = 1, .queries = tokens, .keys = tokens, .heads = heads, .head_dim = head_dim, .scale = scale};
  const DType t = type_of(bf16);
  dense_attention_forward(r.stream, out, lse, q, k, v, r.workspace(dense_attention_forward_workspace_bytes(s, t)), s, t);
}
void ms_dense_backward(void* runner, float* dq, float* dk, float* dv, const void* q, const void* k, const void* v,
                       const float* out, const float* lse, const float* dout, int64_t tokens, int heads, int head_dim,
                       float scale, int bf16) {
  auto& r = *static_cast<Runner*>(runner);
  const AttentionShape s{.batch = 1, .queries = tokens, .keys = tokens, .heads = heads, .head_dim = head_dim, .scale = scale};
  const DType t = type_of(bf16);
  dense_attention_backward(r.stream, dq, dk, dv, q, k, v, out, lse, dout,
                           r.workspace(dense_attention_backward_workspace_bytes(s, t)), s, t);
}
void ms_dsa_forward(void* runner, float* out, float* lse, const void* q, const void* k, const void* v,
                    const float* offsets, const int* dims, const float* reach, float scale, int bf16) {
  auto& r = *static_cast<Runner*>(runner);
  const DsaShape s = dsa_shape(dims, reach, scale);
  const DType t = type_of(bf16);
  dsa_forward(r.stream, out, lse, q, k, v, offsets, r.workspace(dsa_forward_workspace_bytes(s, t)), s, t);
}
void ms_dsa_backward(void* runner, float* dq, float* dk, float* dv, float* doffsets, const void* q, const void* k,
                     const void* v, const float* offsets, const float* out, const float* lse, const float* dout,
                     const int* dims, const float* reach, float scale, int bf16) {
  auto& r = *static_cast<Runner*>(runner);
  const DsaShape s = dsa_shape(dims, reach, scale);
  const DType t = type_of(bf16);
  dsa_backward(r.stream, dq, dk, dv, doffsets, q, k, v, offsets, out, lse, dout,
               r.workspace(dsa_backward_workspace_bytes(s, t)), s, t);
}
}
