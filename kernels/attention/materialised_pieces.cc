// The stages of materialised attention: matrices [⌈N/16⌉][M][16] a head, so that a block of queries is contiguous.
#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_pieces.h"
#include "kernels/attention/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/materialised_pieces.cc"
#include "kernels/simd_targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/attention/head-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

// One head's place in the tensors and one block's in a matrix.
struct Place {
  Place(const AttentionShape& s, int64_t b, int64_t h, int64_t block)
      : stride(s.heads * s.head_dim), q(b * s.queries * stride + h * s.head_dim), k(b * s.keys * stride + h * s.head_dim),
        begin(block * kBlock), end(std::min((block + 1) * kBlock, s.queries)),
        matrix(((b * s.heads + h) * ((s.queries + kBlock - 1) / kBlock) + block) * s.keys * kBlock) {}
  int64_t lse(const AttentionShape& s, int64_t b, int64_t h, int64_t query) const {
    return (b * s.queries + query) * s.heads + h;
  }
  int64_t stride, q, k, begin, end, matrix;
};

// All keys' rows of a head, in fp32.
template <class T>
int64_t Keys(const float*& rows, const void* tensor, const AttentionShape& s, const Place& x, float* buffer) {
  return WidenRows(rows, static_cast<const T*>(tensor) + x.k, x.stride, 0, s.keys, s.head_dim, buffer);
}

template <class T>
void Scores(const AttentionArgs& a, float* matrix, int64_t b, int64_t h, int64_t block) {
  const AttentionShape& s = a.shape;
  const Place x(s, b, h, block);
  const int64_t d = s.head_dim;
  Carver c(ThreadScratch::get(4 * (s.keys * d + 2 * kBlock * d) + 256));
  float *rows = c.take<float>(kBlock * d), *qt = c.take<float>(kBlock * d), *buffer = c.take<float>(s.keys * d);
  PackBlock(rows, qt, static_cast<const T*>(a.q) + x.q, x.stride, x.begin, x.end, d);
  const float* k;
  const int64_t stride = Keys<T>(k, a.k, s, x, buffer);
  DotKeys(matrix + x.matrix, k, stride, s.keys, qt, d);
}
void ScoresPiece(const AttentionArgs& a, float* matrix, int64_t b, int64_t h, int64_t block) {
  a.dtype == DType::kBF16 ? Scores<bf16>(a, matrix, b, h, block) : Scores<float>(a, matrix, b, h, block);
}

void SoftmaxPiece(const AttentionArgs& a, float* matrix, int64_t b, int64_t h, int64_t block) {
  const BlockTag d;
  const AttentionShape& s = a.shape;
  const Place x(s, b, h, block);
  alignas(64) float top[kBlock], sum[kBlock];
  std::fill(top, top + kBlock, -INFINITY);
  Fill0(sum, kBlock);
  OnlineSoftmax(matrix + x.matrix, s.keys, s.scale, top, sum, nullptr, 0);
  for (int64_t m = 0; m < s.keys; ++m)
    for (int64_t lane = 0; lane < kBlock; lane += kLanes) {
      float* p = matrix + x.matrix + m * kBlock + lane;
      hn::Store(hn::Div(hn::Load(d, p), hn::Load(d, sum + lane)), d, p);
    }
  for (int64_t i = x.begin; i < x.end; ++i) a.lse[x.lse(s, b, h, i)] = top[i - x.begin] + std::log(sum[i - x.begin]);
}

template <class T>
void Output(const AttentionArgs& a, const float* matrix, int64_t b, int64_t h, int64_t block) {
  const AttentionShape& s = a.shape;
  const Place x(s, b, h, block);
  const int64_t d = s.head_dim;
  Carver c(ThreadScratch::get(4 * (s.keys * d + kBlock * d) + 128));
  float *ot = c.take<float>(kBlock * d), *buffer = c.take<float>(s.keys * d);
  Fill0(ot, kBlock * d);
  const float* v;
  const int64_t stride = Keys<T>(v, a.v, s, x, buffer);
  WeighRows(ot, v, stride, s.keys, matrix + x.matrix, d);
  for (int64_t i = x.begin; i < x.end; ++i)
    for (int64_t e = 0; e < d; ++e) a.out[x.q + i * x.stride + e] = ot[e * kBlock + i - x.begin];
}
void OutputPiece(const AttentionArgs& a, const float* matrix, int64_t b, int64_t h, int64_t block) {
  a.dtype == DType::kBF16 ? Output<bf16>(a, matrix, b, h, block) : Output<float>(a, matrix, b, h, block);
}

template <class T>
void Gradient(const AttentionGradientArgs& a, float* p, float* ds, int64_t b, int64_t h, int64_t block) {
  const AttentionShape& s = a.shape;
  const Place x(s, b, h, block);
  const int64_t d = s.head_dim;
  Carver c(ThreadScratch::get(4 * (2 * s.keys * d + 5 * kBlock * d) + 512));
  float *rows = c.take<float>(kBlock * d), *qt = c.take<float>(kBlock * d), *dout = c.take<float>(kBlock * d);
  float *dout_t = c.take<float>(kBlock * d), *dqt = c.take<float>(kBlock * d);
  float *k_buffer = c.take<float>(s.keys * d), *v_buffer = c.take<float>(s.keys * d);
  PackBlock(rows, qt, static_cast<const T*>(a.q) + x.q, x.stride, x.begin, x.end, d);
  PackBlock(dout, dout_t, a.dout + x.q, x.stride, x.begin, x.end, d);
  alignas(64) float dot[kBlock], lse[kBlock], live[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) {
    const int64_t query = std::min(x.begin + i, x.end - 1);
    dot[i] = 0;
    for (int64_t e = 0; e < d; ++e) dot[i] += dout[i * d + e] * a.out[x.q + query * x.stride + e];
    lse[i] = a.lse[x.lse(s, b, h, query)];
    live[i] = x.begin + i < x.end ? 1.0f : 0.0f;
  }
  const float *k, *v;
  const int64_t stride = Keys<T>(k, a.k, s, x, k_buffer);
  Keys<T>(v, a.v, s, x, v_buffer);
  DotKeys(p + x.matrix, k, stride, s.keys, qt, d);
  DotKeys(ds + x.matrix, v, stride, s.keys, dout_t, d);
  SoftmaxGradient(p + x.matrix, ds + x.matrix, s.keys, s.scale, dot, lse, live, s.keys == 1);
  Fill0(dqt, kBlock * d);
  WeighRows(dqt, k, stride, s.keys, ds + x.matrix, d);
  for (int64_t i = x.begin; i < x.end; ++i)
    for (int64_t e = 0; e < d; ++e) a.dq[x.q + i * x.stride + e] = dqt[e * kBlock + i - x.begin];
}
void GradientPiece(const AttentionGradientArgs& a, float* p, float* ds, int64_t b, int64_t h, int64_t block) {
  a.dtype == DType::kBF16 ? Gradient<bf16>(a, p, ds, b, h, block) : Gradient<float>(a, p, ds, b, h, block);
}

template <class T>
void KeyGradients(const AttentionGradientArgs& a, const float* p, const float* ds, int64_t b, int64_t h) {
  const AttentionShape& s = a.shape;
  const int64_t d = s.head_dim;
  Carver c(ThreadScratch::get(12 * kBlock * d + 256));
  float *q = c.take<float>(kBlock * d), *dout = c.take<float>(kBlock * d), *transposed = c.take<float>(kBlock * d);
  const Place first(s, b, h, 0);
  float *dk = a.dk + first.k, *dv = a.dv + first.k;
  for (int64_t m = 0; m < s.keys; ++m) {
    Fill0(dk + m * first.stride, d);
    Fill0(dv + m * first.stride, d);
  }
  for (int64_t block = 0; block * kBlock < s.queries; ++block) {
    const Place x(s, b, h, block);
    PackBlock(q, transposed, static_cast<const T*>(a.q) + x.q, x.stride, x.begin, x.end, d);
    PackBlock(dout, transposed, a.dout + x.q, x.stride, x.begin, x.end, d);
    AddOuter(dk, x.stride, s.keys, ds + x.matrix, q, d, d);
    AddOuter(dv, x.stride, s.keys, p + x.matrix, dout, d, d);
  }
}
void KeysPiece(const AttentionGradientArgs& a, const float* p, const float* ds, int64_t b, int64_t h) {
  a.dtype == DType::kBF16 ? KeyGradients<bf16>(a, p, ds, b, h) : KeyGradients<float>(a, p, ds, b, h);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(ScoresPiece);
HWY_EXPORT(SoftmaxPiece);
HWY_EXPORT(OutputPiece);
HWY_EXPORT(GradientPiece);
HWY_EXPORT(KeysPiece);

void materialised_scores_piece(const AttentionArgs& a, float* matrix, int64_t batch, int64_t head, int64_t block) {
  HWY_DYNAMIC_DISPATCH(ScoresPiece)(a, matrix, batch, head, block);
}
void materialised_softmax_piece(const AttentionArgs& a, float* matrix, int64_t batch, int64_t head, int64_t block) {
  HWY_DYNAMIC_DISPATCH(SoftmaxPiece)(a, matrix, batch, head, block);
}
void materialised_output_piece(const AttentionArgs& a, const float* matrix, int64_t batch, int64_t head, int64_t block) {
  HWY_DYNAMIC_DISPATCH(OutputPiece)(a, matrix, batch, head, block);
}
void materialised_gradient_piece(const AttentionGradientArgs& a, float* p, float* ds, int64_t batch, int64_t head,
                                 int64_t block) {
  HWY_DYNAMIC_DISPATCH(GradientPiece)(a, p, ds, batch, head, block);
}
void materialised_keys_piece(const AttentionGradientArgs& a, const float* p, const float* ds, int64_t batch,
                             int64_t head) {
  HWY_DYNAMIC_DISPATCH(KeysPiece)(a, p, ds, batch, head);
}

}  // namespace megaslide
#endif  // HWY_ONCE
