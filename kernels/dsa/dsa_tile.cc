#include "kernels/dsa/dsa_tile.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/attention/scratch.h"
#include "kernels/dsa/dsa_literal.h"
#include "kernels/dsa/dsa_vector.h"

namespace megaslide {
namespace {

constexpr int64_t kQ = kDsaTileQueries;

// The products of one head. Operands of queries are 32 rows of width() numbers of bytes() each; tensors point to the
// first number of the head.
class Products {
 public:
  explicit Products(const DsaShape& s) : d_(s.head_dim), stride_(s.heads * s.head_dim) {}
  virtual ~Products() = default;
  virtual int64_t width() const = 0;
  virtual int64_t bytes() const = 0;
  virtual int64_t scratch(const DsaHalo& h) const = 0;
  virtual void row(void* a, const void* x) const = 0;                                   // a row of q, k or v
  virtual float gradient_row(void* a, const float* dout, const float* out) const = 0;  // returns Σ dO·O
  virtual void scores(float* scores, const void* a, const DsaTile& t, const void* keys, void* scratch) const = 0;
  virtual void weigh(float* result, const float* weights, const DsaTile& t, const void* values, void* scratch) const = 0;
  virtual void columns(void* b, const void* a) const = 0;  // a as the right operand of outer
  virtual void outer(float* gradient, const float* weights, const void* b, const DsaTile& t, void* scratch) const = 0;

 protected:
  int64_t d_, stride_;
};

class UnitProducts final : public Products {
 public:
  UnitProducts(const DsaShape& s, TileUnit unit) : Products(s), unit_(unit) {}
  int64_t width() const override { return (d_ + 31) / 32 * 32; }
  int64_t bytes() const override { return 2; }
  int64_t scratch(const DsaHalo& h) const override { return dsa_bf16_scratch(h, width()); }
  void row(void* a, const void* x) const override {
    auto* to = static_cast<uint16_t*>(a);
    std::copy_n(static_cast<const uint16_t*>(x), d_, to);
    std::fill(to + d_, to + width(), uint16_t{0});
  }
  float gradient_row(void* a, const float* dout, const float* out) const override {
    return dsa_bf16_round(static_cast<uint16_t*>(a), dout, out, d_, width());
  }
  void scores(float* scores, const void* a, const DsaTile& t, const void* keys, void* scratch) const override {
    dsa_bf16_scores(unit_, scores, t.row, t.lanes, static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(keys),
                    stride_, d_, t.halo, scratch);
  }
  void weigh(float* result, const float* weights, const DsaTile& t, const void* values, void* scratch) const override {
    dsa_bf16_weigh(unit_, result, weights, t.row, t.lanes, static_cast<const uint16_t*>(values), stride_, d_, t.halo,
                   scratch);
  }
  void columns(void* b, const void* a) const override {
    dsa_bf16_columns(static_cast<uint16_t*>(b), static_cast<const uint16_t*>(a), width());
  }
  void outer(float* gradient, const float* weights, const void* b, const DsaTile& t, void* scratch) const override {
    dsa_bf16_outer(unit_, gradient, stride_, weights, t.row, static_cast<const uint16_t*>(b), d_, t.halo, scratch);
  }

 private:
  TileUnit unit_;
};

class VectorProducts final : public Products {
 public:
  VectorProducts(const DsaShape& s, DType dtype) : Products(s), dtype_(dtype) {}
  int64_t width() const override { return (d_ + 15) / 16 * 16; }
  int64_t bytes() const override { return 4; }
  int64_t scratch(const DsaHalo& h) const override { return dsa_vector_scratch(h, width()); }
  void row(void* a, const void* x) const override { dsa_vector_widen(static_cast<float*>(a), x, d_, width(), dtype_); }
  float gradient_row(void* a, const float* dout, const float* out) const override {
    dsa_vector_widen(static_cast<float*>(a), dout, d_, width(), DType::kF32);
    return dsa_vector_dot(dout, out, d_);
  }
  void scores(float* scores, const void* a, const DsaTile& t, const void* keys, void* scratch) const override {
    dsa_vector_scores(scores, t.row, t.lanes, static_cast<const float*>(a), keys, stride_, d_, t.halo, dtype_, scratch);
  }
  void weigh(float* result, const float* weights, const DsaTile& t, const void* values, void* scratch) const override {
    dsa_vector_weigh(result, weights, t.row, t.lanes, values, stride_, d_, t.halo, dtype_, scratch);
  }
  void columns(void* b, const void* a) const override { std::memcpy(b, a, static_cast<size_t>(4 * kQ * width())); }
  void outer(float* gradient, const float* weights, const void* b, const DsaTile& t, void* scratch) const override {
    dsa_vector_outer(gradient, stride_, weights, t.row, static_cast<const float*>(b), d_, t.halo, scratch);
  }

 private:
  DType dtype_;
};

// body(products) with those of this type and processor.
template <class F>
auto with_products(const DsaShape& s, DType dtype, F body) {
  const TileUnit unit = tile_unit();
  if (dtype == DType::kBF16 && unit != TileUnit::kNone) return body(UnitProducts(s, unit));
  return body(VectorProducts(s, dtype));
}

struct Scratch {
  Scratch(Carver c, const DsaShape& s, const DsaTiling& t, const Products& p, bool backward) {
    const int64_t map = kQ * t.row, operand = kQ * p.width() * p.bytes(), n = s.slots() * kQ;
    places.cell = c.take<int32_t>(n);
    places.f = c.take<float>(3 * n);
    places.slope = c.take<float>(3 * n);
    place = c.take<float>(dsa_tile_place_scratch(s));
    scores = c.take<float>(map);
    pi = c.take<float>(map);
    q = c.take<std::byte>(operand);
    result = c.take<float>(kQ * p.width());
    work = c.take<std::byte>(p.scratch(t.largest));
    samples = c.take<float>(s.slots() * 16);
    if (backward) {
      dp = c.take<float>(map);
      gamma = c.take<float>(map);
      dout = c.take<std::byte>(operand);
      q_columns = c.take<std::byte>(operand);
      dout_columns = c.take<std::byte>(operand);
      partial = c.take<float>(3 * n);
      sum = c.take<float>(3 * n);
    }
    bytes = c.used();
  }
  int64_t bytes;
  DsaTilePlaces places;
  float* place;
  float *scores, *dp, *pi, *gamma;  // [32][row]
  std::byte *q, *dout, *q_columns, *dout_columns;
  float *result, *samples;
  float *partial, *sum;  // gradient at the sample points, [slot][3][32], of a head and of the group so far
  std::byte* work;
};

Scratch thread_scratch(const DsaShape& s, const DsaTiling& t, const Products& p, bool backward) {
  const int64_t bytes = Scratch(Carver(), s, t, p, backward).bytes;
  return Scratch(Carver(ThreadScratch::get(bytes)), s, t, p, backward);
}

// A head of a sample within the tensors of a call.
struct Head {
  Head(const DsaShape& s, DType dtype, int64_t batch_, int64_t index_)
      : batch(batch_), index(index_), stride(s.heads * s.head_dim), base(batch * s.tokens() * stride + index * s.head_dim),
        bytes(dtype_bytes(dtype)), heads(s.heads), lse0(batch * s.tokens() * heads + index) {}
  const std::byte* inputs(const void* tensor) const { return static_cast<const std::byte*>(tensor) + base * bytes; }
  int64_t at(int64_t token) const { return base + token * stride; }
  int64_t lse(int64_t token) const { return lse0 + token * heads; }
  int64_t batch, index, stride, base, bytes, heads, lse0;
};

// body(inputs of the literal path)
template <class Args, class F>
void with_inputs(const Args& a, F body) {
  if (a.dtype == DType::kBF16)
    body(DsaInputs<bf16, float>{static_cast<const bf16*>(a.q), static_cast<const bf16*>(a.k),
                                static_cast<const bf16*>(a.v), a.offsets});
  else
    body(DsaInputs<float, float>{static_cast<const float*>(a.q), static_cast<const float*>(a.k),
                                 static_cast<const float*>(a.v), a.offsets});
}

void literal_forward(const DsaForwardArgs& a, const Head& head, int64_t token) {
  with_inputs(a, [&](const auto& in) {
    const DsaLiteralQuery<ArithF32> query(a.shape, in, head.batch, token, head.index);
    query.output(a.out + head.at(token));
    a.lse[head.lse(token)] = query.lse();
  });
}

void query_operands(const Products& p, const DsaTile& t, const Head& head, const void* q, std::byte* a) {
  const int64_t row = p.width() * p.bytes();
  for (int64_t i = 0; i < t.active; ++i) p.row(a + i * row, head.inputs(q) + t.token[i] * head.stride * head.bytes);
  std::memset(a + t.active * row, 0, static_cast<size_t>((kQ - t.active) * row));
}

void forward_head(const DsaForwardArgs& a, const Products& p, const DsaTile& t, const Head& head, const Scratch& x) {
  const int64_t d = a.shape.head_dim;
  query_operands(p, t, head, a.q, x.q);
  p.scores(x.scores, x.q, t, head.inputs(a.k), x.work);
  std::fill(x.pi, x.pi + t.lanes * t.row, 0.0f);
  alignas(64) float lse[kQ], inverse[kQ];
  dsa_tile_softmax(t, x.places, a.shape.scale, x.scores, x.samples, x.pi, lse, inverse);
  p.weigh(x.result, x.pi, t, head.inputs(a.v), x.work);
  for (int64_t i = 0; i < t.active; ++i) {
    const bool finite = dsa_vector_store(a.out + head.at(t.token[i]), x.result + i * p.width(), inverse[i], d);
    a.lse[head.lse(t.token[i])] = lse[i];
    if (!finite) literal_forward(a, head, t.token[i]);
  }
}

void literal_backward(const DsaBackwardArgs& a, const Head& head, const DsaTile& t, int64_t i, float* partial) {
  std::vector<float> dx(static_cast<size_t>(3 * t.slots));
  with_inputs(a, [&](const auto& in) {
    const DsaLiteralQuery<ArithF32> query(a.shape, in, head.batch, t.token[i], head.index);
    const int64_t row = head.at(t.token[i]);
    query.backward(in, a.out + row, a.dout + row, a.dq + row, a.dk, a.dv, dx.data());
  });
  for (size_t j = 0; j < dx.size(); ++j) partial[static_cast<int64_t>(j) * kQ + i] = dx[j];
}

void gradient_operands(const DsaBackwardArgs& a, const Products& p, const DsaTile& t, const Head& head, const Scratch& x,
                       DsaTileStats& stats) {
  const int64_t row = p.width() * p.bytes();
  query_operands(p, t, head, a.q, x.q);
  for (int64_t i = 0; i < kQ; ++i) stats.lse[i] = stats.dot[i] = stats.live[i] = 0;
  for (int64_t i = 0; i < t.active; ++i) {
    const int64_t at = head.at(t.token[i]);
    stats.dot[i] = p.gradient_row(x.dout + i * row, a.dout + at, a.out + at);
    stats.lse[i] = a.lse[head.lse(t.token[i])];
    stats.live[i] = 1;
  }
  std::memset(x.dout + t.active * row, 0, static_cast<size_t>((kQ - t.active) * row));
}

void backward_head(const DsaBackwardArgs& a, const Products& p, const DsaTile& t, const Head& head, const Scratch& x) {
  DsaTileStats stats;
  gradient_operands(a, p, t, head, x, stats);
  p.scores(x.scores, x.q, t, head.inputs(a.k), x.work);
  p.scores(x.dp, x.dout, t, head.inputs(a.v), x.work);
  std::fill(x.pi, x.pi + kQ * t.row, 0.0f);
  std::fill(x.gamma, x.gamma + kQ * t.row, 0.0f);
  dsa_tile_gradients(t, x.places, a.shape.scale, x.scores, x.dp, stats, x.pi, x.gamma, x.partial);
  p.weigh(x.result, x.gamma, t, head.inputs(a.k), x.work);
  for (int64_t i = 0; i < t.active; ++i)
    if (!dsa_vector_store(a.dq + head.at(t.token[i]), x.result + i * p.width(), 1, a.shape.head_dim)) stats.live[i] = 0;
  const int64_t row = p.width() * p.bytes();
  for (int64_t i = 0; i < kQ; ++i) {
    if (stats.live[i] != 0) continue;
    std::fill_n(x.pi + i * t.row, t.row, 0.0f);
    std::fill_n(x.gamma + i * t.row, t.row, 0.0f);
    std::memset(x.q + i * row, 0, static_cast<size_t>(row));
    std::memset(x.dout + i * row, 0, static_cast<size_t>(row));
  }
  p.columns(x.q_columns, x.q);
  p.columns(x.dout_columns, x.dout);
  p.outer(a.dk + head.base, x.gamma, x.q_columns, t, x.work);
  p.outer(a.dv + head.base, x.pi, x.dout_columns, t, x.work);
  for (int64_t i = 0; i < t.active; ++i)
    if (stats.live[i] == 0) literal_backward(a, head, t, i, x.partial);
}

// The offset gradients of the tile's queries from those at the sample points.
void offset_gradients(const DsaBackwardArgs& a, const DsaTile& t, int64_t batch, int64_t group, const Scratch& x) {
  const DsaShape& s = a.shape;
  const int64_t count = dsa_offset_count(s);
  float* doffsets = a.doffsets + batch * s.tokens() * count;
  for (int64_t i = 0; i < t.active; ++i) {
    float* to = doffsets + t.token[i] * count;
    int64_t ordinal = 0;
    for (int64_t jt = 0; jt < t.bounds.k_eff[0]; ++jt)
      for (int64_t jh = 0; jh < t.bounds.k_eff[1]; ++jh)
        for (int64_t jw = 0; jw < t.bounds.k_eff[2]; ++jw, ++ordinal)
          for (int axis = 0; axis < 3; ++axis) {
            const int64_t slot = (jt * s.kernel[1] + jh) * s.kernel[2] + jw;
            const int64_t index = dsa_offset_index(s, group, jt, slot, axis), at = (ordinal * 3 + axis) * kQ + i;
            if (index >= 0 && !t.idle[axis]) to[index] += x.sum[at] * x.places.slope[at];
          }
  }
}

}  // namespace

int64_t dsa_tile_scratch_bytes(const DsaShape& s, const DsaTiling& tiling, DType dtype, bool backward) {
  return with_products(s, dtype, [&](const auto& p) { return Scratch(Carver(), s, tiling, p, backward).bytes; });
}

void dsa_tile_forward_piece(const DsaForwardArgs& a, const DsaTiling& tiling, int64_t batch, int64_t frame,
                            int64_t band, int64_t group) {
  const DsaShape& s = a.shape;
  with_products(s, a.dtype, [&](const auto& p) {
    const Scratch x = thread_scratch(s, tiling, p, false);
    for (int64_t i = 0; i < tiling.across; ++i) {
      const DsaTile t(s, tiling, frame, band, i);
      dsa_tile_place(s, t, batch, group, a.offsets, x.places, x.place);
      for (int64_t head = dsa_first_head(s, group); head < dsa_first_head(s, group + 1); ++head)
        forward_head(a, p, t, Head(s, a.dtype, batch, head), x);
    }
  });
}

void dsa_tile_backward_piece(const DsaBackwardArgs& a, const DsaTiling& tiling, int64_t batch, int64_t frame,
                             int64_t band, int64_t group) {
  const DsaShape& s = a.shape;
  with_products(s, a.dtype, [&](const auto& p) {
    const Scratch x = thread_scratch(s, tiling, p, true);
    for (int64_t i = 0; i < tiling.across; ++i) {
      const DsaTile t(s, tiling, frame, band, i);
      dsa_tile_place(s, t, batch, group, a.offsets, x.places, x.place);
      const int64_t first = dsa_first_head(s, group), points = 3 * t.slots * kQ;
      for (int64_t head = first; head < dsa_first_head(s, group + 1); ++head) {
        backward_head(a, p, t, Head(s, a.dtype, batch, head), x);
        if (head == first)
          std::copy_n(x.partial, points, x.sum);
        else
          for (int64_t j = 0; j < points; ++j) x.sum[j] += x.partial[j];
      }
      offset_gradients(a, t, batch, group, x);
    }
  });
}

}  // namespace megaslide
