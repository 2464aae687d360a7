#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/relative_attention/relative_attention.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/attention/head-inl.h"
#include "kernels/relative_attention/relative_attention.h"
#include "kernels/simd-inl.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

struct Scratch {
  Scratch(Carver& c, int64_t n, int64_t d)
      : k(c.take<float>(n * d)), v(c.take<float>(n * d)), qt(c.take<float>(kBlock * d)), ot(c.take<float>(kBlock * d)),
        st(c.take<float>(n * kBlock)), bias(c.take<float>(2 * n + kBlock)), sum(c.take<float>(kBlock)) {}
  float *k, *v;  // (n,d) of the head in fp32
  float *qt, *ot;  // (d,16) of a block of queries
  float* st;       // (n,16) scores
  float* bias;     // by query − key + n − 1
  float* sum;
};

// Scores (n,16) become exp(s + bias − max); sum their total a query. `bias` is that of the block's first query and key 0:
// the 16 queries of a key lie side by side, and the next key's start one before.
HWY_NOINLINE void BiasedSoftmax(float* HWY_RESTRICT st, int64_t n, const float* bias, float* HWY_RESTRICT sum) {
  const BlockTag d;
  for (int v = 0; v < kVecs; ++v) {
    const int64_t lane = v * kLanes;
    auto top = hn::Set(d, -INFINITY);
    for (int64_t m = 0; m < n; ++m) {
      const auto s = hn::Add(hn::Load(d, st + m * kBlock + lane), hn::LoadU(d, bias - m + lane));
      hn::Store(s, d, st + m * kBlock + lane);
      top = hn::Max(top, s);
    }
    auto total = hn::Zero(d);
    for (int64_t m = 0; m < n; ++m) {
      const auto p = ExpKeepNan(d, hn::Sub(hn::Load(d, st + m * kBlock + lane), top));
      hn::Store(p, d, st + m * kBlock + lane);
      total = hn::Add(total, p);
    }
    hn::Store(total, d, sum + lane);
  }
}

template <class T>
void Head(T* out, const T* q, const T* k, const T* v, const float* table, int64_t n, int64_t heads, int64_t d) {
  const int64_t stride = heads * d;
  Carver measure;
  Scratch(measure, n, d);
  Carver carver(ThreadScratch::get(measure.used()));
  const Scratch x(carver, n, d);
  for (int64_t i = 0; i < 2 * n + kBlock; ++i) {
    const int64_t key_minus_query = std::max(n - 1 - i, 1 - n);  // past the last query: unused lanes of a block
    x.bias[i] = table[relative_bucket(key_minus_query) * heads];
  }
  const float *keys, *values;
  const int64_t row = WidenRows(keys, k, stride, 0, n, d, x.k);
  WidenRows(values, v, stride, 0, n, d, x.v);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t queries = std::min(kBlock, n - begin);
    for (int64_t i = 0; i < kBlock; ++i) {
      const T* from = q + std::min(begin + i, n - 1) * stride;
      for (int64_t c = 0; c < d; ++c) x.qt[c * kBlock + i] = to_float(from[c]);
    }
    DotKeys(x.st, keys, row, n, x.qt, d);
    BiasedSoftmax(x.st, n, x.bias + begin + n - 1, x.sum);
    Fill0(x.ot, kBlock * d);
    WeighRows(x.ot, values, row, n, x.st, d);
    StoreBlock(out + begin * stride, stride, x.ot, x.sum, queries, d);
  }
}

void RelativeHead(void* out, const void* q, const void* k, const void* v, const float* bias, int64_t n, int64_t head,
                  int64_t heads, int64_t d, DType dtype) {
  const auto run = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t at = head * d;
    Head(static_cast<T*>(out) + at, static_cast<const T*>(q) + at, static_cast<const T*>(k) + at,
         static_cast<const T*>(v) + at, bias + head, n, heads, d);
  };
  dtype == DType::kBF16 ? run(static_cast<bf16*>(nullptr)) : run(static_cast<float*>(nullptr));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(RelativeHead);

namespace cpu {

void relative_attention_forward(Stream& stream, void* out, const void* q, const void* k, const void* v,
                                const float* bias, int64_t n, int64_t heads, int64_t head_dim, DType dtype) {
  MS_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "{}", dtype_name(dtype));
  const auto run = HWY_DYNAMIC_DISPATCH(RelativeHead);
  stream.parallel_for(heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) run(out, q, k, v, bias, n, h, heads, head_dim, dtype);
  });
}

}  // namespace cpu
}  // namespace megaslide
#endif
