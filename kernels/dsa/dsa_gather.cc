#include "kernels/dsa/dsa_gather.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/dsa/dsa_literal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dsa/dsa_gather.cc"
#include "kernels/simd_targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/attention/block-inl.h"
#include "kernels/dsa/dsa_samples-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

// Rows of a (B,N,heads,d) tensor for one sample and head.
struct HeadRows {
  HeadRows(const DsaShape& s, int64_t batch, int64_t head)
      : stride(s.row()), base(batch * s.tokens() * stride + head * s.head_dim) {}
  int64_t at(int64_t token) const { return base + token * stride; }
  int64_t stride, base;
};

template <class T>
void PackHalo(float* dst, const T* src, const HeadRows& rows, const DsaBlock& b, int64_t d) {
  for (int64_t t = 0; t < b.halo_n[0]; ++t)
    for (int64_t h = 0; h < b.halo_n[1]; ++h) {
      const int64_t token = b.halo_token(t, h);
      for (int64_t w = 0; w < b.halo_n[2]; ++w, dst += d) Widen(dst, src + rows.at(token + w), d);
    }
}

template <class T>
void PackQueries(float* dst /*(16,d)*/, float* transposed /*(d,16)*/, const T* src, const HeadRows& rows,
                 const DsaBlock& b, int64_t d) {
  for (int64_t i = 0; i < kBlock; ++i) {
    Widen(dst + i * d, src + rows.at(b.token[i]), d);
    for (int64_t c = 0; c < d; ++c) transposed[c * kBlock + i] = dst[i * d + c];
  }
}

// Adds the block's Γᵀ·Q (or Πᵀ·dO) to the gradient of the halo's keys.
void AddHaloOuter(float* gradient, const float* weights, const float* queries, const HeadRows& rows, const DsaBlock& b,
                  int64_t d) {
  for (int64_t t = 0; t < b.halo_n[0]; ++t)
    for (int64_t h = 0; h < b.halo_n[1]; ++h) {
      const int64_t row = (t * b.halo_n[1] + h) * b.halo_n[2];
      AddOuter(gradient + rows.at(b.halo_token(t, h)), rows.stride, b.halo_n[2], weights + row * kBlock, queries, d, d);
    }
}

bool AllFinite(const float* p, int64_t n) {  // n a multiple of 16
  const BlockTag d;
  auto zero = hn::Zero(d);
  for (int64_t i = 0; i < n; i += kLanes) zero = hn::MulAdd(hn::Load(d, p + i), hn::Zero(d), zero);
  return hn::AllTrue(d, hn::Eq(zero, hn::Zero(d)));
}

// Scratch of one block and head.
struct HeadScratch {
  HeadScratch(Carver& c, const DsaBlock& b, const DsaShape& s, bool backward) {
    const int64_t d = s.head_dim;
    kp = c.take<float>(b.halo * d);
    vp = c.take<float>(b.halo * d);
    scores = c.take<float>(b.halo * kBlock);
    pi = c.take<float>(b.halo * kBlock);
    q = c.take<float>(kBlock * d);
    qt = c.take<float>(kBlock * d);
    result = c.take<float>(kBlock * d);
    samples = c.take<float>(b.slots * kBlock);
    if (!backward) return;
    dp = c.take<float>(b.halo * kBlock);
    gamma = c.take<float>(b.halo * kBlock);
    dout = c.take<float>(kBlock * d);
    dout_t = c.take<float>(kBlock * d);
  }
  float *kp, *vp;          // (halo, d): keys and values in fp32
  float *scores, *pi;      // (halo, 16): q·k, and the weights of the values
  float *q, *qt, *result;  // (16,d), (d,16), (d,16)
  float* samples;          // (slots, 16)
  float *dp = nullptr, *gamma = nullptr, *dout = nullptr, *dout_t = nullptr;
};

template <class T>
DsaInputs<T, float> Inputs(const void* q, const void* k, const void* v, const float* offsets) {
  return {static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v), offsets};
}

template <class T>
void LiteralForward(const DsaForwardArgs& a, const DsaBlock& b, int64_t batch, int64_t head) {
  const DsaShape& s = a.shape;
  const HeadRows rows(s, batch, head);
  for (int64_t i = 0; i < b.active; ++i) {
    const DsaLiteralQuery<ArithF32> query(s, Inputs<T>(a.q, a.k, a.v, a.offsets), batch, b.token[i], head);
    query.output(a.out + rows.at(b.token[i]));
    a.lse[(batch * s.tokens() + b.token[i]) * s.lse_row() + head] = query.lse();
  }
}

template <class T>
bool FastForward(const DsaForwardArgs& a, const DsaBlock& b, int64_t batch, int64_t head, const DsaPlaces& places,
                 const HeadScratch& x) {
  const DsaShape& s = a.shape;
  const int64_t d = s.head_dim;
  const HeadRows rows(s, batch, head);
  PackHalo(x.kp, static_cast<const T*>(a.k), rows, b, d);
  PackHalo(x.vp, static_cast<const T*>(a.v), rows, b, d);
  PackQueries(x.q, x.qt, static_cast<const T*>(a.q), rows, b, d);
  DotKeys(x.scores, x.kp, d, b.halo, x.qt, d);
  alignas(64) float lse[kBlock];
  if (!SampleSoftmax(b, places, s.scale, x.scores, x.samples, lse)) return false;
  Fill0(x.pi, b.halo * kBlock);
  SpreadSamples(b, places, x.samples, x.pi);
  Fill0(x.result, d * kBlock);
  WeighRows(x.result, x.vp, d, b.halo, x.pi, d);
  if (!AllFinite(x.result, d * kBlock)) return false;
  for (int64_t i = 0; i < b.active; ++i) {
    float* out = a.out + rows.at(b.token[i]);
    for (int64_t c = 0; c < d; ++c) out[c] = x.result[c * kBlock + i];
    a.lse[(batch * s.tokens() + b.token[i]) * s.lse_row() + head] = lse[i];
  }
  return true;
}

template <class T>
void ForwardPieceOf(const DsaForwardArgs& a, int64_t batch, int64_t block, int64_t group) {
  const DsaShape& s = a.shape;
  const DsaBlock b(s, a.blocking, block);
  const int64_t first = dsa_first_head(s, group), last = dsa_first_head(s, group + 1);
  if (dsa_prefers_literal(b)) {
    for (int64_t head = first; head < last; ++head) LiteralForward<T>(a, b, batch, head);
    return;
  }
  DsaPlaces places;
  float* displacements = nullptr;
  const auto carve = [&](Carver c) {
    DsaPlaces::carve(c, s, false, places);
    displacements = c.take<float>(PlaceScratch(s));
    HeadScratch x(c, b, s, false);
    return std::pair(x, c.used());
  };
  const int64_t bytes = carve(Carver()).second;
  const HeadScratch x = carve(Carver(ThreadScratch::get(bytes))).first;
  PlaceSamples(s, b, batch, group, a.offsets, places, displacements);
  for (int64_t head = first; head < last; ++head)
    if (!FastForward<T>(a, b, batch, head, places, x)) LiteralForward<T>(a, b, batch, head);
}

void ForwardPiece(const DsaForwardArgs& a, int64_t batch, int64_t block, int64_t group) {
  a.dtype == DType::kBF16 ? ForwardPieceOf<bf16>(a, batch, block, group) : ForwardPieceOf<float>(a, batch, block, group);
}

void PlacePiece(const DsaBackwardArgs& a, const DsaBand& band, int64_t index, int64_t group) {
  const DsaBlock b(a.shape, a.blocking, index % a.blocking.blocks);
  float* scratch = Carver(ThreadScratch::get(PlaceScratch(a.shape) * 4)).take<float>(PlaceScratch(a.shape));
  PlaceSamples(a.shape, b, index / a.blocking.blocks, group, a.offsets, band.places(index, group), scratch);
}

template <class T>
void LiteralBackward(const DsaBackwardArgs& a, const DsaBlock& b, int64_t batch, int64_t head, float* partial) {
  const DsaShape& s = a.shape;
  const HeadRows rows(s, batch, head);
  std::vector<float> dx(static_cast<size_t>(3 * b.slots));
  const auto in = Inputs<T>(a.q, a.k, a.v, a.offsets);
  Fill0(partial, b.slots * 3 * kBlock);
  for (int64_t i = 0; i < b.active; ++i) {
    const DsaLiteralQuery<ArithF32> query(s, in, batch, b.token[i], head);
    const int64_t row = rows.at(b.token[i]);
    query.backward(in, a.out + row, a.dout + row, a.dq + row, a.dk, a.dv, dx.data());
    for (int64_t j = 0; j < 3 * b.slots; ++j) partial[j * kBlock + i] = dx[static_cast<size_t>(j)];
  }
}

template <class T>
bool FastBackward(const DsaBackwardArgs& a, const DsaBlock& b, int64_t batch, int64_t head, const DsaPlaces& places,
                  const HeadScratch& x, float* partial) {
  const DsaShape& s = a.shape;
  const int64_t d = s.head_dim;
  const HeadRows rows(s, batch, head);
  PackHalo(x.kp, static_cast<const T*>(a.k), rows, b, d);
  PackHalo(x.vp, static_cast<const T*>(a.v), rows, b, d);
  PackQueries(x.q, x.qt, static_cast<const T*>(a.q), rows, b, d);
  PackQueries(x.dout, x.dout_t, a.dout, rows, b, d);
  DotKeys(x.scores, x.kp, d, b.halo, x.qt, d);
  DotKeys(x.dp, x.vp, d, b.halo, x.dout_t, d);
  QueryStats stats;
  for (int64_t i = 0; i < kBlock; ++i) {
    const float* out = a.out + rows.at(b.token[i]);
    float sum = 0;
    for (int64_t c = 0; c < d; ++c) sum += x.dout[i * d + c] * out[c];
    stats.dot[i] = sum;
    stats.lse[i] = a.lse[(batch * s.tokens() + b.token[i]) * s.lse_row() + head];
    stats.live[i] = i < b.active ? 1.0f : 0.0f;
  }
  Fill0(x.pi, b.halo * kBlock);
  Fill0(x.gamma, b.halo * kBlock);
  if (!SampleGradients(b, places, s.scale, x.scores, x.dp, stats, x.pi, x.gamma, partial)) return false;
  Fill0(x.result, d * kBlock);
  WeighRows(x.result, x.kp, d, b.halo, x.gamma, d);
  if (!AllFinite(x.result, d * kBlock)) return false;
  for (int64_t i = 0; i < b.active; ++i) {
    float* dq = a.dq + rows.at(b.token[i]);
    for (int64_t c = 0; c < d; ++c) dq[c] = x.result[c * kBlock + i];
  }
  AddHaloOuter(a.dk, x.gamma, x.q, rows, b, d);
  AddHaloOuter(a.dv, x.pi, x.dout, rows, b, d);
  return true;
}

template <class T>
void BackwardPieceOf(const DsaBackwardArgs& a, const DsaBand& band, int64_t batch, int64_t head, int64_t begin,
                     int64_t end) {
  const DsaShape& s = a.shape;
  const int64_t group = dsa_group(s, head);
  for (int64_t block = begin; block < end; ++block) {
    const DsaBlock b(s, a.blocking, block);
    const int64_t index = batch * a.blocking.blocks + block;
    float* partial = band.partial(index, head);
    if (!dsa_prefers_literal(b)) {
      Carver measure;
      HeadScratch(measure, b, s, true);
      Carver c(ThreadScratch::get(measure.used()));
      const HeadScratch x(c, b, s, true);
      if (FastBackward<T>(a, b, batch, head, band.places(index, group), x, partial)) continue;
    }
    LiteralBackward<T>(a, b, batch, head, partial);
  }
}

void BackwardPiece(const DsaBackwardArgs& a, const DsaBand& band, int64_t batch, int64_t head, int64_t begin,
                   int64_t end) {
  a.dtype == DType::kBF16 ? BackwardPieceOf<bf16>(a, band, batch, head, begin, end)
                          : BackwardPieceOf<float>(a, band, batch, head, begin, end);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(ForwardPiece);
HWY_EXPORT(PlacePiece);
HWY_EXPORT(BackwardPiece);

void dsa_forward_piece(const DsaForwardArgs& a, int64_t batch, int64_t block, int64_t group) {
  HWY_DYNAMIC_DISPATCH(ForwardPiece)(a, batch, block, group);
}
void dsa_place_piece(const DsaBackwardArgs& a, const DsaBand& band, int64_t index, int64_t group) {
  HWY_DYNAMIC_DISPATCH(PlacePiece)(a, band, index, group);
}
void dsa_backward_piece(const DsaBackwardArgs& a, const DsaBand& band, int64_t batch, int64_t head, int64_t begin,
                        int64_t end) {
  HWY_DYNAMIC_DISPATCH(BackwardPiece)(a, band, batch, head, begin, end);
}

void dsa_reduce_piece(const DsaBackwardArgs& a, const DsaBand& band, int64_t index, int64_t group) {
  const DsaShape& s = a.shape;
  const DsaBlock b(s, a.blocking, index % a.blocking.blocks);
  const DsaPlaces places = band.places(index, group);
  float* doffsets = a.doffsets + index / a.blocking.blocks * s.tokens() * dsa_offset_row(s);
  int64_t ordinal = 0;
  for (int64_t jt = 0; jt < b.bounds.k_eff[0]; ++jt)
    for (int64_t jh = 0; jh < b.bounds.k_eff[1]; ++jh)
      for (int64_t jw = 0; jw < b.bounds.k_eff[2]; ++jw, ++ordinal) {
        const int64_t slot = (jt * s.kernel[1] + jh) * s.kernel[2] + jw;
        for (int axis = 0; axis < 3; ++axis) {
          const int64_t at = dsa_offset_index(s, group, jt, slot, axis);
          if (at < 0 || s.reach[axis] == 0) continue;
          float sum[kDsaBlock] = {};
          for (int64_t head = dsa_first_head(s, group); head < dsa_first_head(s, group + 1); ++head) {
            const float* partial = band.partial(index, head) + (ordinal * 3 + axis) * kDsaBlock;
            for (int64_t i = 0; i < kDsaBlock; ++i) sum[i] += partial[i];
          }
          const float* slope = places.slope[axis] + ordinal * kDsaBlock;
          for (int64_t i = 0; i < b.active; ++i) doffsets[b.token[i] * dsa_offset_row(s) + at] += sum[i] * slope[i];
        }
      }
}

int64_t DsaBand::bytes_a_block(const DsaShape& s) {
  Carver c;
  DsaPlaces p;
  for (int64_t g = 0; g < s.groups; ++g) DsaPlaces::carve(c, s, true, p);
  return c.used() + s.heads * s.slots() * 3 * kDsaBlock * 4;
}

DsaPlaces DsaBand::places(int64_t index, int64_t group) const {
  Carver one;
  DsaPlaces p;
  DsaPlaces::carve(one, shape, true, p);
  Carver c(memory + (index - first) * bytes_a_block(shape) + group * one.used());
  DsaPlaces::carve(c, shape, true, p);
  return p;
}

float* DsaBand::partial(int64_t index, int64_t head) const {
  const int64_t floats = shape.slots() * 3 * kDsaBlock;
  return reinterpret_cast<float*>(memory + (index + 1 - first) * bytes_a_block(shape)) - (shape.heads - head) * floats;
}

}  // namespace megaslide
#endif  // HWY_ONCE
