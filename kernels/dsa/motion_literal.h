// The motion term of spec dsa.md §1, word by word: every patch, every correlation. Reference of the fast kernels.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/dsa/dsa_geometry.h"
#include "kernels/dsa/motion.h"

namespace megaslide {

// T: type of all values. Tensors have the shapes of motion.h.
template <class T>
class MotionLiteral {
 public:
  struct Results {
    std::vector<T> offsets, m;  // offsets: what the term adds
    std::vector<T> dc, dgain;
    T ds = 0;
  };

  MotionLiteral(const DsaShape& s, const T* c, T scale, const T* gain)
      : s_(s), c_(c), beta_(static_cast<T>(kMotionBetaBase) * scale), gain_(gain) {
    const int64_t rows = s.batch * s.tokens();
    unit_.resize(static_cast<size_t>(rows * kPatch)), length_.resize(static_cast<size_t>(rows));
    for (int64_t row = 0; row < rows; ++row) make_unit(row);
  }

  Results run(const T* doffsets) const {
    Results r;
    const int64_t rows = s_.batch * s_.tokens();
    r.offsets.resize(static_cast<size_t>(rows * dsa_offset_count(s_)));
    r.m.resize(static_cast<size_t>(rows * s_.kernel[0] * 2));
    r.dc.resize(static_cast<size_t>(rows * kMotionChannels)), r.dgain.resize(static_cast<size_t>(s_.groups));
    std::vector<T> df(unit_.size());
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t jt = 0; jt < s_.kernel[0]; ++jt) run_slot(row, jt, doffsets, df, r);
    for (int64_t row = 0; row < rows; ++row) unit_backward(row, df, r.dc);
    return r;
  }

 private:
  static constexpr int64_t kPatch = 9 * kMotionChannels;
  struct Candidate {
    int64_t row;
    T delta[2], cosine, p;
  };
  template <class V>
  static auto& at(V& v, int64_t i) { return v[static_cast<size_t>(i)]; }

  // body(element of the patch, element of c) for what lies inside the grid
  template <class F>
  void patch(int64_t row, F body) const {
    const int64_t h = row / s_.width % s_.height, w = row % s_.width;
    for (int64_t a = -1; a <= 1; ++a)
      for (int64_t b = -1; b <= 1; ++b) {
        if (h + a < 0 || h + a >= s_.height || w + b < 0 || w + b >= s_.width) continue;
        for (int64_t i = 0; i < kMotionChannels; ++i)
          body((3 * i + a + 1) * 3 + b + 1, (row + a * s_.width + b) * kMotionChannels + i);
      }
  }

  void make_unit(int64_t row) {
    T* f = &at(unit_, row * kPatch);
    T square = 0;
    patch(row, [&](int64_t e, int64_t from) {
      f[e] = c_[from];
      square += f[e] * f[e];
    });
    at(length_, row) = std::sqrt(square);
    const bool some = !(at(length_, row) < static_cast<T>(kMotionUnitEps));
    for (int64_t e = 0; e < kPatch; ++e) f[e] = some ? f[e] / at(length_, row) : T{0};
  }

  // f = z/‖z‖ backwards, and the patch's values back to their tokens.
  void unit_backward(int64_t row, const std::vector<T>& df, std::vector<T>& dc) const {
    if (at(length_, row) < static_cast<T>(kMotionUnitEps)) return;
    T along = 0;
    for (int64_t e = row * kPatch; e < (row + 1) * kPatch; ++e) along += at(unit_, e) * at(df, e);
    patch(row, [&](int64_t e, int64_t to) {
      at(dc, to) += (at(df, row * kPatch + e) - at(unit_, row * kPatch + e) * along) / at(length_, row);
    });
  }

  // What the token in `row` may have become in frame `frame` of its sample, with its probability.
  std::vector<Candidate> search(int64_t row, int64_t frame) const {
    const int64_t token = row % s_.tokens(), h = token / s_.width % s_.height, w = token % s_.width;
    std::vector<Candidate> found;
    for (int64_t y = 0; y < s_.height; ++y)
      for (int64_t x = 0; x < s_.width; ++x) {
        if (std::abs(y - h) > kMotionSearch || std::abs(x - w) > kMotionSearch) continue;
        Candidate k{row - token + (frame * s_.height + y) * s_.width + x, {static_cast<T>(y - h), static_cast<T>(x - w)}, 0, 0};
        for (int64_t e = 0; e < kPatch; ++e) k.cosine += at(unit_, row * kPatch + e) * at(unit_, k.row * kPatch + e);
        found.push_back(k);
      }
    T top = beta_ * found.front().cosine, sum = 0;
    for (const Candidate& k : found) top = std::max(top, beta_ * k.cosine);
    for (Candidate& k : found) sum += k.p = std::exp(beta_ * k.cosine - top);
    for (Candidate& k : found) k.p /= sum;
    return found;
  }

  void run_slot(int64_t row, int64_t jt, const T* doffsets, std::vector<T>& df, Results& r) const {
    const int64_t t = row % s_.tokens() / (s_.height * s_.width), count = dsa_offset_count(s_);
    const DsaBounds b = dsa_bounds(s_, t);
    const int64_t frame = dsa_window_start(t, b.k_eff[0], b.lo[0], b.hi[0]) + jt;
    if (jt >= b.k_eff[0] || frame == t) return;
    const std::vector<Candidate> found = search(row, frame);
    T m[2] = {0, 0}, dm[2] = {0, 0};
    for (const Candidate& k : found)
      for (int a = 0; a < 2; ++a) m[a] += k.p * k.delta[a];
    for (int a = 0; a < 2; ++a) at(r.m, (row * s_.kernel[0] + jt) * 2 + a) = m[a];
    const int64_t spatial = s_.kernel[1] * s_.kernel[2], slots = s_.mode == DsaOffsetMode::kFull ? spatial : 1;
    for (int64_t g = 0; g < s_.groups; ++g)
      for (int64_t j = 0; j < slots; ++j)
        for (int a = 0; a < 2; ++a) {
          const int64_t to = row * count + dsa_offset_index(s_, g, jt, jt * spatial + j, a + 1);
          at(r.offsets, to) += gain_[g] * m[a];
          at(r.dgain, g) += doffsets[to] * m[a];
          dm[a] += gain_[g] * doffsets[to];
        }
    for (const Candidate& k : found) {
      const T dscore = k.p * (dm[0] * (k.delta[0] - m[0]) + dm[1] * (k.delta[1] - m[1]));
      r.ds += static_cast<T>(kMotionBetaBase) * dscore * k.cosine;
      for (int64_t e = 0; e < kPatch; ++e) {
        at(df, row * kPatch + e) += beta_ * dscore * at(unit_, k.row * kPatch + e);
        at(df, k.row * kPatch + e) += beta_ * dscore * at(unit_, row * kPatch + e);
      }
    }
  }

  const DsaShape& s_;
  const T* c_;
  T beta_;
  const T* gain_;
  std::vector<T> unit_, length_;  // (rows, 144) and (rows)
};

}  // namespace megaslide
