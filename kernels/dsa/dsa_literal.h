// The definition of spec dsa.md §1, word by word, one query of one head at a time: interpolate K and V at every sample,
// then attend. Reference, and the path the fast kernels take where values are not finite.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention/arith.h"
#include "kernels/dsa/dsa_geometry.h"

namespace megaslide {

// The tensors of a call: I is the element type of q, k, v; O that of the raw offsets.
template <class I, class O>
struct DsaInputs {
  const I *q, *k, *v;
  const O* offsets;
};

template <class A>
class DsaLiteralQuery {
  using T = typename A::T;

 public:
  template <class I, class O>
  DsaLiteralQuery(const DsaShape& s, const DsaInputs<I, O>& in, int64_t batch, int64_t token, int64_t head)
      : s_(s), d_(s.head_dim), row_(s.row()), base_(batch * s.tokens() * row_ + head * d_),
        token_(token) {
    place(in.offsets + (batch * s.tokens() + token) * dsa_offset_row(s), dsa_group(s, head));
    q_.resize(static_cast<size_t>(d_));
    for (int64_t c = 0; c < d_; ++c) q_[static_cast<size_t>(c)] = widen_to<T>(in.q[base_ + token * row_ + c]);
    interpolate(k_, in.k);
    interpolate(v_, in.v);
    score();
  }

  int64_t samples() const { return static_cast<int64_t>(samples_.size()); }  // slots that exist, in nominal order
  int64_t slot(int64_t i) const { return at(samples_, i).slot; }
  T lse() const { return lse_; }

  template <class Out>
  void output(Out* out) const {  // d values
    for (int64_t c = 0; c < d_; ++c) {
      T sum = 0;
      for (int64_t i = 0; i < samples(); ++i) sum += at(p_, i) * at(v_, i * d_ + c);
      out[c] = static_cast<Out>(A::round(sum));
    }
  }

  // dq: d values, overwritten. dk, dv: whole (B,N,heads,d) tensors, accumulated. dx: gradient at the sample points,
  // (samples, 3), overwritten; 0 where the offset gradient does not pass.
  template <class I, class G, class Out, class Acc>
  void backward(const DsaInputs<I, G>& in, const T* out, const Out* dout, T* dq, Acc* dk, Acc* dv, T* dx) const {
    T big_d = 0;
    for (int64_t c = 0; c < d_; ++c) big_d += static_cast<T>(dout[c]) * out[c];
    for (int64_t c = 0; c < d_; ++c) dq[c] = 0;
    for (int64_t i = 0; i < samples(); ++i) {
      T dp = 0;
      for (int64_t c = 0; c < d_; ++c) dp += static_cast<T>(dout[c]) * at(v_, i * d_ + c);
      dp = A::round(dp);
      const T ds = samples() == 1 ? T{0} : A::round(at(p_, i) * (dp - big_d)) * static_cast<T>(s_.scale);  // P = 1, exactly
      for (int64_t c = 0; c < d_; ++c) dq[c] += ds * at(k_, i * d_ + c);
      scatter(i, ds, q_.data(), dk);
      scatter(i, at(p_, i), dout, dv);
      point_gradient(in, i, ds, dout, dx + 3 * i);
    }
    for (int64_t c = 0; c < d_; ++c) dq[c] = A::round(dq[c]);
  }

  // 1 − tanh² of each axis of a sample.
  const T* slope(int64_t i) const { return at(samples_, i).slope; }

 private:
  struct Sample {
    int64_t slot;
    DsaCell<T> axis[3];
    T slope[3];
  };
  template <class V>
  static auto& at(V& v, int64_t i) { return v[static_cast<size_t>(i)]; }

  template <class O>
  void place(const O* raw, int64_t group) {
    const int64_t p[3] = {token_ / (s_.height * s_.width), token_ / s_.width % s_.height, token_ % s_.width};
    const DsaBounds b = dsa_bounds(s_, p[0]);
    int64_t j[3];
    for (j[0] = 0; j[0] < b.k_eff[0]; ++j[0])
      for (j[1] = 0; j[1] < b.k_eff[1]; ++j[1])
        for (j[2] = 0; j[2] < b.k_eff[2]; ++j[2]) {
          Sample x;
          x.slot = (j[0] * s_.kernel[1] + j[1]) * s_.kernel[2] + j[2];
          for (int a = 0; a < 3; ++a) {
            const int64_t index = dsa_offset_index(s_, group, j[0], x.slot, a);
            DsaDisplacement<T> m{0, 0};
            if (s_.reach[a] > 0 && index >= 0) m = dsa_displacement(static_cast<T>(raw[index]), static_cast<T>(s_.reach[a]));
            x.axis[a] = dsa_cell(dsa_window_start(p[a], b.k_eff[a], b.lo[a], b.hi[a]) + j[a], m.e, b.lo[a], b.hi[a]);
            if (s_.reach[a] == 0 || index < 0) x.axis[a].inside = false;
            x.slope[a] = m.slope;
          }
          samples_.push_back(x);
        }
  }

  // body(row offset of the corner in a (B,N,heads,d) tensor, corner number, weights of the three axes)
  template <class F>
  void corners(const Sample& x, F body) const {
    for (int c = 0; c < 8; ++c) {
      int64_t at_axis[3];
      T w[3];
      for (int a = 0; a < 3; ++a) {
        const bool upper = (c >> (2 - a)) & 1;
        at_axis[a] = upper ? x.axis[a].i1 : x.axis[a].i0;
        w[a] = upper ? x.axis[a].f : 1 - x.axis[a].f;
      }
      body(base_ + ((at_axis[0] * s_.height + at_axis[1]) * s_.width + at_axis[2]) * row_, c, w);
    }
  }

  template <class I>
  void interpolate(std::vector<T>& result, const I* tensor) {
    result.assign(samples_.size() * static_cast<size_t>(d_), T{0});
    for (int64_t i = 0; i < samples(); ++i) {
      corners(at(samples_, i), [&](int64_t row, int, const T* w) {
        const T weight = w[0] * w[1] * w[2];
        if (weight == 0) return;
        for (int64_t c = 0; c < d_; ++c) at(result, i * d_ + c) += weight * widen_to<T>(tensor[row + c]);
      });
      for (int64_t c = 0; c < d_; ++c) at(result, i * d_ + c) = A::round(at(result, i * d_ + c));
    }
  }

  void score() {
    p_.resize(samples_.size());
    T top = -std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < samples(); ++i) {
      T dot = 0;
      for (int64_t c = 0; c < d_; ++c) dot += at(q_, c) * at(k_, i * d_ + c);
      at(p_, i) = A::round(dot * static_cast<T>(s_.scale));
      if (!(at(p_, i) <= top)) top = at(p_, i);  // NaN wins
      if (std::isnan(top)) break;
    }
    T sum = 0;
    for (T& p : p_) sum += p = std::exp(p - top);
    for (T& p : p_) p = A::round(p / sum);
    lse_ = top + std::log(sum);
  }

  template <class V, class Acc>
  void scatter(int64_t i, T factor, const V* values, Acc* gradient) const {
    corners(at(samples_, i), [&](int64_t row, int, const T* w) {
      const T weight = w[0] * w[1] * w[2];
      if (weight == 0) return;
      for (int64_t c = 0; c < d_; ++c) gradient[row + c] += static_cast<Acc>(weight * factor * static_cast<T>(values[c]));
    });
  }

  template <class I, class G, class Out>
  void point_gradient(const DsaInputs<I, G>& in, int64_t i, T ds, const Out* dout, T* dx) const {
    const Sample& x = at(samples_, i);
    dx[0] = dx[1] = dx[2] = 0;
    corners(x, [&](int64_t row, int corner, const T* w) {
      const T slope_of[3] = {w[1] * w[2], w[0] * w[2], w[0] * w[1]};
      bool needed = false;
      for (int a = 0; a < 3; ++a) needed = needed || (x.axis[a].inside && slope_of[a] != 0);
      if (!needed) return;
      T a_c = 0, b_c = 0;
      for (int64_t c = 0; c < d_; ++c) {
        a_c += at(q_, c) * widen_to<T>(in.k[row + c]);
        b_c += static_cast<T>(dout[c]) * widen_to<T>(in.v[row + c]);
      }
      const T u = ds * a_c + at(p_, i) * b_c;
      for (int a = 0; a < 3; ++a)
        if (x.axis[a].inside && slope_of[a] != 0) dx[a] += ((corner >> (2 - a)) & 1 ? u : -u) * slope_of[a];
    });
    for (int a = 0; a < 3; ++a) dx[a] = A::round(dx[a]);
  }

  const DsaShape& s_;
  int64_t d_, row_, base_, token_;
  std::vector<Sample> samples_;
  std::vector<T> q_, k_, v_, p_;
  T lse_ = 0;
};

}  // namespace megaslide
