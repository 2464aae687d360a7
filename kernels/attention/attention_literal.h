// Softmax attention word by word, one query of one head against a list of keys: the reference of the dense and window
// kernels.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention/arith.h"

namespace megaslide {

// q is the query's row (d). Key i of the list is at k + keys[i]·stride, v likewise; I is the element type.
template <class A, class I>
class AttentionLiteralQuery {
  using T = typename A::T;

 public:
  AttentionLiteralQuery(const I* q, const I* k, const I* v, int64_t stride, int64_t d, float scale,
                        const std::vector<int64_t>& keys)
      : q_(q), k_(k), v_(v), stride_(stride), d_(d), scale_(static_cast<T>(scale)), keys_(keys), p_(keys.size()) {
    T top = -std::numeric_limits<T>::infinity();
    for (size_t i = 0; i < keys.size(); ++i) {
      T dot = 0;
      for (int64_t c = 0; c < d; ++c) dot += widen_to<T>(q[c]) * key(i, c);
      p_[i] = A::round(dot * scale_);
      if (p_[i] > top) top = p_[i];
    }
    T sum = 0;
    for (T& p : p_) sum += p = std::exp(p - top);
    for (T& p : p_) p = A::round(p / sum);
    lse_ = top + std::log(sum);
  }
  T lse() const { return lse_; }

  template <class Out>
  void output(Out* out) const {
    for (int64_t c = 0; c < d_; ++c) {
      T sum = 0;
      for (size_t i = 0; i < keys_.size(); ++i) sum += p_[i] * value(i, c);
      out[c] = static_cast<Out>(A::round(sum));
    }
  }

  // dq (d) is overwritten; dk and dv, laid out as k and v, are accumulated.
  template <class Out, class Acc>
  void backward(const T* out, const Out* dout, T* dq, Acc* dk, Acc* dv) const {
    T big_d = 0;
    for (int64_t c = 0; c < d_; ++c) big_d += static_cast<T>(dout[c]) * out[c], dq[c] = 0;
    for (size_t i = 0; i < keys_.size(); ++i) {
      T dp = 0;
      for (int64_t c = 0; c < d_; ++c) dp += static_cast<T>(dout[c]) * value(i, c);
      const T ds = keys_.size() == 1 ? T{0} : A::round(p_[i] * (A::round(dp) - big_d)) * scale_;  // P = 1, exactly
      for (int64_t c = 0; c < d_; ++c) {
        dq[c] += ds * key(i, c);
        dk[keys_[i] * stride_ + c] += static_cast<Acc>(ds * widen_to<T>(q_[c]));
        dv[keys_[i] * stride_ + c] += static_cast<Acc>(p_[i] * static_cast<T>(dout[c]));
      }
    }
    for (int64_t c = 0; c < d_; ++c) dq[c] = A::round(dq[c]);
  }

 private:
  T key(size_t i, int64_t c) const { return widen_to<T>(k_[keys_[i] * stride_ + c]); }
  T value(size_t i, int64_t c) const { return widen_to<T>(v_[keys_[i] * stride_ + c]); }

  const I *q_, *k_, *v_;
  int64_t stride_, d_;
  T scale_;
  const std::vector<int64_t>& keys_;
  std::vector<T> p_;
  T lse_ = 0;
};

}  // namespace megaslide
