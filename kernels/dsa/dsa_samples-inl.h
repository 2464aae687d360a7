// The scalar half of DSA on a block of 16 queries, one query a lane: where the samples lie, reading scores at them by
// trilinear interpolation, softmax, and spreading sample weights back to the integer keys. Included once a target.
#if defined(MEGASLIDE_DSA_SAMPLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGASLIDE_DSA_SAMPLES_INL_H_
#undef MEGASLIDE_DSA_SAMPLES_INL_H_
#else
#define MEGASLIDE_DSA_SAMPLES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/attention/block-inl.h"
#include "kernels/dsa/dsa_block.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {

using BlockIndexTag = hn::RebindToSigned<BlockTag>;

// Raw offsets of a group, rounded up to whole vectors.
inline int64_t GroupOffsets(const DsaShape& s) { return dsa_offset_count(s) / s.groups; }
inline int64_t PaddedOffsets(const DsaShape& s) { return (GroupOffsets(s) + 15) / 16 * 16; }
// Floats that PlaceSamples works in.
inline int64_t PlaceScratch(const DsaShape& s) { return (2 + 2 * kBlock) * PaddedOffsets(s); }

// e = R·tanh(o/R) and 1 − tanh² of all raw offsets of `active` queries: [lane][padded].
inline HWY_NOINLINE void Displace(const DsaShape& s, int64_t active, const int64_t* token,
                                  const float* raw /*of the sample*/, int64_t group, float* reach, float* e,
                                  float* slope) {
  const BlockTag d;
  const int64_t n = GroupOffsets(s), padded = PaddedOffsets(s);
  float* inverse = reach + padded;
  for (int64_t i = 0; i < padded; ++i) {
    const int axis = s.mode == DsaOffsetMode::kSlice ? static_cast<int>(1 + i % 2) : static_cast<int>(i % 3);
    reach[i] = i < n ? s.reach[axis] : 0;
    inverse[i] = reach[i] > 0 ? 1 / reach[i] : 0;
  }
  for (int64_t lane = 0; lane < active; ++lane) {
    const float* o = raw + token[lane] * dsa_offset_row(s) + group * n;
    std::copy(o, o + n, e + lane * padded);
    std::fill(e + lane * padded + n, e + (lane + 1) * padded, 0.0f);
    for (int64_t i = 0; i < padded; i += kLanes) {
      const auto x = hn::Mul(hn::Load(d, e + lane * padded + i), hn::Load(d, inverse + i));
      const auto t = hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x));
      const auto r = hn::Load(d, reach + i);
      const auto on = hn::Gt(r, hn::Zero(d));
      hn::Store(hn::IfThenElseZero(on, hn::Mul(r, t)), d, e + lane * padded + i);
      hn::Store(hn::IfThenElseZero(on, hn::NegMulAdd(t, t, hn::Set(d, 1.0f))), d, slope + lane * padded + i);
    }
  }
}

// One axis of one slot, 16/kLanes vectors of lanes: the cell's lower corner relative to the halo, its fraction, and
// the slope (dsa_cell in vectors).
struct AxisPlace {
  BlockVec corner, f, slope;
};
HWY_INLINE AxisPlace PlaceAxis(BlockVec base, BlockVec e, BlockVec slope, float lo, float hi, float halo_lo) {
  const BlockTag d;
  const auto low = hn::Sub(hn::Set(d, lo), base), high = hn::Sub(hn::Set(d, hi), base);
  const auto nan = hn::IsNaN(e);
  const auto x = hn::Max(hn::Min(hn::IfThenElse(nan, low, e), high), low);
  const auto i0 = hn::Max(hn::Min(hn::Floor(x), hn::Sub(high, hn::Set(d, 1.0f))), low);
  AxisPlace p;
  p.corner = hn::Add(hn::Sub(base, hn::Set(d, halo_lo)), i0);
  p.f = hn::IfThenElse(nan, e, hn::Sub(x, i0));
  p.slope = hn::IfThenElseZero(hn::And(hn::Ge(e, low), hn::Le(e, high)), slope);
  return p;
}

// Fills `places` for the slots that exist, in nominal order. `scratch` has PlaceScratch floats.
inline HWY_NOINLINE void PlaceSamples(const DsaShape& s, const DsaBlock& b, int64_t batch, int64_t group,
                                      const float* offsets, const DsaPlaces& places, float* scratch) {
  const BlockTag d;
  const BlockIndexTag di;
  const int64_t padded = PaddedOffsets(s);
  float *e = scratch + 2 * padded, *slope = e + kBlock * padded;
  Displace(s, b.active, b.token, offsets + batch * s.tokens() * dsa_offset_row(s), group, scratch, e, slope);
  alignas(64) float start[3][kBlock];
  alignas(64) int32_t row[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) {
    const int64_t p[3] = {b.frame, b.h[i], b.w[i]};
    for (int a = 0; a < 3; ++a)
      start[a][i] = static_cast<float>(dsa_window_start(p[a], b.bounds.k_eff[a], b.bounds.lo[a], b.bounds.hi[a]));
    row[i] = static_cast<int32_t>(std::min(i, b.active - 1) * padded);
  }
  int64_t ordinal = 0;
  int64_t j[3];
  for (j[0] = 0; j[0] < b.bounds.k_eff[0]; ++j[0])
    for (j[1] = 0; j[1] < b.bounds.k_eff[1]; ++j[1])
      for (j[2] = 0; j[2] < b.bounds.k_eff[2]; ++j[2], ++ordinal)
        for (int v = 0; v < kVecs; ++v) {
          const int64_t lane = v * kLanes, at = ordinal * kBlock + lane;
          const auto rows = hn::Load(di, row + lane);
          auto cell = hn::Zero(di);
          for (int a = 0; a < 3; ++a) {
            const auto base = hn::Add(hn::Load(d, start[a] + lane), hn::Set(d, static_cast<float>(j[a])));
            AxisPlace p{hn::Sub(base, hn::Set(d, static_cast<float>(b.halo_lo[a]))), hn::Zero(d), hn::Zero(d)};
            if (!b.idle[a]) {
              const int64_t slot = (j[0] * s.kernel[1] + j[1]) * s.kernel[2] + j[2];
              const int64_t component = dsa_offset_index(s, 0, j[0], slot, a);
              // The halo's border is the grid's, or a whole reach away, where e cannot pass it.
              const int64_t hi = std::min(b.bounds.hi[a], b.halo_lo[a] + b.halo_n[a] - 1);
              p = PlaceAxis(base, hn::GatherIndex(d, e + component, rows), hn::GatherIndex(d, slope + component, rows),
                            static_cast<float>(b.halo_lo[a]), static_cast<float>(hi),
                            static_cast<float>(b.halo_lo[a]));
            }
            hn::Store(p.f, d, places.f[a] + at);
            if (places.slope[a] != nullptr) hn::Store(p.slope, d, places.slope[a] + at);
            const auto n = hn::Set(di, static_cast<int32_t>(a == 0 ? 1 : b.halo_n[a]));
            cell = hn::Add(hn::Mul(cell, n), hn::ConvertTo(di, p.corner));
          }
          hn::Store(hn::Add(hn::ShiftLeft<4>(cell), hn::Iota(di, static_cast<int32_t>(lane))), di, places.cell + at);
        }
}

HWY_INLINE BlockVec Lerp(BlockVec a, BlockVec b, BlockVec f) { return hn::MulAdd(f, hn::Sub(b, a), a); }

// The corners of one sample a lane. kT: samples leave their frame, 8 corners instead of 4.
template <bool kT>
struct Corners {
  static constexpr int kPlanes = kT ? 2 : 1;
  BlockVec c[kPlanes][2][2];  // t, h, w

  Corners() = default;
  HWY_INLINE Corners(const float* map, const DsaBlock& b, hn::Vec<BlockIndexTag> cell) {
    const BlockTag d;
    for (int t = 0; t < kPlanes; ++t)
      for (int h = 0; h < 2; ++h)
        for (int w = 0; w < 2; ++w)
          c[t][h][w] = hn::GatherIndex(d, map + (t * b.step[0] + h * b.step[1] + w * b.step[2]) * kBlock, cell);
  }
  HWY_INLINE BlockVec Value(BlockVec ft, BlockVec fh, BlockVec fw) const {
    BlockVec plane[kPlanes];
    for (int t = 0; t < kPlanes; ++t)
      plane[t] = Lerp(Lerp(c[t][0][0], c[t][0][1], fw), Lerp(c[t][1][0], c[t][1][1], fw), fh);
    return kT ? Lerp(plane[0], plane[kPlanes - 1], ft) : plane[0];
  }
  // ∂/∂(t, h, w) of Value.
  HWY_INLINE void Slopes(BlockVec ft, BlockVec fh, BlockVec fw, BlockVec slope[3]) const {
    BlockVec plane[kPlanes], along_h[kPlanes], along_w[kPlanes];
    for (int t = 0; t < kPlanes; ++t) {
      const auto w0 = hn::Sub(c[t][0][1], c[t][0][0]), w1 = hn::Sub(c[t][1][1], c[t][1][0]);
      const auto h0 = hn::MulAdd(fw, w0, c[t][0][0]), h1 = hn::MulAdd(fw, w1, c[t][1][0]);
      along_w[t] = Lerp(w0, w1, fh);
      along_h[t] = hn::Sub(h1, h0);
      plane[t] = hn::MulAdd(fh, along_h[t], h0);
    }
    slope[0] = kT ? hn::Sub(plane[kPlanes - 1], plane[0]) : hn::Zero(BlockTag());
    slope[1] = kT ? Lerp(along_h[0], along_h[kPlanes - 1], ft) : along_h[0];
    slope[2] = kT ? Lerp(along_w[0], along_w[kPlanes - 1], ft) : along_w[0];
  }
  // The trilinear weights times p.
  HWY_INLINE void Weights(BlockVec p, BlockVec ft, BlockVec fh, BlockVec fw) {
    BlockVec plane[kPlanes];
    if constexpr (kT) {
      plane[1] = hn::Mul(p, ft);
      plane[0] = hn::Sub(p, plane[1]);
    } else {
      plane[0] = p;
    }
    for (int t = 0; t < kPlanes; ++t) {
      const auto h1 = hn::Mul(plane[t], fh), h0 = hn::Sub(plane[t], h1);
      c[t][0][1] = hn::Mul(h0, fw);
      c[t][0][0] = hn::Sub(h0, c[t][0][1]);
      c[t][1][1] = hn::Mul(h1, fw);
      c[t][1][0] = hn::Sub(h1, c[t][1][1]);
    }
  }
  // map[corner] += weight. Lanes own their column of the map, so they never meet.
  HWY_INLINE void AddTo(float* map, const DsaBlock& b, const int32_t* cell) const {
    const BlockTag d;
    alignas(64) float weight[kPlanes * 4][kLanes];
    for (int i = 0; i < kPlanes * 4; ++i) hn::Store(c[i / 4][i / 2 % 2][i % 2], d, weight[i]);
    for (int lane = 0; lane < kLanes; ++lane) {
      float* p = map + cell[lane];
#pragma GCC unroll 8
      for (int i = 0; i < kPlanes * 4; ++i)
        p[(i / 4 * b.step[0] + i / 2 % 2 * b.step[1] + i % 2 * b.step[2]) * kBlock] += weight[i][lane];
    }
  }
};

struct SampleFractions {
  HWY_INLINE SampleFractions(const DsaPlaces& p, int64_t at)
      : t(hn::Load(BlockTag(), p.f[0] + at)), h(hn::Load(BlockTag(), p.f[1] + at)), w(hn::Load(BlockTag(), p.f[2] + at)) {}
  BlockVec t, h, w;
};

template <bool kT>
bool SampleSoftmaxOf(const DsaBlock& b, const DsaPlaces& places, float scale, const float* scores, float* samples,
                     float* lse) {
  const BlockTag d;
  const BlockIndexTag di;
  bool finite = true;
  for (int v = 0; v < kVecs; ++v) {
    const int64_t lane = v * kLanes;
    auto top = hn::Set(d, -INFINITY);
    auto zero = hn::Zero(d);
    for (int64_t j = 0; j < b.slots; ++j) {
      const int64_t at = j * kBlock + lane;
      const SampleFractions f(places, at);
      const Corners<kT> corners(scores, b, hn::Load(di, places.cell + at));
      const auto s = hn::Mul(corners.Value(f.t, f.h, f.w), hn::Set(d, scale));
      hn::Store(s, d, samples + at);
      top = hn::Max(top, s);
      zero = hn::MulAdd(s, hn::Zero(d), zero);
    }
    finite = finite && hn::AllTrue(d, hn::Eq(zero, hn::Zero(d)));
    auto sum = hn::Zero(d);
    for (int64_t j = 0; j < b.slots; ++j) {
      float* at = samples + j * kBlock + lane;
      const auto p = hn::Exp(d, hn::Sub(hn::Load(d, at), top));
      sum = hn::Add(sum, p);
      hn::Store(p, d, at);
    }
    const auto inverse = hn::Div(hn::Set(d, 1.0f), sum);
    for (int64_t j = 0; j < b.slots; ++j) {
      float* at = samples + j * kBlock + lane;
      hn::Store(hn::Mul(hn::Load(d, at), inverse), d, at);
    }
    hn::Store(hn::Add(top, hn::Log(d, sum)), d, lse + lane);
  }
  return finite;
}

// Interpolates the scaled scores at the samples and turns them into probabilities. False where a score is not finite.
inline HWY_NOINLINE bool SampleSoftmax(const DsaBlock& b, const DsaPlaces& places, float scale, const float* scores,
                                       float* samples, float* lse) {
  return b.step[0] != 0 ? SampleSoftmaxOf<true>(b, places, scale, scores, samples, lse)
                        : SampleSoftmaxOf<false>(b, places, scale, scores, samples, lse);
}

template <bool kT>
void SpreadSamplesOf(const DsaBlock& b, const DsaPlaces& places, const float* samples, float* pi) {
  for (int64_t j = 0; j < b.slots; ++j)
    for (int v = 0; v < kVecs; ++v) {
      const int64_t at = j * kBlock + v * kLanes;
      const SampleFractions f(places, at);
      Corners<kT> weights;
      weights.Weights(hn::Load(BlockTag(), samples + at), f.t, f.h, f.w);
      weights.AddTo(pi, b, places.cell + at);
    }
}

// Π += Pᵀ·W.
inline HWY_NOINLINE void SpreadSamples(const DsaBlock& b, const DsaPlaces& places, const float* samples, float* pi) {
  b.step[0] != 0 ? SpreadSamplesOf<true>(b, places, samples, pi) : SpreadSamplesOf<false>(b, places, samples, pi);
}

// Per query: D = Σ dO·O, LSE, and 1 for lanes in use, else 0.
struct QueryStats {
  alignas(64) float dot[kBlock], lse[kBlock], live[kBlock];
};

template <bool kT>
bool SampleGradientsOf(const DsaBlock& b, const DsaPlaces& places, float scale, const float* scores, const float* dp_map,
                       const QueryStats& stats, float* pi, float* gamma, float* partial) {
  const BlockTag d;
  const BlockIndexTag di;
  const auto scale_v = hn::Set(d, scale);
  // One sample: P is 1 whatever the score, dP − D is rounding noise and dS is 0.
  const auto ds_scale = b.slots > 1 ? scale_v : hn::Zero(d);
  auto zero = hn::Zero(d);
  for (int64_t j = 0; j < b.slots; ++j)
    for (int v = 0; v < kVecs; ++v) {
      const int64_t lane = v * kLanes, at = j * kBlock + lane;
      const SampleFractions f(places, at);
      const auto cell = hn::Load(di, places.cell + at);
      Corners<kT> a(scores, b, cell), bm(dp_map, b, cell);
      const auto s = hn::Mul(a.Value(f.t, f.h, f.w), scale_v), dp = bm.Value(f.t, f.h, f.w);
      zero = hn::MulAdd(hn::Add(s, dp), hn::Zero(d), zero);
      const auto p = hn::Mul(hn::Exp(d, hn::Sub(s, hn::Load(d, stats.lse + lane))), hn::Load(d, stats.live + lane));
      const auto ds = hn::Mul(hn::Mul(p, hn::Sub(dp, hn::Load(d, stats.dot + lane))), ds_scale);
      zero = hn::MulAdd(hn::Add(p, ds), hn::Zero(d), zero);
      for (int t = 0; t < Corners<kT>::kPlanes; ++t)
        for (int i = 0; i < 4; ++i)
          a.c[t][i / 2][i % 2] = hn::MulAdd(ds, a.c[t][i / 2][i % 2], hn::Mul(p, bm.c[t][i / 2][i % 2]));
      BlockVec slope[3];
      a.Slopes(f.t, f.h, f.w, slope);
      for (int axis = 0; axis < 3; ++axis) hn::Store(slope[axis], d, partial + (j * 3 + axis) * kBlock + lane);
      a.Weights(p, f.t, f.h, f.w);
      a.AddTo(pi, b, places.cell + at);
      a.Weights(ds, f.t, f.h, f.w);
      a.AddTo(gamma, b, places.cell + at);
    }
  return hn::AllTrue(d, hn::Eq(zero, hn::Zero(d)));
}

// Rebuilds P and dS at the samples, adds Π and Γ (with the scale), and writes the gradient at the sample points,
// [slot][3][16]. False where a value is not finite; pi, gamma and partial are then of no use.
inline HWY_NOINLINE bool SampleGradients(const DsaBlock& b, const DsaPlaces& places, float scale, const float* scores,
                                         const float* dp_map, const QueryStats& stats, float* pi, float* gamma,
                                         float* partial) {
  return b.step[0] != 0
             ? SampleGradientsOf<true>(b, places, scale, scores, dp_map, stats, pi, gamma, partial)
             : SampleGradientsOf<false>(b, places, scale, scores, dp_map, stats, pi, gamma, partial);
}

}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();
#endif  // MEGASLIDE_DSA_SAMPLES_INL_H_
