#include "kernels/dsa/dsa_vector.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dsa/dsa_vector.cc"
#include "kernels/simd_targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/attention/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kQ = kDsaTileQueries;

// C[m][n] (+)= Σ_k A[m][k] · B[k][n]: A(m,k) at a + m·a_row + k·a_step, rows of B and C contiguous.
struct Product {
  int64_t m, n, k;  // m a multiple of 16, n of 16
  const float* a;
  int64_t a_row, a_step;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  bool accumulate;
};

constexpr int kRows = kLanes == 16 ? 8 : 4;     // of a register tile
constexpr int kColumns = kLanes == 16 ? 2 : 16 / kLanes;  // vectors of one

template <int kV>
HWY_INLINE void MultiplyTile(const Product& p, int64_t m, int64_t n) {
  const BlockTag d;
  BlockVec sum[kRows][kV];
  float* c = p.c + m * p.c_row + n;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < kV; ++v)
      sum[i][v] = p.accumulate ? hn::Load(d, c + i * p.c_row + v * kLanes) : hn::Zero(d);
  const float *a = p.a + m * p.a_row, *b = p.b + n;
  for (int64_t k = 0; k < p.k; ++k, a += p.a_step, b += p.b_row) {
    BlockVec column[kV];
#pragma GCC unroll 16
    for (int v = 0; v < kV; ++v) column[v] = hn::Load(d, b + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto x = hn::Set(d, a[i * p.a_row]);
#pragma GCC unroll 16
      for (int v = 0; v < kV; ++v) sum[i][v] = hn::MulAdd(x, column[v], sum[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < kV; ++v) hn::Store(sum[i][v], d, c + i * p.c_row + v * kLanes);
}

HWY_NOINLINE void Multiply(const Product& p) {
  int64_t n = 0;
  for (; n + kColumns * kLanes <= p.n; n += kColumns * kLanes)
    for (int64_t m = 0; m < p.m; m += kRows) MultiplyTile<kColumns>(p, m, n);
  if (n < p.n)
    for (int64_t m = 0; m < p.m; m += kRows) MultiplyTile<16 / kLanes>(p, m, n);
}

template <class T>
void CopyRow(float* to, const T* from, int64_t d, int64_t width) {
  Widen(to, from, d);
  std::fill(to + d, to + width, 0.0f);
}

// One row of the halo's keys, (columns, width) with zeros for padding.
template <class T>
void CopyKeys(float* to, const T* x, int64_t stride, int64_t d, int64_t width, const DsaHalo& h, int64_t plane,
              int64_t r) {
  const int64_t there = r < h.rows_there ? h.columns_there : 0;
  for (int64_t c = 0; c < there; ++c) CopyRow(to + c * width, x + (dsa_row_token(h, plane, r) + c) * stride, d, width);
  std::fill(to + there * width, to + h.columns * width, 0.0f);
}

inline int64_t Width(int64_t d) { return (d + 15) / 16 * 16; }

// a's rows as columns, so that keys are read as they lie: scores are made as [key][32] and turned.
template <class T>
void ScoresOf(float* scores, int64_t row, int64_t m, const float* a, const T* keys, int64_t stride, int64_t d,
              const DsaHalo& h, float* scratch) {
  const int64_t width = Width(d);
  float *at = scratch, *x = at + width * kQ, *st = x + h.columns * width;
  for (int64_t c = 0; c < width; ++c)
    for (int64_t i = 0; i < m; ++i) at[c * kQ + i] = a[i * width + c];
  for (int64_t p = 0; p < h.planes; ++p)
    for (int64_t r = 0; r < h.rows; ++r) {
      CopyKeys(x, keys, stride, d, width, h, p, r);
      Multiply({.m = h.columns, .n = m, .k = d, .a = x, .a_row = width, .a_step = 1, .b = at, .b_row = kQ, .c = st,
                .c_row = kQ, .accumulate = false});
      float* to = scores + (p * h.rows + r) * h.columns;
      for (int64_t i = 0; i < m; ++i)
        for (int64_t c = 0; c < h.columns; ++c) to[i * row + c] = st[c * kQ + i];
    }
}

template <class T>
void WeighOf(float* result, const float* weights, int64_t row, int64_t m, const T* values, int64_t stride, int64_t d,
             const DsaHalo& h, float* scratch) {
  const int64_t width = Width(d);
  for (int64_t p = 0; p < h.planes; ++p)
    for (int64_t r = 0; r < h.rows_there; ++r) {
      CopyKeys(scratch, values, stride, d, width, h, p, r);
      Multiply({.m = m, .n = width, .k = h.columns, .a = weights + (p * h.rows + r) * h.columns, .a_row = row,
                .a_step = 1, .b = scratch, .b_row = width, .c = result, .c_row = width, .accumulate = p > 0 || r > 0});
    }
}

void Scores(float* scores, int64_t row, int64_t m, const float* a, const void* keys, int64_t stride, int64_t d,
            const DsaHalo& h, DType dtype, void* scratch) {
  auto* x = static_cast<float*>(scratch);
  if (dtype == DType::kBF16) return ScoresOf(scores, row, m, a, static_cast<const bf16*>(keys), stride, d, h, x);
  ScoresOf(scores, row, m, a, static_cast<const float*>(keys), stride, d, h, x);
}

void Weigh(float* result, const float* weights, int64_t row, int64_t m, const void* values, int64_t stride, int64_t d,
           const DsaHalo& h, DType dtype, void* scratch) {
  auto* x = static_cast<float*>(scratch);
  if (dtype == DType::kBF16) return WeighOf(result, weights, row, m, static_cast<const bf16*>(values), stride, d, h, x);
  WeighOf(result, weights, row, m, static_cast<const float*>(values), stride, d, h, x);
}

void Outer(float* gradient, int64_t stride, const float* weights, int64_t row, const float* b, int64_t d,
           const DsaHalo& h, void* scratch) {
  const int64_t width = Width(d);
  auto* sums = static_cast<float*>(scratch);
  for (int64_t p = 0; p < h.planes; ++p)
    for (int64_t r = 0; r < h.rows_there; ++r) {
      Multiply({.m = h.columns, .n = width, .k = kQ, .a = weights + (p * h.rows + r) * h.columns, .a_row = 1,
                .a_step = row, .b = b, .b_row = width, .c = sums, .c_row = width, .accumulate = false});
      for (int64_t c = 0; c < h.columns_there; ++c) {
        float* to = gradient + (dsa_row_token(h, p, r) + c) * stride;
        ForEach(d, [&](auto tag, int64_t i) {
          hn::StoreU(hn::Add(hn::LoadU(tag, to + i), hn::LoadU(tag, sums + c * width + i)), tag, to + i);
        });
      }
    }
}

void WidenRow(float* a, const void* x, int64_t d, int64_t width, DType dtype) {
  if (dtype == DType::kBF16) return CopyRow(a, static_cast<const bf16*>(x), d, width);
  CopyRow(a, static_cast<const float*>(x), d, width);
}

float Dot(const float* x, const float* y, int64_t n) {
  const BlockTag d;
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}

bool Store(float* out, const float* x, float factor, int64_t n) {
  float rest = 0;
  const BlockTag block;
  auto zero = hn::Zero(block);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto y = hn::Mul(hn::LoadU(block, x + i), hn::Set(block, factor));
    hn::StoreU(y, block, out + i);
    zero = hn::MulAdd(y, hn::Zero(block), zero);
  }
  for (; i < n; ++i) {
    out[i] = x[i] * factor;
    rest += out[i] * 0;
  }
  return rest == 0 && hn::AllTrue(block, hn::Eq(zero, hn::Zero(block)));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(Scores);
HWY_EXPORT(Weigh);
HWY_EXPORT(Outer);
HWY_EXPORT(WidenRow);
HWY_EXPORT(Dot);
HWY_EXPORT(Store);

int64_t dsa_vector_scratch(const DsaHalo& h, int64_t width) {
  return 4 * (kDsaTileQueries * width + h.columns * (width + kDsaTileQueries));
}
void dsa_vector_scores(float* scores, int64_t row, int64_t m, const float* a, const void* keys, int64_t stride,
                       int64_t d, const DsaHalo& halo, DType dtype, void* scratch) {
  HWY_DYNAMIC_DISPATCH(Scores)(scores, row, m, a, keys, stride, d, halo, dtype, scratch);
}
void dsa_vector_weigh(float* result, const float* weights, int64_t row, int64_t m, const void* values, int64_t stride,
                      int64_t d, const DsaHalo& halo, DType dtype, void* scratch) {
  HWY_DYNAMIC_DISPATCH(Weigh)(result, weights, row, m, values, stride, d, halo, dtype, scratch);
}
void dsa_vector_outer(float* gradient, int64_t stride, const float* weights, int64_t row, const float* b, int64_t d,
                      const DsaHalo& halo, void* scratch) {
  HWY_DYNAMIC_DISPATCH(Outer)(gradient, stride, weights, row, b, d, halo, scratch);
}
void dsa_vector_widen(float* a, const void* x, int64_t d, int64_t width, DType dtype) {
  HWY_DYNAMIC_DISPATCH(WidenRow)(a, x, d, width, dtype);
}
float dsa_vector_dot(const float* x, const float* y, int64_t d) { return HWY_DYNAMIC_DISPATCH(Dot)(x, y, d); }
bool dsa_vector_store(float* out, const float* x, float factor, int64_t d) {
  return HWY_DYNAMIC_DISPATCH(Store)(out, x, factor, d);
}
}  // namespace megaslide
#endif  // HWY_ONCE
