// Attention of wide heads, or with a bias, in fp32 and without scratch: a block has eight queries of a head, whose scores
// with 32 keys at a time it weighs the values by, and goes through all keys once.
#pragma once
#include <cmath>

#include "kernels/elements.cuh"
#include "kernels/quads.cuh"

namespace megaslide {

constexpr int kRowQueries = 8, kRowKeys = 32, kRowAttentionThreads = 128;
constexpr int kMaxRowHeadDim = 8 * kRowAttentionThreads;

template <class T>
struct RowAttention {
  const T *q, *k, *v;  // of head 0
  int64_t stride;      // elements from a row to the next of all three
  void* out;
  bool out_is_bf16;
  int64_t out_stride;
  int n, head_dim;
  float scale;
};

struct RowAttentionShared {
  float weights[kRowQueries][kRowKeys], shrink[kRowQueries], top[kRowQueries], sum[kRowQueries];
  // (kRowQueries, head_dim), behind this
  __device__ float* q() { return reinterpret_cast<float*>(this + 1); }
};
inline size_t row_attention_shared(int64_t head_dim) {
  return sizeof(RowAttentionShared) + sizeof(float) * static_cast<size_t>(kRowQueries * head_dim);
}

// The scores of 32 keys from `first` on: a warp eight keys, its lanes the channels.
template <class T>
__device__ __forceinline__ void row_scores(RowAttentionShared& s, const RowAttention<T>& a, int64_t head, int first) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const float* q = s.q();
  for (int i = 0; i < kRowKeys / 4; ++i) {
    const int at = warp * (kRowKeys / 4) + i, key = first + at;
    float dot[kRowQueries] = {};
    if (key < a.n) {
      const T* k = a.k + int64_t{key} * a.stride + head;
      for (int c = lane; c < a.head_dim; c += 32) {
        const float x = prim::widen(k[c]);
        MS_UNROLL
        for (int r = 0; r < kRowQueries; ++r) dot[r] = fmaf(x, q[r * a.head_dim + c], dot[r]);
      }
    }
    // Lanes halve the sums that they hold with each exchange: lane 4r ends with that of query r.
    MS_UNROLL
    for (int half = kRowQueries / 2; half > 0; half /= 2)
      MS_UNROLL
      for (int r = 0; r < half; ++r) {
        const bool upper = (lane & (4 * half)) != 0;
        const float mine = upper ? dot[r + half] : dot[r], other = upper ? dot[r] : dot[r + half];
        dot[r] = mine + __shfl_xor_sync(prim::kFullMask, other, 4 * half);
      }
    dot[0] += __shfl_xor_sync(prim::kFullMask, dot[0], 2);
    dot[0] += __shfl_xor_sync(prim::kFullMask, dot[0], 1);
    if (lane % 4 == 0) s.weights[lane / 4][at] = dot[0] * a.scale;
  }
}

// Weights of the scores, by the largest so far; a warp two queries, a lane a key. bias(query, key) is added.
template <class T, class Bias>
__device__ __forceinline__ void row_softmax(RowAttentionShared& s, const RowAttention<T>& a, int first_query, int first, const Bias& bias) {
  const int lane = static_cast<int>(threadIdx.x % 32), key = first + lane;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < kRowQueries; r += kRowAttentionThreads / 32) {
    const float score = key < a.n ? s.weights[r][lane] + bias(first_query + r, key) : -INFINITY;
    const float before = s.top[r], top = fmaxf(before, prim::warp_max(score));
    const float weight = key < a.n ? expf(score - top) : 0.0f;
    const float sum = prim::warp_sum(weight), shrink = expf(before - top);
    s.weights[r][lane] = weight;
    __syncwarp();
    if (lane == 0) {
      s.top[r] = top, s.shrink[r] = shrink;
      s.sum[r] = fmaf(s.sum[r], shrink, sum);
    }
  }
}

// kColumns: of a thread, ⌈head_dim / threads⌉. Blocks: x eight queries, y a head.
template <int kColumns, class T, class Bias>
__device__ __forceinline__ void attend_rows(const RowAttention<T>& a, const Bias& bias) {
  RowAttentionShared& s = *prim::dynamic_shared<RowAttentionShared>();
  const int thread = static_cast<int>(threadIdx.x), first_query = static_cast<int>(blockIdx.x) * kRowQueries;
  const int64_t head = int64_t{blockIdx.y} * a.head_dim;
  float* q = s.q();
  for (int i = thread; i < kRowQueries * a.head_dim; i += kRowAttentionThreads) {
    const int query = first_query + i / a.head_dim;
    q[i] = query < a.n ? prim::widen(a.q[int64_t{query} * a.stride + head + i % a.head_dim]) : 0.0f;
  }
  if (thread < kRowQueries) s.top[thread] = -INFINITY, s.sum[thread] = 0;
  float o[kRowQueries][kColumns] = {};
  for (int first = 0; first < a.n; first += kRowKeys) {
    __syncthreads();
    row_scores(s, a, head, first);
    __syncthreads();
    row_softmax(s, a, first_query, first, bias);
    __syncthreads();
    MS_UNROLL
    for (int r = 0; r < kRowQueries; ++r)
      MS_UNROLL
      for (int j = 0; j < kColumns; ++j) o[r][j] *= s.shrink[r];
    const int keys = a.n - first < kRowKeys ? a.n - first : kRowKeys;
    for (int key = 0; key < keys; ++key) {
      const T* v = a.v + int64_t{first + key} * a.stride + head;
      MS_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        const int c = thread + j * kRowAttentionThreads;
        const float x = c < a.head_dim ? prim::widen(v[c]) : 0.0f;
        MS_UNROLL
        for (int r = 0; r < kRowQueries; ++r) o[r][j] = fmaf(s.weights[r][key], x, o[r][j]);
      }
    }
  }
  __syncthreads();
  if (thread < kRowQueries) s.shrink[thread] = 1 / s.sum[thread];
  __syncthreads();
  MS_UNROLL
  for (int r = 0; r < kRowQueries; ++r)
    MS_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const int c = thread + j * kRowAttentionThreads;
      if (first_query + r >= a.n || c >= a.head_dim) continue;
      const int64_t at = int64_t{first_query + r} * a.out_stride + head + c;
      const float x = o[r][j] * s.shrink[r];
      if (a.out_is_bf16)
        store_one(static_cast<bf16*>(a.out) + at, x);
      else
        store_one(static_cast<float*>(a.out) + at, x);
    }
}

inline dim3 row_attention_grid(int64_t n, int64_t heads) {
  return dim3(static_cast<unsigned>((n + kRowQueries - 1) / kRowQueries), static_cast<unsigned>(heads));
}
// f(integral constant of a thread's columns). Throws Error where heads are too wide.
template <class F>
void by_row_columns(int64_t head_dim, F f) {
  if (head_dim > kMaxRowHeadDim) throw Error(fmt::format("heads of {} channels: CUDA kernels take up to {}", head_dim, kMaxRowHeadDim));
  if (head_dim <= kRowAttentionThreads) return f(std::integral_constant<int, 1>());
  if (head_dim <= 4 * kRowAttentionThreads) return f(std::integral_constant<int, 4>());
  f(std::integral_constant<int, 8>());
}

}  // namespace megaslide
