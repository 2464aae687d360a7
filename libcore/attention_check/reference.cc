#include "attention_check/reference.h"

#include <cmath>
#include <numeric>

#include "attention_check/reference_motion.h"
#include "attention_check/reference_offset_net.h"
#include "kernels/attention/attention_literal.h"
#include "kernels/attention/window_groups.h"
#include "kernels/dsa/dsa_literal.h"

namespace megaslide {
namespace {

template <class T>
std::vector<T> cast(const std::vector<float>& v) { return {v.begin(), v.end()}; }

template <class A>
std::vector<double> rounded(const std::vector<typename A::T>& v) {
  std::vector<double> r(v.size());
  for (size_t i = 0; i < v.size(); ++i) r[i] = static_cast<double>(A::round(v[i]));
  return r;
}

template <class A>
NamedResults dsa_results(const StoredCase& c) {
  using T = typename A::T;
  const DsaShape s = c.dsa_shape();
  const auto q = cast<T>(c.at("q")), k = cast<T>(c.at("k")), v = cast<T>(c.at("v")), dout = cast<T>(c.at("dout"));
  const auto offsets = cast<T>(c.at("offsets"));
  const DsaInputs<T, T> in{q.data(), k.data(), v.data(), offsets.data()};
  std::vector<T> out(q.size()), dq(q.size()), dk(q.size()), dv(q.size()), lse(q.size() / static_cast<size_t>(c.head_dim));
  std::vector<T> doffsets(offsets.size()), dx;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t n = 0; n < c.tokens(); ++n)
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t head_row = (b * c.tokens() + n) * c.heads + h, row = head_row * c.head_dim;
        const DsaLiteralQuery<A> query(s, in, b, n, h);
        query.output(out.data() + row);
        lse[static_cast<size_t>(head_row)] = query.lse();
        dx.assign(static_cast<size_t>(3 * query.samples()), T{0});
        query.backward(in, out.data() + row, dout.data() + row, dq.data() + row, dk.data(), dv.data(), dx.data());
        T* token = doffsets.data() + (b * c.tokens() + n) * dsa_offset_count(s);
        for (int64_t i = 0; i < query.samples(); ++i)
          for (int a = 0; a < 3; ++a) {
            const int64_t slot = query.slot(i), jt = slot / (s.kernel[1] * s.kernel[2]);
            const int64_t at = dsa_offset_index(s, dsa_group(s, h), jt, slot, a);
            if (at >= 0) token[at] += dx[static_cast<size_t>(3 * i + a)] * query.slope(i)[a];
          }
      }
  return {{"out", rounded<A>(out)}, {"lse", {lse.begin(), lse.end()}}, {"dq", rounded<A>(dq)}, {"dk", rounded<A>(dk)},
          {"dv", rounded<A>(dv)}, {"doffsets", rounded<A>(doffsets)}};
}

template <class T>
struct AttentionTensors {
  std::vector<T> out, lse, dq, dk, dv;
};

// keys(token): the list a query sees.
template <class A, class Keys>
AttentionTensors<typename A::T> attend(const std::vector<typename A::T>& q, const std::vector<typename A::T>& k,
                                       const std::vector<typename A::T>& v, const std::vector<typename A::T>& dout,
                                       int64_t batch, int64_t n, int64_t heads, int64_t d, float scale, Keys keys) {
  using T = typename A::T;
  AttentionTensors<T> r;
  r.out.resize(q.size()), r.dq.resize(q.size()), r.dk.resize(q.size()), r.dv.resize(q.size());
  r.lse.resize(q.size() / static_cast<size_t>(d));
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<int64_t> list = keys(i);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t start = (b * n * heads + h) * d, row = start + i * heads * d;
        const AttentionLiteralQuery<A, T> query(q.data() + row, k.data() + start, v.data() + start, heads * d, d, scale, list);
        query.output(r.out.data() + row);
        r.lse[static_cast<size_t>(row / d)] = query.lse();
        query.backward(r.out.data() + row, dout.data() + row, r.dq.data() + row, r.dk.data() + start, r.dv.data() + start);
      }
  }
  return r;
}

std::vector<int64_t> all_keys(int64_t n) {
  std::vector<int64_t> keys(static_cast<size_t>(n));
  std::iota(keys.begin(), keys.end(), 0);
  return keys;
}

template <class A>
NamedResults attention_results(const StoredCase& c) {
  using T = typename A::T;
  const auto r = attend<A>(cast<T>(c.at("q")), cast<T>(c.at("k")), cast<T>(c.at("v")), cast<T>(c.at("dout")), c.batch,
                           c.tokens(), c.heads, c.head_dim, c.scale, [&](int64_t n) {
                             return c.kind == CaseKind::kDense ? all_keys(c.tokens()) : window_keys(c.window_shape(), n);
                           });
  return {{"out", rounded<A>(r.out)}, {"lse", {r.lse.begin(), r.lse.end()}}, {"dq", rounded<A>(r.dq)},
          {"dk", rounded<A>(r.dk)}, {"dv", rounded<A>(r.dv)}};
}

template <class A>
NamedResults pooled_results(const StoredCase& c) {
  using T = typename A::T;
  const PooledShape s = c.pooled_shape();
  const int64_t n = c.tokens(), m = s.tiles(), width = c.heads * c.head_dim;
  std::vector<int64_t> tile(static_cast<size_t>(n));
  std::vector<T> count(static_cast<size_t>(m));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t t = i / (s.height * s.width) / s.tile[0], h = i / s.width % s.height / s.tile[1], w = i % s.width / s.tile[2];
    const int64_t nh = (s.height + s.tile[1] - 1) / s.tile[1], nw = (s.width + s.tile[2] - 1) / s.tile[2];
    tile[static_cast<size_t>(i)] = (t * nh + h) * nw + w;
    count[static_cast<size_t>(tile[static_cast<size_t>(i)])] += 1;
  }
  // body(element of (B,N,heads,d), element of (B,M,heads,d), tokens of the tile, head)
  const auto each = [&](auto body) {
    for (int64_t i = 0; i < c.batch * n * width; ++i) {
      const size_t t = static_cast<size_t>(tile[static_cast<size_t>(i / width % n)]);
      body(static_cast<size_t>(i), static_cast<size_t>((i / width / n * m + static_cast<int64_t>(t)) * width + i % width),
           count[t], static_cast<size_t>(i % width / c.head_dim));
    }
  };
  const auto pool = [&](const std::vector<float>& x) {
    std::vector<T> mean(static_cast<size_t>(c.batch * m * width));
    each([&](size_t i, size_t j, T tokens, size_t) { mean[j] += static_cast<T>(x[i]) / tokens; });
    for (T& v : mean) v = A::round(v);
    return mean;
  };
  const auto gate = cast<T>(c.at("gate")), dout = cast<T>(c.at("dout"));
  const auto q = pool(c.at("q")), k = pool(c.at("k")), v = pool(c.at("v"));
  std::vector<T> dmean(q.size());
  each([&](size_t i, size_t j, T, size_t h) { dmean[j] += dout[i] * gate[h]; });
  const auto r = attend<A>(q, k, v, dmean, c.batch, m, c.heads, c.head_dim, c.scale, [&](int64_t) { return all_keys(m); });
  std::vector<T> out(dout.size()), dq(dout.size()), dk(dout.size()), dv(dout.size()), dgate(gate.size());
  each([&](size_t i, size_t j, T tokens, size_t h) {
    out[i] = gate[h] * r.out[j];
    dgate[h] += dout[i] * r.out[j];
    dq[i] = r.dq[j] / tokens, dk[i] = r.dk[j] / tokens, dv[i] = r.dv[j] / tokens;
  });
  return {{"out", rounded<A>(out)}, {"lse", {r.lse.begin(), r.lse.end()}}, {"dq", rounded<A>(dq)}, {"dk", rounded<A>(dk)},
          {"dv", rounded<A>(dv)}, {"dgate", rounded<A>(dgate)}, {"q_mean", rounded<A>(q)}, {"k_mean", rounded<A>(k)},
          {"v_mean", rounded<A>(v)}};
}

template <class A>
NamedResults results(const StoredCase& c) {
  switch (c.kind) {
    case CaseKind::kDsa: return dsa_results<A>(c);
    case CaseKind::kDense:
    case CaseKind::kWindow: return attention_results<A>(c);
    case CaseKind::kPooled: return pooled_results<A>(c);
    case CaseKind::kOffsetNet: return reference_offset_net<A>(c);
    case CaseKind::kMotion: return reference_motion<A>(c);
  }
  return {};
}

}  // namespace

std::vector<int64_t> window_keys(const WindowShape& s, int64_t token) {
  const WindowGroups groups(s);
  const int64_t t = groups.t.group(token / (s.height * s.width)), h = groups.h.group(token / s.width % s.height);
  const int64_t w = groups.w.group(token % s.width);
  std::vector<int64_t> keys;
  for (int64_t i = groups.t.begin(t); i < groups.t.end(t); ++i)
    for (int64_t j = groups.h.begin(h); j < groups.h.end(h); ++j)
      for (int64_t l = groups.w.begin(w); l < groups.w.end(w); ++l) keys.push_back((i * s.height + j) * s.width + l);
  return keys;
}

NamedResults reference_results(const StoredCase& c, Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kF64: return results<ArithF64>(c);
    case Arithmetic::kF32: return results<ArithF32>(c);
    case Arithmetic::kBf16: return results<ArithBf16>(c);
  }
  return {};
}

}  // namespace megaslide
