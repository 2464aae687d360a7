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

// Zeros for padding.
template <class T>
void PackPlane(float* to, const T* x, int64_t stride, int64_t d, int64_t width, const DsaHalo& h, int64_t plane) {
  for (int64_t r = 0; r < h.rows_there; ++r) {
    const int64_t token = dsa_row_token(h, plane, r);
    for (int64_t c = 0; c < h.columns_there; ++c, to += width) CopyRow(to, x + (token + c) * stride, d, width);
    to = std::fill_n(to, (h.columns - h.columns_there) * width, 0.0f);
  }
}

inline int64_t Width(int64_t d) { return (d + 15) / 16 * 16; }

void Pack(float* to, const void* tensor, int64_t stride, int64_t d, const DsaHalo& h, int64_t plane, DType dtype) {
  if (dtype == DType::kBF16) return PackPlane(to, static_cast<const bf16*>(tensor), stride, d, Width(d), h, plane);
  PackPlane(to, static_cast<const float*>(tensor), stride, d, Width(d), h, plane);
}

// a's rows as columns, so that keys are read as they lie: scores are made as [key][32] and turned.
void Scores(float* scores, int64_t row, int64_t m, const float* a, const void* const* planes, int64_t d,
            const DsaHalo& h, void* scratch) {
  const int64_t width = Width(d);
  float *at = static_cast<float*>(scratch), *st = at + width * kQ;
  for (int64_t c = 0; c < width; ++c)
    for (int64_t i = 0; i < m; ++i) at[c * kQ + i] = a[i * width + c];
  for (int64_t p = 0; p < h.planes; ++p)
    for (int64_t r = 0; r < h.rows_there; ++r) {
      Multiply({.m = h.columns, .n = m, .k = d, .a = static_cast<const float*>(planes[p]) + r * h.columns * width,
                .a_row = width, .a_step = 1, .b = at, .b_row = kQ, .c = st, .c_row = kQ, .accumulate = false});
      float* to = scores + (p * h.rows + r) * h.columns;
      for (int64_t i = 0; i < m; ++i)
        for (int64_t c = 0; c < h.columns; ++c) to[i * row + c] = st[c * kQ + i];
    }
}

void Weigh(float* result, const float* weights, int64_t row, int64_t m, const void* const* planes, int64_t d,
           const DsaHalo& h) {
  const int64_t width = Width(d);
  for (int64_t p = 0; p < h.planes; ++p)
    Multiply({.m = m, .n = width, .k = h.rows_there * h.columns, .a = weights + p * dsa_plane_keys(h), .a_row = row,
              .a_step = 1, .b = static_cast<const float*>(planes[p]), .b_row = width, .c = result, .c_row = width,
              .accumulate = p > 0});
}

void Outer(float* sums, const float* kept, const float* b, int64_t count, int64_t d, const DsaHalo& h, bool accumulate) {
  const int64_t width = Width(d);
  Multiply({.m = h.rows_there * h.columns, .n = width, .k = kQ * count, .a = kept, .a_row = 1, .a_step = dsa_plane_keys(h),
            .b = b, .b_row = width, .c = sums, .c_row = width, .accumulate = accumulate});
}

void AddPlane(float* gradient, int64_t stride, const float* sums, int64_t width, int64_t d, const DsaHalo& h, int64_t plane) {
  for (int64_t r = 0; r < h.rows_there; ++r)
    for (int64_t c = 0; c < h.columns_there; ++c) {
      float* to = gradient + (dsa_row_token(h, plane, r) + c) * stride;
      const float* from = sums + (r * h.columns + c) * width;
      ForEach(d, [&](auto tag, int64_t i) {
        hn::StoreU(hn::Add(hn::LoadU(tag, to + i), hn::LoadU(tag, from + i)), tag, to + i);
      });
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
HWY_EXPORT(Pack);
HWY_EXPORT(Scores);
HWY_EXPORT(Weigh);
HWY_EXPORT(Outer);
HWY_EXPORT(AddPlane);
HWY_EXPORT(WidenRow);
HWY_EXPORT(Dot);
HWY_EXPORT(Store);

int64_t dsa_vector_scratch(const DsaHalo& h, int64_t width) { return 4 * kDsaTileQueries * (width + h.columns); }
void dsa_vector_pack(float* plane, const void* tensor, int64_t stride, int64_t d, const DsaHalo& halo, int64_t index,
                     DType dtype) {
  HWY_DYNAMIC_DISPATCH(Pack)(plane, tensor, stride, d, halo, index, dtype);
}
void dsa_vector_scores(float* scores, int64_t row, int64_t m, const float* a, const void* const* planes, int64_t d,
                       const DsaHalo& halo, void* scratch) {
  HWY_DYNAMIC_DISPATCH(Scores)(scores, row, m, a, planes, d, halo, scratch);
}
void dsa_vector_weigh(float* result, const float* weights, int64_t row, int64_t m, const void* const* planes, int64_t d,
                      const DsaHalo& halo) {
  HWY_DYNAMIC_DISPATCH(Weigh)(result, weights, row, m, planes, d, halo);
}
void dsa_vector_keep(float* kept, const float* weights, int64_t row, const DsaHalo& h) {
  for (int64_t i = 0; i < kDsaTileQueries; ++i)
    std::copy_n(weights + i * row, dsa_plane_keys(h), kept + i * dsa_plane_keys(h));
}
void dsa_vector_outer(float* sums, const float* kept, const float* b, int64_t count, int64_t d, const DsaHalo& halo,
                      bool accumulate) {
  HWY_DYNAMIC_DISPATCH(Outer)(sums, kept, b, count, d, halo, accumulate);
}
void dsa_vector_add(float* gradient, int64_t stride, const float* sums, int64_t width, int64_t d, const DsaHalo& halo,
                    int64_t index) {
  HWY_DYNAMIC_DISPATCH(AddPlane)(gradient, stride, sums, width, d, halo, index);
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
