#include "kernels/dsa/offset_net_pieces.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dsa/offset_net_pieces.cc"
#include "kernels/simd_targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

constexpr float kGeluA = 0.7978845608028654f;  // √(2/π)
constexpr float kGeluB = 0.044715f;

// The taps of a token that lie inside the grid: row distance and tap number.
struct Taps {
  Taps(const OffsetNetShape& s, int64_t row, int sign) {
    const int64_t token = row % s.tokens();
    const int64_t t = token / (s.height * s.width), h = token / s.width % s.height, w = token % s.width;
    for (int dt = -1; dt <= 1; ++dt)
      for (int dh = -1; dh <= 1; ++dh)
        for (int dw = -1; dw <= 1; ++dw) {
          const int64_t at = t + sign * dt, ah = h + sign * dh, aw = w + sign * dw;
          if (at < 0 || at >= s.frames || ah < 0 || ah >= s.height || aw < 0 || aw >= s.width) continue;
          distance[count] = sign * ((dt * s.height + dh) * s.width + dw);
          tap[count++] = (dt * 3 + dh) * 3 + dw + 13;
        }
  }
  int count = 0;
  int64_t distance[27];
  int64_t tap[27];
};

// to[c] = first[c] + Σ_taps weight[tap][c] · tensor[row + distance][c]
template <class T>
void Convolve(float* to, const float* first /*may be `to`*/, const T* HWY_RESTRICT row,
              const float* HWY_RESTRICT weight, const Taps& taps, int64_t n) {
  ForEach(n, [&](auto d, int64_t c) {
    auto sum = hn::LoadU(d, first + c);
    for (int i = 0; i < taps.count; ++i)
      sum = hn::MulAdd(hn::LoadU(d, weight + taps.tap[i] * n + c), LoadFloat(d, row + taps.distance[i] * n + c), sum);
    hn::StoreU(sum, d, to + c);
  });
}

struct NormStats {
  float mean, rstd;
};
NormStats StatsOf(const float* y, int64_t n, float eps) {
  RowSum sum, square;
  ForEach(n, [&](auto d, int64_t c) { sum.at(d) = hn::Add(sum.at(d), hn::LoadU(d, y + c)); });
  const float mean = sum.total() / static_cast<float>(n);
  ForEach(n, [&](auto d, int64_t c) {
    const auto x = hn::Sub(hn::LoadU(d, y + c), hn::Set(d, mean));
    square.at(d) = hn::MulAdd(x, x, square.at(d));
  });
  return {mean, 1 / std::sqrt(square.total() / static_cast<float>(n) + eps)};
}

// tanh(√(2/π)(z + 0.044715 z³)); NaN where z is.
template <class D>
HWY_INLINE hn::Vec<D> GeluTanh(D d, hn::Vec<D> z) {
  const auto cubic = hn::MulAdd(hn::Mul(hn::Mul(z, z), z), hn::Set(d, kGeluB), z);
  return hn::IfThenElse(hn::IsNaN(z), z, hn::Tanh(d, hn::Mul(cubic, hn::Set(d, kGeluA))));
}

template <class X, class G>
void Forward(G* g, float* conv_out, const X* x, const OffsetNetParams& p, const OffsetNetShape& s, int64_t begin,
             int64_t end) {
  const int64_t n = s.channels;
  float* own = Carver(ThreadScratch::get(4 * n)).take<float>(n);
  for (int64_t row = begin; row < end; ++row) {
    float* y = conv_out != nullptr ? conv_out + row * n : own;
    Convolve(y, p.conv_bias, x + row * n, p.conv_weight, Taps(s, row, 1), n);
    const NormStats stats = StatsOf(y, n, s.eps);
    ForEach(n, [&](auto d, int64_t c) {
      const auto hat = hn::Mul(hn::Sub(hn::LoadU(d, y + c), hn::Set(d, stats.mean)), hn::Set(d, stats.rstd));
      const auto z = hn::MulAdd(hat, hn::LoadU(d, p.norm_weight + c), hn::LoadU(d, p.norm_bias + c));
      const auto half = hn::Mul(z, hn::Set(d, 0.5f));
      StoreFloat(hn::MulAdd(half, GeluTanh(d, z), half), d, g + row * n + c);
    });
  }
}

void ForwardPiece(void* g, float* conv_out, const void* x, const OffsetNetParams& p, const OffsetNetShape& s,
                  int64_t begin, int64_t end) {
  const auto with = [&](const auto* xs) {
    if (s.out_dtype == DType::kBF16)
      Forward(static_cast<bf16*>(g), conv_out, xs, p, s, begin, end);
    else
      Forward(static_cast<float*>(g), conv_out, xs, p, s, begin, end);
  };
  s.x_dtype == DType::kBF16 ? with(static_cast<const bf16*>(x)) : with(static_cast<const float*>(x));
}

void NormPiece(float* dy, float* sums, const float* dg, const float* conv_out, const OffsetNetParams& p,
               const OffsetNetShape& s, int64_t begin, int64_t end) {
  const int64_t n = s.channels;
  float *dweight = sums, *dbias = sums + n, *dconv_bias = sums + 2 * n;
  std::fill(sums, sums + 3 * n, 0.0f);
  for (int64_t row = begin; row < end; ++row) {
    const float* y = conv_out + row * n;
    float* out = dy + row * n;  // first the gradient at the normalised value, then dy
    const NormStats stats = StatsOf(y, n, s.eps);
    RowSum sum, dot;
    const auto normalised = [&](auto d, int64_t c) {
      return hn::Mul(hn::Sub(hn::LoadU(d, y + c), hn::Set(d, stats.mean)), hn::Set(d, stats.rstd));
    };
    ForEach(n, [&](auto d, int64_t c) {
      const auto one = hn::Set(d, 1.0f), hat = normalised(d, c), weight = hn::LoadU(d, p.norm_weight + c);
      const auto z = hn::MulAdd(hat, weight, hn::LoadU(d, p.norm_bias + c)), t = GeluTanh(d, z);
      // GELU' = ½(1 + t) + ½ z (1 − t²) √(2/π)(1 + 3·0.044715 z²)
      const auto inner = hn::Mul(hn::MulAdd(hn::Mul(z, z), hn::Set(d, 3 * kGeluB), one), hn::Set(d, kGeluA));
      const auto slope = hn::MulAdd(hn::Mul(z, hn::NegMulAdd(t, t, one)), inner, hn::Add(one, t));
      const auto dz = hn::Mul(hn::LoadU(d, dg + row * n + c), hn::Mul(slope, hn::Set(d, 0.5f)));
      hn::StoreU(hn::MulAdd(dz, hat, hn::LoadU(d, dweight + c)), d, dweight + c);
      hn::StoreU(hn::Add(dz, hn::LoadU(d, dbias + c)), d, dbias + c);
      const auto dhat = hn::Mul(dz, weight);
      sum.at(d) = hn::Add(sum.at(d), dhat);
      dot.at(d) = hn::MulAdd(dhat, hat, dot.at(d));
      hn::StoreU(dhat, d, out + c);
    });
    const float mean = sum.total() / static_cast<float>(n), project = dot.total() / static_cast<float>(n);
    ForEach(n, [&](auto d, int64_t c) {
      const auto centred = hn::Sub(hn::LoadU(d, out + c), hn::Set(d, mean));
      const auto v = hn::Mul(hn::NegMulAdd(normalised(d, c), hn::Set(d, project), centred), hn::Set(d, stats.rstd));
      hn::StoreU(v, d, out + c);
      hn::StoreU(hn::Add(v, hn::LoadU(d, dconv_bias + c)), d, dconv_bias + c);
    });
  }
}

void InputPiece(float* dx, const float* dy, const OffsetNetParams& p, const OffsetNetShape& s, int64_t begin,
                int64_t end) {
  const int64_t n = s.channels;
  for (int64_t row = begin; row < end; ++row)
    Convolve(dx + row * n, dx + row * n, dy + row * n, p.conv_weight, Taps(s, row, -1), n);
}

// One vector of channels: sums over a frame stay in registers, frames are added in order.
template <class D, class X>
void WeightColumn(D d, float* dweight, const float* dy, const X* x, const OffsetNetShape& s, int64_t c) {
  const int64_t n = s.channels, plane = s.height * s.width;
  hn::Vec<D> total[27];
  for (auto& v : total) v = hn::Zero(d);
  for (int64_t frame = 0; frame < s.batch * s.frames; ++frame) {
    hn::Vec<D> sum[27];
    for (auto& v : sum) v = hn::Zero(d);
    const int64_t t = frame % s.frames;
    for (int64_t i = 0; i < plane; ++i) {
      const int64_t row = frame * plane + i, h = i / s.width, w = i % s.width;
      const auto g = hn::LoadU(d, dy + row * n + c);
      for (int k = 0; k < 27; ++k) {
        const int64_t dt = k / 9 - 1, dh = k / 3 % 3 - 1, dw = k % 3 - 1;
        if (t + dt < 0 || t + dt >= s.frames || h + dh < 0 || h + dh >= s.height || w + dw < 0 || w + dw >= s.width) continue;
        sum[k] = hn::MulAdd(g, LoadFloat(d, x + (row + (dt * s.height + dh) * s.width + dw) * n + c), sum[k]);
      }
    }
    for (int k = 0; k < 27; ++k) total[k] = hn::Add(total[k], sum[k]);
  }
  HWY_ALIGN float lanes[16];
  for (int k = 0; k < 27; ++k) {
    hn::StoreU(total[k], d, lanes);
    for (int64_t i = 0; i < static_cast<int64_t>(hn::Lanes(d)); ++i) dweight[(c + i) * 27 + k] += lanes[i];
  }
}

template <class X>
void Weight(float* dweight, const float* dy, const X* x, const OffsetNetShape& s, int64_t begin, int64_t end) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = begin;
  for (; c + lanes <= end; c += lanes) WeightColumn(d, dweight, dy, x, s, c);
  for (; c < end; ++c) WeightColumn(TailTag(), dweight, dy, x, s, c);
}

void WeightPiece(float* dweight, const float* dy, const void* x, const OffsetNetShape& s, int64_t begin, int64_t end) {
  s.x_dtype == DType::kBF16 ? Weight(dweight, dy, static_cast<const bf16*>(x), s, begin, end)
                            : Weight(dweight, dy, static_cast<const float*>(x), s, begin, end);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(ForwardPiece);
HWY_EXPORT(NormPiece);
HWY_EXPORT(InputPiece);
HWY_EXPORT(WeightPiece);

void offset_net_forward_piece(void* g, float* conv_out, const void* x, const OffsetNetParams& p,
                              const OffsetNetShape& s, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(ForwardPiece)(g, conv_out, x, p, s, begin, end);
}
void offset_net_norm_piece(float* dy, float* sums, const float* dg, const float* conv_out, const OffsetNetParams& p,
                           const OffsetNetShape& s, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(NormPiece)(dy, sums, dg, conv_out, p, s, begin, end);
}
void offset_net_input_piece(float* dx, const float* dy, const OffsetNetParams& p, const OffsetNetShape& s, int64_t begin,
                            int64_t end) {
  HWY_DYNAMIC_DISPATCH(InputPiece)(dx, dy, p, s, begin, end);
}
void offset_net_weight_piece(float* dconv_weight, const float* dy, const void* x, const OffsetNetShape& s,
                             int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(WeightPiece)(dconv_weight, dy, x, s, begin, end);
}

}  // namespace megaslide
#endif  // HWY_ONCE
