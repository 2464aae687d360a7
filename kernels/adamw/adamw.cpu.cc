#include "kernels/adamw/adamw.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/adamw/adamw_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw/adamw.cpu.cc"
#include "kernels/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

#ifndef MEGASLIDE_ADAMW_STATE_
#define MEGASLIDE_ADAMW_STATE_
namespace megaslide::adamw {
// The arrays of one update; p with fp32 masters, r with split ones, w with either.
struct Arrays {
  float* p = nullptr;
  bf16* w = nullptr;
  int16_t* r = nullptr;
  float *m, *v;
  const void* gradient;
};
}  // namespace megaslide::adamw
#endif

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {
using adamw::Arrays;
using adamw::Coefficients;
enum class Master { kSplit, kFp32, kFp32WithWeight };

// Targets without a fused multiply-add (Highway's would round twice) run the specification itself.
#undef MEGASLIDE_ADAMW_SIMD
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSE2
#define MEGASLIDE_ADAMW_SIMD 0
#else
#define MEGASLIDE_ADAMW_SIMD 1
#endif

template <class T>
float element(const void* p, int64_t i) {
  return to_float(static_cast<const T*>(p)[i]);
}

template <Master kMaster, class Gradient>
void update_one(const Coefficients& c, const Arrays& a, int64_t i) {
  const float old = kMaster == Master::kSplit ? join_master(a.w[i], a.r[i]) : a.p[i];
  const float p = adamw::update(c, old, a.m[i], a.v[i], element<Gradient>(a.gradient, i));
  if (kMaster == Master::kSplit)
    a.r[i] = master_remainder(p);
  else
    a.p[i] = p;
  if (kMaster != Master::kFp32) a.w[i] = master_weight(p);
}

#if MEGASLIDE_ADAMW_SIMD
using Words = hn::Rebind<uint32_t, FloatTag>;
using Halves = hn::Rebind<uint16_t, FloatTag>;
using Floats = hn::Vec<FloatTag>;

HWY_INLINE Floats join(const bf16* w, const int16_t* r) {
  const hn::Rebind<int16_t, FloatTag> d16;
  const hn::Rebind<int32_t, FloatTag> d32;
  const auto high =
      hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(Halves(), reinterpret_cast<const uint16_t*>(w))));
  const auto low = hn::BitCast(Words(), hn::PromoteTo(d32, hn::LoadU(d16, r)));
  return hn::BitCast(FloatTag(), hn::Add(high, low));
}
HWY_INLINE void store_weight(Floats p, bf16* w) {
  const auto u = hn::Add(hn::BitCast(Words(), p), hn::Set(Words(), 0x8000U));
  hn::StoreU(hn::TruncateTo(Halves(), hn::ShiftRight<16>(u)), Halves(), reinterpret_cast<uint16_t*>(w));
}
HWY_INLINE void store_remainder(Floats p, int16_t* r) {
  hn::StoreU(hn::TruncateTo(Halves(), hn::BitCast(Words(), p)), Halves(), reinterpret_cast<uint16_t*>(r));
}
HWY_INLINE Floats canonical(Floats x) {
  const FloatTag d;
  return hn::IfThenElse(hn::IsNaN(x), hn::BitCast(d, hn::Set(Words(), 0x7fc00000U)), x);
}
#endif

template <Master kMaster, class Gradient>
void update_range(const Coefficients& c, const Arrays& a, int64_t begin, int64_t end) {
  int64_t i = begin;
#if MEGASLIDE_ADAMW_SIMD
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto* g = static_cast<const Gradient*>(a.gradient);
  const auto clip = hn::Set(d, c.clip), b1 = hn::Set(d, c.b1), a1 = hn::Set(d, c.a1), b2 = hn::Set(d, c.b2),
             a2 = hn::Set(d, c.a2);
  const auto decay = hn::Set(d, c.decay), rate = hn::Set(d, c.rate), root = hn::Set(d, c.inverse_root),
             eps = hn::Set(d, c.eps);
  for (; i + lanes <= end; i += lanes) {
    const auto old = kMaster == Master::kSplit ? join(a.w + i, a.r + i) : hn::LoadU(d, a.p + i);
    const auto gi = hn::Mul(clip, LoadFloat(d, g + i));
    const auto m = canonical(hn::MulAdd(b1, hn::LoadU(d, a.m + i), hn::Mul(a1, gi)));
    const auto v = canonical(hn::MulAdd(b2, hn::LoadU(d, a.v + i), hn::Mul(hn::Mul(a2, gi), gi)));
    const auto kept = hn::NegMulAdd(decay, old, old);
    const auto quotient = hn::Div(m, hn::MulAdd(hn::Sqrt(v), root, eps));
    const auto p = canonical(hn::NegMulAdd(rate, quotient, kept));
    hn::StoreU(m, d, a.m + i);
    hn::StoreU(v, d, a.v + i);
    if (kMaster == Master::kSplit)
      store_remainder(p, a.r + i);
    else
      hn::StoreU(p, d, a.p + i);
    if (kMaster != Master::kFp32) store_weight(p, a.w + i);
  }
#endif
  for (; i < end; ++i) update_one<kMaster, Gradient>(c, a, i);
}

template <Master kMaster>
void update_of(const Coefficients& c, const Arrays& a, DType gradient, int64_t begin, int64_t end) {
  if (gradient == DType::kBF16)
    update_range<kMaster, bf16>(c, a, begin, end);
  else
    update_range<kMaster, float>(c, a, begin, end);
}

void update_piece(const Coefficients& c, const Arrays& a, DType gradient, int64_t begin, int64_t end) {
  if (a.r)
    update_of<Master::kSplit>(c, a, gradient, begin, end);
  else if (a.w)
    update_of<Master::kFp32WithWeight>(c, a, gradient, begin, end);
  else
    update_of<Master::kFp32>(c, a, gradient, begin, end);
}

// One leaf of the norm's tree.
template <class T>
double leaf_of(const T* g, int64_t n) {
  double lanes[adamw::kNormLanes] = {};
  int64_t i = 0;
#if MEGASLIDE_ADAMW_SIMD
  using D = hn::ScalableTag<double>;
  constexpr size_t kWidth = hn::MaxLanes(D());
  static_assert(adamw::kNormLanes % kWidth == 0);
  const D d;
  const hn::Rebind<float, D> df;
  hn::Vec<D> sum[adamw::kNormLanes / kWidth];
  for (auto& s : sum) s = hn::Zero(d);
  for (; i + adamw::kNormLanes <= n; i += adamw::kNormLanes)
    for (size_t j = 0; j < adamw::kNormLanes / kWidth; ++j) {
      const auto x = hn::PromoteTo(d, LoadFloat(df, g + i + static_cast<int64_t>(j * kWidth)));
      sum[j] = hn::MulAdd(x, x, sum[j]);
    }
  for (size_t j = 0; j < adamw::kNormLanes / kWidth; ++j) hn::StoreU(sum[j], d, lanes + j * kWidth);
#endif
  for (; i < n; ++i) {
    const auto x = static_cast<double>(to_float(g[i]));
    lanes[i % adamw::kNormLanes] += x * x;
  }
  return adamw::add_lanes(lanes);
}

double norm_leaf(const void* g, DType dtype, int64_t begin, int64_t end) {
  if (dtype == DType::kBF16) return leaf_of(static_cast<const bf16*>(g) + begin, end - begin);
  return leaf_of(static_cast<const float*>(g) + begin, end - begin);
}

// Masters to weights and, where r is given, remainders.
void split_piece(bf16* w, int16_t* r, const float* p, int64_t n) {
  int64_t i = 0;
#if MEGASLIDE_ADAMW_SIMD
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (; i + lanes <= n; i += lanes) {
    const auto x = hn::LoadU(d, p + i);
    store_weight(x, w + i);
    if (r) store_remainder(x, r + i);
  }
#endif
  for (; i < n; ++i) {
    w[i] = master_weight(p[i]);
    if (r) r[i] = master_remainder(p[i]);
  }
}

void join_piece(float* p, const bf16* w, const int16_t* r, int64_t n) {
  int64_t i = 0;
#if MEGASLIDE_ADAMW_SIMD
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (; i + lanes <= n; i += lanes) hn::StoreU(join(w + i, r + i), d, p + i);
#endif
  for (; i < n; ++i) p[i] = join_master(w[i], r[i]);
}

void convert_piece(bf16* out, const float* in, int64_t n) {
  ForEach(n, [&](auto d, int64_t i) HWY_ATTR { StoreFloat(LoadFloat(d, in + i), d, out + i); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(update_piece);
HWY_EXPORT(norm_leaf);
HWY_EXPORT(split_piece);
HWY_EXPORT(join_piece);
HWY_EXPORT(convert_piece);

namespace {
constexpr int64_t kPiece = 65536;  // a multiple of any vector's lanes

void check_dtype(DType dtype) { MS_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "{}", dtype_name(dtype)); }

void update(ThreadPool& pool, const adamw::Arrays& arrays, DType gradient_dtype, int64_t n, const AdamWStep& step) {
  check_dtype(gradient_dtype);
  MS_CHECK(step.step >= 1, "step {}", step.step);
  const adamw::Coefficients c(step);
  const auto piece = HWY_DYNAMIC_DISPATCH(update_piece);
  pool.parallel_for(n, kPiece, [&](int64_t begin, int64_t end) { piece(c, arrays, gradient_dtype, begin, end); });
}
}  // namespace

void adamw_update_split(ThreadPool& pool, bf16* w, int16_t* r, float* m, float* v, const void* gradient,
                        DType gradient_dtype, int64_t n, const AdamWStep& step) {
  update(pool, {.p = nullptr, .w = w, .r = r, .m = m, .v = v, .gradient = gradient}, gradient_dtype, n, step);
}

void adamw_update_fp32(ThreadPool& pool, float* p, bf16* w, float* m, float* v, const void* gradient,
                       DType gradient_dtype, int64_t n, const AdamWStep& step) {
  update(pool, {.p = p, .w = w, .r = nullptr, .m = m, .v = v, .gradient = gradient}, gradient_dtype, n, step);
}

double squared_norm(ThreadPool& pool, const void* gradient, DType gradient_dtype, int64_t n) {
  check_dtype(gradient_dtype);
  std::vector<double> leaves(static_cast<size_t>((n + adamw::kNormBlock - 1) / adamw::kNormBlock));
  const auto leaf = HWY_DYNAMIC_DISPATCH(norm_leaf);
  pool.parallel_for(n, adamw::kNormBlock, [&](int64_t begin, int64_t end) {
    leaves[static_cast<size_t>(begin / adamw::kNormBlock)] = leaf(gradient, gradient_dtype, begin, end);
  });
  return adamw::add_leaves(leaves.data(), leaves.size());
}

void split_master(ThreadPool& pool, bf16* w, int16_t* r, const float* p, int64_t n) {
  const auto piece = HWY_DYNAMIC_DISPATCH(split_piece);
  pool.parallel_for(n, kPiece,
                    [&](int64_t begin, int64_t end) { piece(w + begin, r + begin, p + begin, end - begin); });
}

void round_master(ThreadPool& pool, bf16* w, const float* p, int64_t n) {
  const auto piece = HWY_DYNAMIC_DISPATCH(split_piece);
  pool.parallel_for(n, kPiece, [&](int64_t begin, int64_t end) { piece(w + begin, nullptr, p + begin, end - begin); });
}

void join_master(ThreadPool& pool, float* p, const bf16* w, const int16_t* r, int64_t n) {
  const auto piece = HWY_DYNAMIC_DISPATCH(join_piece);
  pool.parallel_for(n, kPiece,
                    [&](int64_t begin, int64_t end) { piece(p + begin, w + begin, r + begin, end - begin); });
}

void convert_gradient(ThreadPool& pool, bf16* out, const float* in, int64_t n) {
  const auto piece = HWY_DYNAMIC_DISPATCH(convert_piece);
  pool.parallel_for(n, kPiece, [&](int64_t begin, int64_t end) { piece(out + begin, in + begin, end - begin); });
}

}  // namespace megaslide
#endif
