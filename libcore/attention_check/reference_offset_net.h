// The whole offset net by its definition: conv, norm, GELU, linear, and their gradients.
#pragma once
#include <cmath>

#include "attention_check/reference.h"
#include "kernels/attention/arith.h"

namespace megaslide {

template <class A>
class ReferenceOffsetNet {
  using T = typename A::T;

 public:
  explicit ReferenceOffsetNet(const StoredCase& c)
      : c_(c), rows_(c.batch * c.tokens()), n_(c.channels), m_(c.outputs), x_(get("x")), conv_weight_(get("conv_weight")),
        norm_weight_(get("norm_weight")), norm_bias_(get("norm_bias")), linear_weight_(get("linear_weight")),
        dconv_(conv_weight_.size()), dlinear_(linear_weight_.size()) {}

  NamedResults run() {
    forward();
    backward();
    NamedResults r;
    const auto put = [&](const char* name, const std::vector<T>& v) {
      auto& to = r[name];
      for (T value : v) to.push_back(static_cast<double>(A::round(value)));
    };
    put("conv_out", y_), put("gelu_out", g_), put("offsets", offsets_), put("dx", dx_), put("dconv_weight", dconv_);
    put("dconv_bias", dconv_bias_), put("dnorm_weight", dnorm_weight_), put("dnorm_bias", dnorm_bias_);
    put("dlinear_weight", dlinear_), put("dlinear_bias", dlinear_bias_);
    return r;
  }

 private:
  std::vector<T> get(const char* name) const {
    const auto& v = c_.at(name);
    return {v.begin(), v.end()};
  }
  static auto& at(std::vector<T>& v, int64_t i) { return v[static_cast<size_t>(i)]; }
  static const auto& at(const std::vector<T>& v, int64_t i) { return v[static_cast<size_t>(i)]; }

  // body(tap, neighbouring row) for the taps inside the grid
  template <class F>
  void taps(int64_t row, F body) const {
    const int64_t token = row % c_.tokens(), hw = c_.grid[1] * c_.grid[2];
    const int64_t p[3] = {token / hw, token / c_.grid[2] % c_.grid[1], token % c_.grid[2]};
    for (int64_t k = 0; k < 27; ++k) {
      const int64_t d[3] = {k / 9 - 1, k / 3 % 3 - 1, k % 3 - 1};
      bool inside = true;
      for (size_t a = 0; a < 3; ++a) inside = inside && p[a] + d[a] >= 0 && p[a] + d[a] < c_.grid[a];
      if (inside) body(k, row + d[0] * hw + d[1] * c_.grid[2] + d[2]);
    }
  }

  static T gelu_tanh(T z) { return std::tanh(static_cast<T>(0.7978845608028654) * (z + static_cast<T>(0.044715) * z * z * z)); }

  void forward() {
    const auto conv_bias = get("conv_bias"), linear_bias = get("linear_bias");
    const auto size = static_cast<size_t>(rows_ * n_);
    y_.resize(size), hat_.resize(size), z_.resize(size), g_.resize(size), rstd_.resize(static_cast<size_t>(rows_));
    offsets_.resize(static_cast<size_t>(rows_ * m_));
    for (int64_t r = 0; r < rows_; ++r) {
      T mean = 0, var = 0;
      for (int64_t c = 0; c < n_; ++c) {
        T sum = at(conv_bias, c);
        taps(r, [&](int64_t k, int64_t from) { sum += at(conv_weight_, c * 27 + k) * at(x_, from * n_ + c); });
        at(y_, r * n_ + c) = A::round(sum);
        mean += at(y_, r * n_ + c) / static_cast<T>(n_);
      }
      for (int64_t c = 0; c < n_; ++c) var += (at(y_, r * n_ + c) - mean) * (at(y_, r * n_ + c) - mean) / static_cast<T>(n_);
      at(rstd_, r) = 1 / std::sqrt(var + static_cast<T>(c_.eps));
      for (int64_t c = 0; c < n_; ++c) {
        const int64_t i = r * n_ + c;
        at(hat_, i) = (at(y_, i) - mean) * at(rstd_, r);
        const T z = at(z_, i) = A::round(at(hat_, i) * at(norm_weight_, c) + at(norm_bias_, c));
        at(g_, i) = A::round(z * (1 + gelu_tanh(z)) / 2);
      }
      for (int64_t o = 0; o < m_; ++o) {
        T sum = at(linear_bias, o);
        for (int64_t c = 0; c < n_; ++c) sum += at(linear_weight_, o * n_ + c) * at(g_, r * n_ + c);
        at(offsets_, r * m_ + o) = sum;
      }
    }
  }

  void backward() {
    const auto doffsets = get("doffsets");
    const auto n = static_cast<size_t>(n_);
    dx_.resize(x_.size()), dconv_bias_.resize(n), dnorm_weight_.resize(n), dnorm_bias_.resize(n);
    dlinear_bias_.resize(static_cast<size_t>(m_));
    std::vector<T> dhat(n);
    for (int64_t r = 0; r < rows_; ++r) {
      T mean = 0, project = 0;
      for (int64_t o = 0; o < m_; ++o) at(dlinear_bias_, o) += at(doffsets, r * m_ + o);
      for (int64_t c = 0; c < n_; ++c) {
        const int64_t i = r * n_ + c;
        T dg = 0;
        for (int64_t o = 0; o < m_; ++o) {
          dg += at(doffsets, r * m_ + o) * at(linear_weight_, o * n_ + c);
          at(dlinear_, o * n_ + c) += at(doffsets, r * m_ + o) * at(g_, i);
        }
        const T z = at(z_, i), t = gelu_tanh(z);
        const T inner = static_cast<T>(0.7978845608028654) * (1 + 3 * static_cast<T>(0.044715) * z * z);
        const T dz = A::round(A::round(dg) * (1 + t + z * (1 - t * t) * inner) / 2);
        at(dnorm_weight_, c) += dz * at(hat_, i);
        at(dnorm_bias_, c) += dz;
        at(dhat, c) = dz * at(norm_weight_, c);
        mean += at(dhat, c) / static_cast<T>(n_);
        project += at(dhat, c) * at(hat_, i) / static_cast<T>(n_);
      }
      for (int64_t c = 0; c < n_; ++c) {
        const T dy = A::round(at(rstd_, r) * (at(dhat, c) - mean - at(hat_, r * n_ + c) * project));
        at(dconv_bias_, c) += dy;
        taps(r, [&](int64_t k, int64_t from) {
          at(dconv_, c * 27 + k) += dy * at(x_, from * n_ + c);
          at(dx_, from * n_ + c) += dy * at(conv_weight_, c * 27 + k);
        });
      }
    }
  }

  const StoredCase& c_;
  int64_t rows_, n_, m_;
  std::vector<T> x_, conv_weight_, norm_weight_, norm_bias_, linear_weight_;
  std::vector<T> y_, hat_, z_, g_, rstd_, offsets_;
  std::vector<T> dx_, dconv_, dconv_bias_, dnorm_weight_, dnorm_bias_, dlinear_, dlinear_bias_;
};

template <class A>
NamedResults reference_offset_net(const StoredCase& c) { return ReferenceOffsetNet<A>(c).run(); }

}  // namespace megaslide
