#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/causal_attention/causal_attention.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/attention/head-inl.h"
#include "kernels/causal_attention/causal_attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

struct Scratch {
  Scratch(Carver& c, int64_t n, int64_t d)
      : k(c.take<float>(n * d)), v(c.take<float>(n * d)), q(c.take<float>(kBlock * d)), qt(c.take<float>(kBlock * d)),
        ot(c.take<float>(kBlock * d)), st(c.take<float>(n * kBlock)), top(c.take<float>(kBlock)), sum(c.take<float>(kBlock)) {}
  float *k, *v;    // (n,d) of the head in fp32
  float *q, *qt;   // a block of queries, (16,d) and transposed
  float *ot;       // (d,16)
  float *st;       // (n,16) scores
  float *top, *sum;
};

// One head; rows are stride apart.
template <class T>
void Head(T* out, const T* q, const T* k, const T* v, int64_t n, int64_t stride, int64_t d, float scale) {
  Carver measure;
  Scratch(measure, n, d);
  Carver carver(ThreadScratch::get(measure.used()));
  const Scratch x(carver, n, d);
  const float *keys, *values;
  const int64_t row = WidenRows(keys, k, stride, 0, n, d, x.k);
  WidenRows(values, v, stride, 0, n, d, x.v);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t queries = std::min(kBlock, n - begin), seen = begin + queries;
    PackBlock(x.q, x.qt, q, stride, begin, seen, d);
    DotKeys(x.st, keys, row, seen, x.qt, d);
    for (int64_t m = begin; m < seen; ++m) std::fill(x.st + m * kBlock, x.st + m * kBlock + (m - begin), -INFINITY);
    std::fill(x.top, x.top + kBlock, -INFINITY);
    Fill0(x.sum, kBlock);
    Fill0(x.ot, kBlock * d);
    OnlineSoftmax(x.st, seen, scale, x.top, x.sum, x.ot, d);
    WeighRows(x.ot, values, row, seen, x.st, d);
    StoreBlock(out + begin * stride, stride, x.ot, x.sum, queries, d);
  }
}

void CausalHead(void* out, const void* q, const void* k, const void* v, int64_t n, int64_t head, int64_t heads, int64_t d, float scale, DType dtype) {
  const auto run = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t at = head * d;
    Head(static_cast<T*>(out) + at, static_cast<const T*>(q) + at, static_cast<const T*>(k) + at, static_cast<const T*>(v) + at, n, heads * d, d, scale);
  };
  dtype == DType::kBF16 ? run(static_cast<bf16*>(nullptr)) : run(static_cast<float*>(nullptr));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(CausalHead);

namespace cpu {

void causal_attention_forward(Stream& stream, void* out, const void* q, const void* k, const void* v, int64_t n, int64_t heads,
                              int64_t head_dim, float scale, DType dtype) {
  MS_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "{}", dtype_name(dtype));
  const auto run = HWY_DYNAMIC_DISPATCH(CausalHead);
  stream.parallel_for(heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) run(out, q, k, v, n, h, heads, head_dim, scale, dtype);
  });
}

}  // namespace cpu
}  // namespace megaslide
#endif
