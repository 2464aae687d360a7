// Dense and window attention seen alike: independent sequences of queries and keys, whose rows lie anywhere.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/attention/window_groups.h"
#include "kernels/elements.cuh"

namespace megaslide {

// Rows of one sequence in a (B, N, heads, d) tensor. A row's unit is its index among (B, N, heads).
struct SequenceRows {
  int64_t first;        // unit of token 0 of the sample
  int heads, head_dim;
  int n;                // rows of the sequence
  bool windowed;
  int begin[3], plane, width;         // of the window: first coordinates, tokens a frame, tokens a line
  int grid_plane, grid_width;         // the same of the grid
  __device__ int64_t unit(int i) const {
    int token = i;
    if (windowed) {
      const int rest = i % plane;
      token = (begin[0] + i / plane) * grid_plane + (begin[1] + rest / width) * grid_width + begin[2] + rest % width;
    }
    return first + int64_t{token} * heads;
  }
  __device__ int64_t at(int i) const { return unit(i) * head_dim; }
};

struct SequenceAxis {
  int length, size, before, groups;  // as in WindowAxis
  __device__ int begin(int g) const { return g == 0 ? 0 : g * size - before; }
  __device__ int end(int g) const {
    const int e = (g + 1) * size - before;
    return e < length ? e : length;
  }
};

// All sequences of a call: a head of a sample, or of a window of it.
struct Sequences {
  int batch, heads, head_dim, queries, keys;  // of the longest sequence
  int tokens[2];                              // of a sample: query tokens, key tokens
  bool windowed;
  SequenceAxis axis[3];
  int windows;  // a sample has
  float scale;

  explicit Sequences(const AttentionShape& s)
      : batch(static_cast<int>(s.batch)), heads(static_cast<int>(s.heads)), head_dim(static_cast<int>(s.head_dim)),
        queries(static_cast<int>(s.queries)), keys(static_cast<int>(s.keys)), tokens{queries, keys}, windowed(false), axis{},
        windows(1), scale(s.scale) {
    check(s.batch * std::max(s.queries, s.keys));
  }
  explicit Sequences(const WindowShape& s)
      : batch(static_cast<int>(s.batch)), heads(static_cast<int>(s.heads)), head_dim(static_cast<int>(s.head_dim)), queries(1),
        keys(1), tokens{static_cast<int>(s.tokens()), static_cast<int>(s.tokens())}, windowed(true), windows(1), scale(s.scale) {
    check(s.batch * s.tokens());
    const WindowGroups all(s);
    for (int a = 0; a < 3; ++a) {
      const WindowAxis& w = a == 0 ? all.t : a == 1 ? all.h : all.w;
      axis[a] = {static_cast<int>(w.length), static_cast<int>(w.size), static_cast<int>(w.before), static_cast<int>(w.groups())};
      queries *= axis[a].size, windows *= axis[a].groups;
    }
    keys = queries;
  }
  int count() const { return batch * heads * windows; }
  int64_t units() const { return int64_t{batch} * tokens[0] * heads; }

  // side 0: queries, 1: keys.
  __device__ SequenceRows rows(int sequence, int side) const {
    const int window = sequence % windows, head = sequence / windows % heads, b = sequence / windows / heads;
    SequenceRows r{int64_t{b} * tokens[side] * heads + head, heads, head_dim, tokens[side], windowed, {}, 1, 1, 1, 1};
    if (!windowed) return r;
    const int g[3] = {window / (axis[1].groups * axis[2].groups), window / axis[2].groups % axis[1].groups,
                      window % axis[2].groups};
    int size[3];
    for (int a = 0; a < 3; ++a) {
      r.begin[a] = axis[a].begin(g[a]);
      size[a] = axis[a].end(g[a]) - r.begin[a];
    }
    r.width = size[2], r.plane = size[1] * size[2], r.n = size[0] * r.plane;
    r.grid_width = axis[2].length, r.grid_plane = axis[1].length * axis[2].length;
    return r;
  }

 private:
  void check(int64_t rows) const {
    check_head_dim(head_dim);
    count32(rows * heads, "rows of all heads");
  }
};

struct SequenceForward {
  float *out, *lse;
  const void *q, *k, *v;
  Sequences sequences;
};
struct SequenceBackward {
  float *dq, *dk, *dv;
  const void *q, *k, *v;
  const float *lse, *dout;
  const float* d;  // rowsum(dO ⊙ O) by unit
  Sequences sequences;
};

// attention_plain.cu: fp32 arithmetic, any head size.
void attention_plain_forward(Stream& stream, const SequenceForward& x, DType dtype);
void attention_plain_backward(Stream& stream, const SequenceBackward& x, DType dtype);
// attention_mma.cu: bf16 on tensor cores, d ≤ 128.
constexpr int kMmaHeadDim = 128;
void attention_mma_forward(Stream& stream, const SequenceForward& x);
void attention_mma_backward(Stream& stream, const SequenceBackward& x);

}  // namespace megaslide
