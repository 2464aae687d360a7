#include <algorithm>
#include <cmath>

#include "kernels/dsa/dsa_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dsa/dsa_tile_samples.cc"
#include "kernels/simd_targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/attention/block-inl.h"
#include "kernels/dsa/dsa_samples-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kQ = kDsaTileQueries;

struct TilePlacer {
  const DsaShape& s;
  const DsaTile& t;
  const DsaTilePlaces& places;
  const float *e, *slope;  // [lane][padded]
  alignas(64) float start[3][kQ];
  alignas(64) int32_t offsets_row[kQ], cell_row[kQ];

  // Slot `ordinal` = (j[0], j[1], j[2]) of the lanes from `lane` on.
  HWY_INLINE void Slot(int64_t ordinal, const int64_t j[3], int64_t lane) const {
    const BlockTag d;
    const BlockIndexTag di;
    const int64_t slot = (j[0] * s.kernel[1] + j[1]) * s.kernel[2] + j[2];
    const int64_t length[3] = {1, t.halo.rows, t.halo.columns};
    auto key = hn::Zero(di);
    for (int a = 0; a < 3; ++a) {
      const auto base = hn::Add(hn::Load(d, start[a] + lane), hn::Set(d, static_cast<float>(j[a])));
      const auto low = static_cast<float>(t.lo[a]);
      AxisPlace p{hn::Sub(base, hn::Set(d, low)), hn::Zero(d), hn::Zero(d)};
      if (!t.idle[a]) {
        const auto rows = hn::Load(di, offsets_row + lane);
        const int64_t component = dsa_offset_index(s, 0, j[0], slot, a);
        // The halo's border is the grid's, or a whole reach away, where e cannot pass it.
        p = PlaceAxis(base, hn::GatherIndex(d, e + component, rows), hn::GatherIndex(d, slope + component, rows), low,
                      static_cast<float>(t.hi[a]), low);
      }
      const int64_t at = (ordinal * 3 + a) * kQ + lane;
      hn::Store(p.f, d, places.f + at);
      if (places.slope != nullptr) hn::Store(p.slope, d, places.slope + at);
      key = hn::Add(hn::Mul(key, hn::Set(di, static_cast<int32_t>(length[a]))), hn::ConvertTo(di, p.corner));
    }
    hn::Store(hn::ShiftLeft<2>(hn::Add(key, hn::Load(di, cell_row + lane))), di, places.cell + ordinal * kQ + lane);
  }
};

void Place(const DsaShape& s, const DsaTile& t, int64_t batch, int64_t group, const float* offsets,
           const DsaTilePlaces& places, float* scratch) {
  const int64_t padded = PaddedOffsets(s);
  float *e = scratch + 2 * padded, *slope = e + kQ * padded;
  Displace(s, t.active, t.token, offsets + batch * s.tokens() * dsa_offset_row(s), group, scratch, e, slope);
  TilePlacer placer{.s = s, .t = t, .places = places, .e = e, .slope = slope, .start = {}, .offsets_row = {},
                    .cell_row = {}};
  for (int64_t i = 0; i < kQ; ++i) {
    const int64_t p[3] = {t.frame, t.h[i], t.w[i]};
    for (int a = 0; a < 3; ++a) {
      const int64_t start = dsa_window_start(p[a], t.bounds.k_eff[a], t.bounds.lo[a], t.bounds.hi[a]);
      placer.start[a][i] = static_cast<float>(start);
    }
    placer.offsets_row[i] = static_cast<int32_t>(std::min(i, t.active - 1) * padded);
    placer.cell_row[i] = static_cast<int32_t>(i * t.row);
  }
  int64_t ordinal = 0;
  int64_t j[3];
  for (j[0] = 0; j[0] < t.bounds.k_eff[0]; ++j[0])
    for (j[1] = 0; j[1] < t.bounds.k_eff[1]; ++j[1])
      for (j[2] = 0; j[2] < t.bounds.k_eff[2]; ++j[2], ++ordinal)
        for (int64_t lane = 0; lane < t.lanes; lane += kLanes) placer.Slot(ordinal, j, lane);
}

struct Neighbours {
  BlockVec left, right;
};

// The floats at base + cell bytes and behind them, a lane each.
HWY_INLINE Neighbours LoadNeighbours(const float* base, const int32_t* cell) {
  const BlockTag d;
#if HWY_TARGET <= HWY_AVX2
  const hn::Repartition<int64_t, BlockTag> d64;
  const hn::Rebind<int32_t, decltype(d64)> dh;
  const auto* pairs = reinterpret_cast<const int64_t*>(base);
  const auto lo = hn::BitCast(d, hn::GatherOffset(d64, pairs, hn::PromoteTo(d64, hn::Load(dh, cell))));
  const auto hi = hn::BitCast(d, hn::GatherOffset(d64, pairs, hn::PromoteTo(d64, hn::Load(dh, cell + kLanes / 2))));
  return {hn::ConcatEven(d, hi, lo), hn::ConcatOdd(d, hi, lo)};
#else
  const auto offset = hn::Load(BlockIndexTag(), cell);
  return {hn::GatherOffset(d, base, offset), hn::GatherOffset(d, base + 1, offset)};
#endif
}

// The corners of one sample a lane; kT: 8 of them, else 4. kW: samples move along w.
template <bool kT, bool kW>
struct TileCorners : Corners<kT> {
  using Corners<kT>::kPlanes;
  using Corners<kT>::c;
  HWY_INLINE void Read(const float* map, const DsaTile& b, const int32_t* cell) {
    for (int t = 0; t < kPlanes; ++t)
      for (int h = 0; h < 2; ++h) {
        const Neighbours n = LoadNeighbours(map + t * b.step_t + h * b.step_h, cell);
        c[t][h][0] = n.left, c[t][h][1] = kW ? n.right : n.left;
      }
  }
  // map[corner] += weight. A query's row of the map is its own, so lanes never meet.
  HWY_INLINE void AddTo(float* map, const DsaTile& b, const int32_t* cell) const {
    const BlockTag d;
    [[maybe_unused]] const hn::CappedTag<float, 2> two;
    alignas(64) float pairs[kPlanes * 2][2 * kLanes];
    for (int i = 0; i < kPlanes * 2; ++i) hn::StoreInterleaved2(c[i / 2][i % 2][0], c[i / 2][i % 2][1], d, pairs[i]);
    const int64_t step_t = b.step_t, step_h = b.step_h;
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane) {
      float* p = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(map) + cell[lane]);
#pragma GCC unroll 4
      for (int i = 0; i < kPlanes * 2; ++i) {
        float* at = p + i / 2 * step_t + i % 2 * step_h;
#if HWY_TARGET == HWY_SCALAR
        at[0] += pairs[i][2 * lane], at[1] += pairs[i][2 * lane + 1];
#else
        hn::StoreU(hn::Add(hn::LoadU(two, at), hn::LoadU(two, pairs[i] + 2 * lane)), two, at);
#endif
      }
    }
  }
};

struct TileFractions {
  HWY_INLINE TileFractions(const float* f, int64_t slot, int64_t lane)
      : t(hn::Load(BlockTag(), f + slot * 3 * kQ + lane)), h(hn::Load(BlockTag(), f + (slot * 3 + 1) * kQ + lane)),
        w(hn::Load(BlockTag(), f + (slot * 3 + 2) * kQ + lane)) {}
  BlockVec t, h, w;
};

template <bool kT, bool kW>
void SoftmaxOf(const DsaTile& t, const DsaTilePlaces& places, float scale, const float* scores, float* samples,
               float* pi, float* lse, float* inverse) {
  const BlockTag d;
  for (int64_t lane = 0; lane < t.lanes; lane += kLanes) {
    auto top = hn::Set(d, -INFINITY);
    auto zero = hn::Zero(d);
    for (int64_t j = 0; j < t.slots; ++j) {
      const TileFractions f(places.f, j, lane);
      TileCorners<kT, kW> corners;
      corners.Read(scores, t, places.cell + j * kQ + lane);
      const auto s = hn::Mul(corners.Value(f.t, f.h, f.w), hn::Set(d, scale));
      hn::Store(s, d, samples + j * kLanes);
      top = hn::Max(top, s);
      zero = hn::MulAdd(s, hn::Zero(d), zero);
    }
    auto sum = zero;  // NaN where a score is not finite
    for (int64_t j = 0; j < t.slots; ++j) {
      const TileFractions f(places.f, j, lane);
      const auto p = ExpKeepNan(d, hn::Sub(hn::Load(d, samples + j * kLanes), top));
      sum = hn::Add(sum, p);
      TileCorners<kT, kW> weights;
      weights.Weights(p, f.t, f.h, f.w);
      weights.AddTo(pi, t, places.cell + j * kQ + lane);
    }
    hn::Store(hn::Div(hn::Set(d, 1.0f), sum), d, inverse + lane);
    hn::Store(hn::Add(top, hn::Log(d, sum)), d, lse + lane);
  }
}

template <bool kT, bool kW>
void GradientsOf(const DsaTile& t, const DsaTilePlaces& places, float scale, const float* scores, const float* dp_map,
                 DsaTileStats& stats, float* pi, float* gamma, float* partial) {
  const BlockTag d;
  const auto scale_v = hn::Set(d, scale);
  // One sample: P is 1 whatever the score, dP − D is rounding noise and dS is 0.
  const auto ds_scale = t.slots > 1 ? scale_v : hn::Zero(d);
  for (int64_t lane = 0; lane < t.lanes; lane += kLanes) {
    const auto lse = hn::Load(d, stats.lse + lane), dot = hn::Load(d, stats.dot + lane);
    const auto live = hn::Load(d, stats.live + lane);
    auto zero = hn::Zero(d);
    for (int64_t j = 0; j < t.slots; ++j) {
      const int32_t* cell = places.cell + j * kQ + lane;
      const TileFractions f(places.f, j, lane);
      TileCorners<kT, kW> a, bm;
      a.Read(scores, t, cell);
      bm.Read(dp_map, t, cell);
      const auto s = hn::Mul(a.Value(f.t, f.h, f.w), scale_v), dp = bm.Value(f.t, f.h, f.w);
      const auto p = hn::Mul(ExpKeepNan(d, hn::Sub(s, lse)), live);
      const auto ds = hn::Mul(hn::Mul(p, hn::Sub(dp, dot)), ds_scale);
      for (int i = 0; i < TileCorners<kT, kW>::kPlanes * 4; ++i) {
        auto& at = a.c[i / 4][i / 2 % 2][i % 2];
        at = hn::MulAdd(ds, at, hn::Mul(p, bm.c[i / 4][i / 2 % 2][i % 2]));
      }
      BlockVec slope[3];
      a.Slopes(f.t, f.h, f.w, slope);
      for (int axis = 0; axis < 3; ++axis) {
        hn::Store(slope[axis], d, partial + (j * 3 + axis) * kQ + lane);
        zero = hn::MulAdd(slope[axis], hn::Zero(d), zero);
      }
      zero = hn::MulAdd(hn::Add(p, ds), hn::Zero(d), zero);
      a.Weights(p, f.t, f.h, f.w);
      a.AddTo(pi, t, cell);
      a.Weights(ds, f.t, f.h, f.w);
      a.AddTo(gamma, t, cell);
    }
    hn::Store(hn::IfThenElseZero(hn::Eq(zero, hn::Zero(d)), live), d, stats.live + lane);
  }
}

// body(kT, kW) with what moves in this tile.
template <class F>
void ForAxes(const DsaTile& t, F body) {
  if (t.idle[0])
    t.idle[2] ? body(std::false_type(), std::false_type()) : body(std::false_type(), std::true_type());
  else
    t.idle[2] ? body(std::true_type(), std::false_type()) : body(std::true_type(), std::true_type());
}

void Softmax(const DsaTile& t, const DsaTilePlaces& places, float scale, const float* scores, float* samples, float* pi,
             float* lse, float* inverse) {
  ForAxes(t, [&](auto time, auto wide) {
    SoftmaxOf<decltype(time)::value, decltype(wide)::value>(t, places, scale, scores, samples, pi, lse, inverse);
  });
}

void Gradients(const DsaTile& t, const DsaTilePlaces& places, float scale, const float* scores, const float* dp,
               DsaTileStats& stats, float* pi, float* gamma, float* partial) {
  ForAxes(t, [&](auto time, auto wide) {
    GradientsOf<decltype(time)::value, decltype(wide)::value>(t, places, scale, scores, dp, stats, pi, gamma, partial);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(Place);
HWY_EXPORT(Softmax);
HWY_EXPORT(Gradients);

int64_t dsa_tile_place_scratch(const DsaShape& s) {
  return (2 + 2 * kDsaTileQueries) * ((dsa_offset_count(s) / s.groups + 15) / 16 * 16);
}
void dsa_tile_place(const DsaShape& s, const DsaTile& t, int64_t batch, int64_t group, const float* offsets,
                    const DsaTilePlaces& places, float* scratch) {
  HWY_DYNAMIC_DISPATCH(Place)(s, t, batch, group, offsets, places, scratch);
}
void dsa_tile_softmax(const DsaTile& t, const DsaTilePlaces& places, float scale, const float* scores, float* samples,
                      float* pi, float* lse, float* inverse) {
  HWY_DYNAMIC_DISPATCH(Softmax)(t, places, scale, scores, samples, pi, lse, inverse);
}
void dsa_tile_gradients(const DsaTile& t, const DsaTilePlaces& places, float scale, const float* scores,
                        const float* dp, DsaTileStats& stats, float* pi, float* gamma, float* partial) {
  HWY_DYNAMIC_DISPATCH(Gradients)(t, places, scale, scores, dp, stats, pi, gamma, partial);
}
}  // namespace megaslide
#endif  // HWY_ONCE
