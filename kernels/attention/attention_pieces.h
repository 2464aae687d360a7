// Entry points of the SIMD part of attention on the CPU, one call a piece of work; instruction set chosen at run time.
#pragma once
#include <cstdint>

#include "kernels/attention/attention.h"

namespace megaslide {

struct AttentionArgs {
  float *out, *lse;  // forward
  const void *q, *k, *v;
  AttentionShape shape;
  DType dtype;
};
struct AttentionGradientArgs {
  float *dq, *dk, *dv;
  const void *q, *k, *v;
  const float *out, *lse, *dout;
  AttentionShape shape;
  DType dtype;
};
constexpr int64_t kAttentionQueryTile = 64;
void attention_forward_piece(const AttentionArgs& a, int64_t batch, int64_t head, int64_t tile);
void attention_backward_piece(const AttentionGradientArgs& a, int64_t batch, int64_t head);

struct WindowArgs {
  float *out, *lse;
  const void *q, *k, *v;
  WindowShape shape;
  DType dtype;
};
struct WindowGradientArgs {
  float *dq, *dk, *dv;
  const void *q, *k, *v;
  const float *out, *lse, *dout;
  WindowShape shape;
  DType dtype;
};
void window_forward_piece(const WindowArgs& a, int64_t batch, int64_t head, int64_t window);
void window_backward_piece(const WindowGradientArgs& a, int64_t batch, int64_t head, int64_t window);

// Materialised attention, stage by stage, on matrices of scores kept as [batch][head][⌈N/16⌉][M][16].
constexpr int64_t kMaterialisedBlock = 16;
void materialised_scores_piece(const AttentionArgs& a, float* matrix, int64_t batch, int64_t head, int64_t block);
void materialised_softmax_piece(const AttentionArgs& a, float* matrix, int64_t batch, int64_t head, int64_t block);
void materialised_output_piece(const AttentionArgs& a, const float* matrix, int64_t batch, int64_t head, int64_t block);
void materialised_gradient_piece(const AttentionGradientArgs& a, float* p, float* ds, int64_t batch, int64_t head,
                                 int64_t block);
void materialised_keys_piece(const AttentionGradientArgs& a, const float* p, const float* ds, int64_t batch,
                             int64_t head);

}  // namespace megaslide
