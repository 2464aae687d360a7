// Passes over frames: rows on the pool's threads, channels in vectors. A cell's channels are whole vectors of any target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/flow/frames.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/flow/flow.h"
#include "kernels/simd-inl.h"

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

using CellTag = hn::CappedTag<float, 16>;

// NaN stays.
template <class D>
HWY_INLINE hn::Vec<D> Relu(D d, hn::Vec<D> v) {
  return hn::IfThenZeroElse(hn::Lt(v, hn::Zero(d)), v);
}
template <class D>
HWY_INLINE hn::Vec<D> Sigmoid(D d, hn::Vec<D> v) {
  // e^x is kept a finite number; NaN stays.
  const auto x = hn::Neg(v), most = hn::Set(d, 88.0f);
  return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), hn::Exp(d, hn::IfThenElse(hn::Gt(x, most), most, x))));
}

// Sums and sums of squares of `cells` neighbouring cells, added to sums (stored) and squares (stored).
void AddMoments(double* sums, double* squares, const float* row, int64_t cells, int64_t stored) {
  const hn::CappedTag<double, 8> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(dd));
  for (int64_t c = 0; c < stored; c += lanes) {
    auto sum = hn::LoadU(dd, sums + c), square = hn::LoadU(dd, squares + c);
    const float* p = row + c;
    for (int64_t x = 0; x < cells; ++x, p += stored) {
      const auto v = hn::PromoteTo(dd, hn::LoadU(df, p));
      sum = hn::Add(sum, v);
      square = hn::MulAdd(v, v, square);
    }
    hn::StoreU(sum, dd, sums + c);
    hn::StoreU(square, dd, squares + c);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> LoadTerm(D d, const FrameTerm& t, int64_t at, int64_t c) {
  const auto v = hn::LoadU(d, t.frame + at);
  return t.scale ? hn::MulAdd(v, hn::LoadU(d, t.scale + c), hn::LoadU(d, t.shift + c)) : v;
}

void ReluRow(float* out, const FrameLayout& l, const FrameTerm& x, const FrameTerm& residual, int64_t y) {
  const CellTag d;
  const int64_t stored = l.stored(), lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t at = l.cell(y, 0);
  for (int64_t i = 0; i < l.width; ++i)
    for (int64_t c = 0; c < stored; c += lanes, at += lanes) {
      auto v = Relu(d, LoadTerm(d, x, at, c));
      if (residual.frame) v = Relu(d, hn::Add(v, LoadTerm(d, residual, at, c)));
      hn::StoreU(v, d, out + at);
    }
}

void PoolRow(float* out, const float* above, const float* below, int64_t cells, int64_t stored) {
  const CellTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t x = 0; x < cells; ++x, above += 2 * stored, below += 2 * stored, out += stored)
    for (int64_t c = 0; c < stored; c += lanes) {
      const auto top = hn::Add(hn::LoadU(d, above + c), hn::LoadU(d, above + stored + c));
      const auto bottom = hn::Add(hn::LoadU(d, below + c), hn::LoadU(d, below + stored + c));
      hn::StoreU(hn::Mul(hn::Add(top, bottom), hn::Set(d, 0.25f)), d, out + c);
    }
}

void GruResetRow(float* gates, float* reset, const float* h, int64_t cells, int64_t stored) {
  const CellTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t x = 0; x < cells; ++x, gates += 2 * stored, reset += stored, h += stored)
    for (int64_t c = 0; c < stored; c += lanes) {
      hn::StoreU(Sigmoid(d, hn::LoadU(d, gates + c)), d, gates + c);
      hn::StoreU(hn::Mul(Sigmoid(d, hn::LoadU(d, gates + stored + c)), hn::LoadU(d, h + c)), d, reset + c);
    }
}

void GruUpdateRow(float* h, const float* gates, const float* q, int64_t cells, int64_t stored) {
  const CellTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t x = 0; x < cells; ++x, h += stored, q += stored, gates += gates ? 2 * stored : 0)
    for (int64_t c = 0; c < stored; c += lanes) {
      auto v = hn::Tanh(d, hn::LoadU(d, q + c));
      if (gates) {
        const auto z = hn::LoadU(d, gates + c);
        v = hn::MulAdd(z, v, hn::Mul(hn::Sub(hn::Set(d, 1.0f), z), hn::LoadU(d, h + c)));
      }
      hn::StoreU(v, d, h + c);
    }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(AddMoments);
HWY_EXPORT(ReluRow);
HWY_EXPORT(PoolRow);
HWY_EXPORT(GruResetRow);
HWY_EXPORT(GruUpdateRow);

namespace cpu {

void picture_frame(Stream& stream, float* frame, FrameLayout l, PictureCells p) {
  MS_CHECK(l.dtype == DType::kF32 && l.channels == 3 * p.block * p.block);
  stream.parallel_for(l.height, 1, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y)
      for (int64_t x = 0; x < l.width; ++x) {
        float* cell = frame + l.cell(y, x);
        for (int64_t r = 0; r < p.block; ++r)
          for (int64_t q = 0; q < p.block; ++q) {
            const int64_t row = std::clamp<int64_t>(p.block * y + q - p.top, 0, p.height - 1);
            const int64_t column = std::clamp<int64_t>(p.block * x + r - p.left, 0, p.width - 1);
            const uint8_t* pixel = p.rgb + 3 * (row * p.width + column);
            for (int64_t c = 0; c < 3; ++c)
              cell[(c * p.block + r) * p.block + q] = static_cast<float>(pixel[c]) * p.scale + p.shift;
          }
      }
  });
}

void instance_norm_scale(Stream& stream, float* scale, float* shift, double* scratch, const float* frame, FrameLayout l, float eps) {
  const int64_t stored = l.stored();
  std::fill_n(scratch, instance_norm_scratch(l), 0.0);
  stream.parallel_for(kNormBands, 1, [&](int64_t begin, int64_t end) {
    for (int64_t band = begin; band < end; ++band) {
      double* sums = scratch + band * 2 * stored;
      for (int64_t y = l.height * band / kNormBands; y < l.height * (band + 1) / kNormBands; ++y)
        HWY_DYNAMIC_DISPATCH(AddMoments)(sums, sums + stored, frame + l.cell(y, 0), l.width, stored);
    }
  });
  const auto cells = static_cast<double>(l.height * l.width);
  for (int64_t c = 0; c < stored; ++c) {
    double sum = 0, square = 0;
    for (int64_t band = 0; band < kNormBands; ++band) {
      sum += scratch[band * 2 * stored + c];
      square += scratch[(band * 2 + 1) * stored + c];
    }
    const double mean = sum / cells, variance = std::max(0.0, square / cells - mean * mean);
    const double rstd = 1 / std::sqrt(variance + static_cast<double>(eps));
    scale[c] = static_cast<float>(rstd);
    shift[c] = static_cast<float>(-mean * rstd);
  }
}

void frame_relu(Stream& stream, float* out, FrameLayout l, FrameTerm x, FrameTerm residual) {
  stream.parallel_for(l.height, 4, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y) HWY_DYNAMIC_DISPATCH(ReluRow)(out, l, x, residual, y);
  });
}

void frame_pool(Stream& stream, float* out, FrameLayout o, const float* in, FrameLayout i) {
  MS_CHECK(o.height == i.height / 2 && o.width == i.width / 2 && o.stored() == i.stored());
  stream.parallel_for(o.height, 4, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y)
      HWY_DYNAMIC_DISPATCH(PoolRow)(out + o.cell(y, 0), in + i.cell(2 * y, 0), in + i.cell(2 * y + 1, 0), o.width, o.stored());
  });
}

void flow_advance(Stream& stream, FlowStep s) {
  const FrameLayout& l = s.rows_layout;
  MS_CHECK(l.channels == s.taps * s.channels);
  stream.parallel_for(l.height, 4, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y) {
      float* flow = s.flow + y * l.width * s.pitch;
      for (int64_t x = 0; s.delta && x < l.width; ++x)
        for (int64_t c = 0; c < s.channels; ++c) flow[x * s.pitch + c] += s.delta[s.delta_layout.cell(y, x) + c];
      for (int64_t x = 0; x < l.width; ++x) {
        float* cell = s.rows + l.cell(y, x);
        for (int64_t j = 0; j < s.taps; ++j)
          for (int64_t c = 0, from = x + j - s.taps / 2; c < s.channels; ++c)
            cell[j * s.channels + c] = from >= 0 && from < l.width ? flow[from * s.pitch + c] : 0;
        for (int64_t c = 0; s.beside && c < s.channels; ++c) s.beside[s.beside_layout.cell(y, x) + s.first + c] = flow[x * s.pitch + c];
      }
    }
  });
}

void gru_reset(Stream& stream, float* gates, FrameLayout g, float* reset, const float* h, FrameLayout l) {
  MS_CHECK(g.stored() == 2 * l.stored());
  stream.parallel_for(l.height, 4, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y)
      HWY_DYNAMIC_DISPATCH(GruResetRow)(gates + g.cell(y, 0), reset + l.cell(y, 0), h + l.cell(y, 0), l.width, l.stored());
  });
}

void gru_update(Stream& stream, float* h, FrameLayout l, const float* gates, FrameLayout g, const float* q, FrameLayout ql) {
  MS_CHECK(ql.stored() == l.stored() && (!gates || g.stored() == 2 * l.stored()));
  stream.parallel_for(l.height, 4, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y)
      HWY_DYNAMIC_DISPATCH(GruUpdateRow)(h + l.cell(y, 0), gates ? gates + g.cell(y, 0) : nullptr, q + ql.cell(y, 0), l.width, l.stored());
  });
}

}  // namespace cpu
}  // namespace megaslide
#endif
