// Attention of one head with a blocked softmax: tiles of 64 queries against tiles of 128 keys, 16 queries a block.
// Included once a target.
#if defined(MEGASLIDE_ATTENTION_HEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGASLIDE_ATTENTION_HEAD_INL_H_
#undef MEGASLIDE_ATTENTION_HEAD_INL_H_
#else
#define MEGASLIDE_ATTENTION_HEAD_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/attention/block-inl.h"
#include "kernels/attention/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {

constexpr int64_t kQueryTile = 64, kKeyTile = 128;

// Rows of one head: row i of a tensor starts at pointer + i·stride.
template <class T>
struct HeadInput {
  const T *q, *k, *v;
  int64_t q_stride, k_stride;  // of k and v alike
  int64_t queries, keys, d;
  float scale;
};
// q_stride apart from each other, as the queries of the input.
struct HeadResult {
  float* out;
  float* lse;
  int64_t lse_stride;
};
struct HeadGradient {
  float *dq, *dk, *dv;  // strides as q and k of the input
  const float *out, *lse, *dout;
  int64_t lse_stride;
};

// Rows [begin, end) in fp32, consecutive: in place where they are fp32, else widened into `buffer`. Returns the stride.
template <class T>
HWY_INLINE int64_t WidenRows(const float*& rows, const T* tensor, int64_t stride, int64_t begin, int64_t end, int64_t d,
                             float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    rows = tensor + begin * stride;
    return stride;
  } else {
    for (int64_t i = begin; i < end; ++i) Widen(buffer + (i - begin) * d, tensor + i * stride, d);
    rows = buffer;
    return d;
  }
}

// 16 rows from `begin` on as (16,d) and transposed (d,16); rows past `end` repeat the last one.
template <class T>
HWY_INLINE void PackBlock(float* rows, float* transposed, const T* tensor, int64_t stride, int64_t begin, int64_t end,
                          int64_t d) {
  for (int64_t i = 0; i < kBlock; ++i) {
    Widen(rows + i * d, tensor + std::min(begin + i, end - 1) * stride, d);
    for (int64_t c = 0; c < d; ++c) transposed[c * kBlock + i] = rows[i * d + c];
  }
}

// The other way: rows [0, queries) of out, stride elements apart, are those of ot (d,16), each over its query's sum.
template <class T>
HWY_INLINE void StoreBlock(T* out, int64_t stride, const float* ot, const float* sum, int64_t queries, int64_t d) {
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t c = 0; c < d; ++c) {
      const float o = ot[c * kBlock + i] / sum[i];
      if constexpr (std::is_same_v<T, float>) out[i * stride + c] = o;
      else out[i * stride + c] = to_bf16(o);
    }
}

struct ForwardScratch {
  ForwardScratch(Carver& c, int64_t d)
      : k(c.take<float>(kKeyTile * d)), v(c.take<float>(kKeyTile * d)), q(c.take<float>(kBlock * d)),
        qt(c.take<float>(kQueryTile * d)), ot(c.take<float>(kQueryTile * d)), st(c.take<float>(kKeyTile * kBlock)),
        top(c.take<float>(kQueryTile)), sum(c.take<float>(kQueryTile)) {}
  float *k, *v, *q, *qt, *ot, *st, *top, *sum;
};

// One step of the online softmax: scores st (keys,16) become exp(scale·s − top'); top, sum and ot (d,16) follow.
inline HWY_NOINLINE void OnlineSoftmax(float* HWY_RESTRICT st, int64_t keys, float scale, float* HWY_RESTRICT top,
                                       float* HWY_RESTRICT sum, float* HWY_RESTRICT ot, int64_t d_rows) {
  const BlockTag d;
  const auto scale_v = hn::Set(d, scale);
  for (int v = 0; v < kVecs; ++v) {
    const int64_t lane = v * kLanes;
    auto high = hn::Load(d, top + lane);
    const auto before = high;
    for (int64_t m = 0; m < keys; ++m) {
      const auto s = hn::Mul(hn::Load(d, st + m * kBlock + lane), scale_v);
      hn::Store(s, d, st + m * kBlock + lane);
      high = hn::Max(high, s);
    }
    const auto shrink = ExpKeepNan(d, hn::Sub(before, high));
    auto total = hn::Mul(hn::Load(d, sum + lane), shrink);
    for (int64_t m = 0; m < keys; ++m) {
      const auto p = ExpKeepNan(d, hn::Sub(hn::Load(d, st + m * kBlock + lane), high));
      hn::Store(p, d, st + m * kBlock + lane);
      total = hn::Add(total, p);
    }
    hn::Store(high, d, top + lane);
    hn::Store(total, d, sum + lane);
    for (int64_t c = 0; c < d_rows; ++c)
      hn::Store(hn::Mul(hn::Load(d, ot + c * kBlock + lane), shrink), d, ot + c * kBlock + lane);
  }
}

// Queries [begin, end), at most kQueryTile.
template <class T>
void ForwardQueries(const HeadInput<T>& in, int64_t begin, int64_t end, const HeadResult& result) {
  const int64_t d = in.d, blocks = (end - begin + kBlock - 1) / kBlock;
  Carver measure;
  ForwardScratch(measure, d);
  Carver carver(ThreadScratch::get(measure.used()));
  const ForwardScratch x(carver, d);
  for (int64_t i = 0; i < blocks; ++i) PackBlock(x.q, x.qt + i * kBlock * d, in.q, in.q_stride, begin + i * kBlock, end, d);
  std::fill(x.top, x.top + kQueryTile, -INFINITY);
  Fill0(x.sum, kQueryTile);
  Fill0(x.ot, kQueryTile * d);
  for (int64_t key = 0; key < in.keys; key += kKeyTile) {
    const int64_t keys = std::min(kKeyTile, in.keys - key);
    const float *k, *v;
    const int64_t stride = WidenRows(k, in.k, in.k_stride, key, key + keys, d, x.k);
    WidenRows(v, in.v, in.k_stride, key, key + keys, d, x.v);
    for (int64_t i = 0; i < blocks; ++i) {
      DotKeys(x.st, k, stride, keys, x.qt + i * kBlock * d, d);
      OnlineSoftmax(x.st, keys, in.scale, x.top + i * kBlock, x.sum + i * kBlock, x.ot + i * kBlock * d, d);
      WeighRows(x.ot + i * kBlock * d, v, stride, keys, x.st, d);
    }
  }
  for (int64_t i = 0; i < end - begin; ++i) {
    const float* ot = x.ot + i / kBlock * kBlock * d + i % kBlock;
    float* out = result.out + (begin + i) * in.q_stride;
    for (int64_t c = 0; c < d; ++c) out[c] = ot[c * kBlock] / x.sum[i];
    result.lse[(begin + i) * result.lse_stride] = x.top[i] + std::log(x.sum[i]);
  }
}

struct BackwardScratch {
  BackwardScratch(Carver& c, int64_t d)
      : k(c.take<float>(kKeyTile * d)), v(c.take<float>(kKeyTile * d)), q(c.take<float>(kQueryTile * d)),
        qt(c.take<float>(kQueryTile * d)), dout(c.take<float>(kQueryTile * d)), dout_t(c.take<float>(kQueryTile * d)),
        dqt(c.take<float>(kQueryTile * d)), p(c.take<float>(kKeyTile * kBlock)), ds(c.take<float>(kKeyTile * kBlock)),
        dot(c.take<float>(kQueryTile)), lse(c.take<float>(kQueryTile)), live(c.take<float>(kQueryTile)) {}
  float *k, *v, *q, *qt, *dout, *dout_t, *dqt, *p, *ds, *dot, *lse, *live;
};

// p (scores in) and ds (dO·V in) become P and scale·dS, both (keys,16). With only one key at all P is 1 whatever the
// score: dP − D is rounding noise, dS is 0.
inline HWY_NOINLINE void SoftmaxGradient(float* HWY_RESTRICT p, float* HWY_RESTRICT ds, int64_t keys, float scale,
                                         const float* dot, const float* lse, const float* live, bool only_key) {
  const BlockTag d;
  const auto scale_v = hn::Set(d, scale), ds_scale = only_key ? hn::Zero(d) : scale_v;
  for (int v = 0; v < kVecs; ++v) {
    const int64_t lane = v * kLanes;
    const auto dot_v = hn::Load(d, dot + lane), lse_v = hn::Load(d, lse + lane), live_v = hn::Load(d, live + lane);
    for (int64_t m = 0; m < keys; ++m) {
      const int64_t at = m * kBlock + lane;
      const auto x = hn::Sub(hn::Mul(hn::Load(d, p + at), scale_v), lse_v);
      const auto prob = hn::Mul(ExpKeepNan(d, x), live_v);
      hn::Store(prob, d, p + at);
      hn::Store(hn::Mul(hn::Mul(prob, hn::Sub(hn::Load(d, ds + at), dot_v)), ds_scale), d, ds + at);
    }
  }
}

// The whole head. dk and dv of its keys are zeroed, then summed over query tiles in order.
template <class T>
void BackwardHead(const HeadInput<T>& in, const HeadGradient& g) {
  const int64_t d = in.d;
  Carver measure;
  BackwardScratch(measure, d);
  Carver carver(ThreadScratch::get(measure.used()));
  const BackwardScratch x(carver, d);
  for (int64_t m = 0; m < in.keys; ++m) {
    Fill0(g.dk + m * in.k_stride, d);
    Fill0(g.dv + m * in.k_stride, d);
  }
  for (int64_t begin = 0; begin < in.queries; begin += kQueryTile) {
    const int64_t end = std::min(begin + kQueryTile, in.queries), blocks = (end - begin + kBlock - 1) / kBlock;
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t at = i * kBlock * d;
      PackBlock(x.q + at, x.qt + at, in.q, in.q_stride, begin + i * kBlock, end, d);
      PackBlock(x.dout + at, x.dout_t + at, g.dout, in.q_stride, begin + i * kBlock, end, d);
    }
    for (int64_t i = 0; i < blocks * kBlock; ++i) {
      const int64_t query = std::min(begin + i, end - 1);
      float sum = 0;
      for (int64_t c = 0; c < d; ++c) sum += x.dout[i * d + c] * g.out[query * in.q_stride + c];
      x.dot[i] = sum;
      x.lse[i] = g.lse[query * g.lse_stride];
      x.live[i] = begin + i < end ? 1.0f : 0.0f;
    }
    Fill0(x.dqt, kQueryTile * d);
    for (int64_t key = 0; key < in.keys; key += kKeyTile) {
      const int64_t keys = std::min(kKeyTile, in.keys - key);
      const float *k, *v;
      const int64_t stride = WidenRows(k, in.k, in.k_stride, key, key + keys, d, x.k);
      WidenRows(v, in.v, in.k_stride, key, key + keys, d, x.v);
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t at = i * kBlock * d, row = i * kBlock;
        DotKeys(x.p, k, stride, keys, x.qt + at, d);
        DotKeys(x.ds, v, stride, keys, x.dout_t + at, d);
        SoftmaxGradient(x.p, x.ds, keys, in.scale, x.dot + row, x.lse + row, x.live + row, in.keys == 1);
        WeighRows(x.dqt + at, k, stride, keys, x.ds, d);
        AddOuter(g.dk + key * in.k_stride, in.k_stride, keys, x.ds, x.q + at, d, d);
        AddOuter(g.dv + key * in.k_stride, in.k_stride, keys, x.p, x.dout + at, d, d);
      }
    }
    for (int64_t i = 0; i < end - begin; ++i) {
      const float* dqt = x.dqt + i / kBlock * kBlock * d + i % kBlock;
      float* dq = g.dq + (begin + i) * in.q_stride;
      for (int64_t c = 0; c < d; ++c) dq[c] = dqt[c * kBlock];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();
#endif  // MEGASLIDE_ATTENTION_HEAD_INL_H_
