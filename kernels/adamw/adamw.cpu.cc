#include "kernels/adamw/adamw.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/adamw/adamw_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw/adamw.cpu.cc"
#include "kernels/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"
#include "kernels/adamw/codecs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {
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
    StoreWeight(x, w + i);
    if (r) StoreRemainder(x, r + i);
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
  for (; i + lanes <= n; i += lanes) hn::StoreU(Join(w + i, r + i), d, p + i);
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
HWY_EXPORT(norm_leaf);
HWY_EXPORT(split_piece);
HWY_EXPORT(join_piece);
HWY_EXPORT(convert_piece);

namespace {
constexpr int64_t kPiece = 65536;  // a multiple of any vector's lanes

void check_dtype(DType dtype) { MS_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "{}", dtype_name(dtype)); }

}  // namespace

double squared_norm(ThreadPool& pool, const void* gradient, DType gradient_dtype, int64_t n) {
  check_dtype(gradient_dtype);
  std::vector<double> leaves(static_cast<size_t>((n + adamw::kNormBlock - 1) / adamw::kNormBlock));
  const auto leaf = HWY_DYNAMIC_DISPATCH(norm_leaf);
  pool.parallel_for(n, adamw::kNormBlock, [&](int64_t begin, int64_t end) {
    leaves[static_cast<size_t>(begin / adamw::kNormBlock)] = leaf(gradient, gradient_dtype, begin, end);
  });
  return adamw::add_leaves(leaves.data(), leaves.size());
}

void cpu::adamw_by_factor(Stream& stream, AdamWState state, const void* gradient, DType gradient_dtype, int64_t n,
                          AdamWStep step, const float* factor) {
  if (std::isnan(*factor)) return;
  step.clip = *factor;
  adamw_update(stream.pool(), state, gradient, gradient_dtype, n, step);
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
