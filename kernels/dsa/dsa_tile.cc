#include "kernels/dsa/dsa_tile.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/attention/scratch.h"
#include "kernels/dsa/dsa_literal.h"
#include "kernels/dsa/dsa_products.h"

namespace megaslide {
namespace {

constexpr int64_t kQ = kDsaTileQueries;

// Packed planes of keys, one a frame, by the frame's number: as many as a halo has.
class PlaneRing {
 public:
  PlaneRing() = default;
  PlaneRing(Carver& c, int64_t planes, int64_t bytes)
      : planes_(planes), bytes_(bytes), frame_(c.take<int64_t>(planes)), memory_(c.take<std::byte>(planes * bytes)) {}
  void clear() { std::fill(frame_, frame_ + planes_, -1); }
  // The plane of `frame`, after `pack(plane)` where it is not there yet.
  template <class F>
  std::byte* plane(int64_t frame, F pack) {
    const int64_t i = frame % planes_;
    if (frame_[i] != frame) pack(memory_ + i * bytes_), frame_[i] = frame;
    return memory_ + i * bytes_;
  }

 private:
  int64_t planes_ = 0, bytes_ = 0;
  int64_t* frame_ = nullptr;  // −1 for none
  std::byte* memory_ = nullptr;
};

struct Scratch {
  Scratch(Carver c, const DsaShape& s, const DsaTiling& t, const DsaProducts& p, bool backward)
      : slots(s.slots() * kQ), frames(backward ? t.backward_frames : t.forward_frames) {
    const int64_t map = kQ * t.row, operand = kQ * p.width() * p.bytes(), planes = t.largest.planes;
    const int64_t packed = p.plane_bytes(t.largest);
    places.cell = c.take<int32_t>(slots * frames);
    places.f = c.take<float>(3 * slots * frames);
    if (backward) {
      places.slope = c.take<float>(3 * slots * frames);
      sum = c.take<float>(3 * slots * frames);
    }
    place = c.take<float>(dsa_tile_place_scratch(s));
    scores = c.take<float>(map);
    pi = c.take<float>(map);
    q = c.take<std::byte>(operand);
    result = c.take<float>(kQ * p.width());
    work = c.take<std::byte>(p.scratch(t.largest));
    samples = c.take<float>(s.slots() * 16);
    operands = c.take<const void*>(planes);
    keys = PlaneRing(c, planes, packed);
    values = PlaneRing(c, planes, packed);
    if (backward) {
      dp = c.take<float>(map);
      gamma = c.take<float>(map);
      dout = c.take<std::byte>(operand);
      partial = c.take<float>(3 * slots);
      if (!p.packs_alike()) keys_as_values = PlaneRing(c, planes, packed);
      q_columns = c.take<std::byte>(operand * frames);
      dout_columns = c.take<std::byte>(operand * frames);
      const int64_t kept = frames * planes;
      gamma_kept = c.take<std::byte>(kept * p.kept_bytes(t.largest));
      pi_kept = c.take<std::byte>(kept * p.kept_bytes(t.largest));
      sums = c.take<float>(dsa_plane_keys(t.largest) * p.width());
    }
    bytes = c.used();
  }
  // Of the tile of the i-th frame.
  DsaTilePlaces places_of(int64_t i) const {
    return {places.cell + i * slots, places.f + 3 * i * slots, places.slope ? places.slope + 3 * i * slots : nullptr};
  }
  float* sum_of(int64_t i) const { return sum + 3 * i * slots; }

  int64_t bytes, slots, frames;
  DsaTilePlaces places{};
  float* sum = nullptr;  // gradient at the sample points of the group so far, [slot][3][32] a tile
  float *place, *scores, *pi, *result, *samples;  // scores, pi, dp, gamma: [32][row]
  float *dp = nullptr, *gamma = nullptr, *partial = nullptr;
  std::byte *q, *work, *dout = nullptr;
  const void** operands;
  PlaneRing keys, values, keys_as_values;
  // Of all tiles of a span: operands, and weights by plane, the tiles that read it one behind the other.
  std::byte *q_columns = nullptr, *dout_columns = nullptr, *gamma_kept = nullptr, *pi_kept = nullptr;
  float* sums = nullptr;
};

Scratch thread_scratch(const DsaShape& s, const DsaTiling& t, const DsaProducts& p, bool backward) {
  const int64_t bytes = Scratch(Carver(), s, t, p, backward).bytes;
  return Scratch(Carver(ThreadScratch::get(bytes)), s, t, p, backward);
}

// A head of a sample within the tensors of a call.
struct Head {
  Head(const DsaShape& s, DType dtype, int64_t batch_, int64_t index_)
      : batch(batch_), index(index_), stride(s.row()),
        base(batch * s.tokens() * stride + index * s.head_dim), bytes(dtype_bytes(dtype)), lse_stride(s.lse_row()),
        lse0(batch * s.tokens() * lse_stride + index) {}
  const std::byte* inputs(const void* tensor) const { return static_cast<const std::byte*>(tensor) + base * bytes; }
  int64_t at(int64_t token) const { return base + token * stride; }
  int64_t lse(int64_t token) const { return lse0 + token * lse_stride; }
  int64_t batch, index, stride, base, bytes, lse_stride, lse0;
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

void query_operands(const DsaProducts& p, const DsaTile& t, const Head& head, const void* q, std::byte* a) {
  const int64_t row = p.width() * p.bytes();
  for (int64_t i = 0; i < t.active; ++i) p.row(a + i * row, head.inputs(q) + t.token[i] * head.stride * head.bytes);
  std::memset(a + t.active * row, 0, static_cast<size_t>((kQ - t.active) * row));
}

// Planes of the tile's halo for one product.
template <class F>
const void* const* planes_of(PlaneRing& ring, const DsaTile& t, const Scratch& x, F pack) {
  for (int64_t p = 0; p < t.halo.planes; ++p)
    x.operands[p] = ring.plane(t.lo[0] + p, [&](std::byte* plane) { pack(plane, p); });
  return x.operands;
}

void forward_head(const DsaForwardArgs& a, const DsaProducts& p, const DsaTile& t, const DsaTilePlaces& places,
                  const Head& head, Scratch& x) {
  const int64_t d = a.shape.head_dim;
  query_operands(p, t, head, a.q, x.q);
  p.scores(x.scores, x.q, t, planes_of(x.keys, t, x, [&](void* to, int64_t i) {
             p.pack_keys(to, head.inputs(a.k), t.halo, i);
           }), x.work);
  std::fill(x.pi, x.pi + t.lanes * t.row, 0.0f);
  alignas(64) float lse[kQ], inverse[kQ];
  dsa_tile_softmax(t, places, a.shape.scale, x.scores, x.samples, x.pi, lse, inverse);
  p.weigh(x.result, x.pi, t, planes_of(x.values, t, x, [&](void* to, int64_t i) {
            p.pack_values(to, head.inputs(a.v), t.halo, i);
          }), x.work);
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

void gradient_operands(const DsaBackwardArgs& a, const DsaProducts& p, const DsaTile& t, const Head& head,
                       const Scratch& x, DsaTileStats& stats) {
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

// Weights and operands of queries that are not live become 0.
void clear_dead(const DsaProducts& p, const DsaTile& t, const DsaTileStats& stats, Scratch& x) {
  const int64_t row = p.width() * p.bytes();
  for (int64_t i = 0; i < kQ; ++i) {
    if (stats.live[i] != 0) continue;
    std::fill_n(x.pi + i * t.row, t.row, 0.0f);
    std::fill_n(x.gamma + i * t.row, t.row, 0.0f);
    std::memset(x.q + i * row, 0, static_cast<size_t>(row));
    std::memset(x.dout + i * row, 0, static_cast<size_t>(row));
  }
}

// Where the weights of a span's tiles are kept: place(plane, i) of tile i, in units of one plane of one tile.
class KeptPlanes {
 public:
  explicit KeptPlanes(const std::vector<DsaTile>& tiles) : tiles_(tiles) {
    lo_ = tiles.front().lo[0], hi_ = tiles.front().hi[0];
    for (const DsaTile& t : tiles) lo_ = std::min(lo_, t.lo[0]), hi_ = std::max(hi_, t.hi[0]);
    int64_t n = 0;
    for (int64_t f = lo_; f <= hi_; ++f) {
      first_.push_back(n);
      for (const DsaTile& t : tiles) n += reads(t, f);
    }
  }
  int64_t lo() const { return lo_; }
  int64_t hi() const { return hi_; }
  int64_t place(int64_t frame, int64_t i) const {
    int64_t at = first_[static_cast<size_t>(frame - lo_)];
    for (int64_t j = 0; j < i; ++j) at += reads(tiles_[static_cast<size_t>(j)], frame);
    return at;
  }
  static bool reads(const DsaTile& t, int64_t frame) { return t.lo[0] <= frame && frame <= t.hi[0]; }

 private:
  const std::vector<DsaTile>& tiles_;
  int64_t lo_, hi_;
  std::vector<int64_t> first_;
};

// dq of tile i of the span and the gradient at its sample points; keeps what dk and dv need.
void backward_head(const DsaBackwardArgs& a, const DsaProducts& p, const DsaTile& t, const KeptPlanes& kept, int64_t i,
                   const Head& head, Scratch& x) {
  DsaTileStats stats;
  gradient_operands(a, p, t, head, x, stats);
  const void *k = head.inputs(a.k), *v = head.inputs(a.v);
  PlaneRing& ring = p.packs_alike() ? x.keys : x.keys_as_values;
  const auto pack_both = [&](void* to, int64_t n) {  // while the keys are in the caches
    p.pack_keys(to, k, t.halo, n);
    if (!p.packs_alike()) ring.plane(t.lo[0] + n, [&](void* other) { p.pack_values(other, k, t.halo, n); });
  };
  p.scores(x.scores, x.q, t, planes_of(x.keys, t, x, pack_both), x.work);
  const auto pack_values = [&](void* to, int64_t n) { p.pack_keys(to, v, t.halo, n); };
  p.scores(x.dp, x.dout, t, planes_of(x.values, t, x, pack_values), x.work);
  std::fill(x.pi, x.pi + kQ * t.row, 0.0f);
  std::fill(x.gamma, x.gamma + kQ * t.row, 0.0f);
  dsa_tile_gradients(t, x.places_of(i), a.shape.scale, x.scores, x.dp, stats, x.pi, x.gamma, x.partial);
  p.weigh(x.result, x.gamma, t, planes_of(ring, t, x, [](void*, int64_t) {}), x.work);
  for (int64_t q = 0; q < t.active; ++q)
    if (!dsa_vector_store(a.dq + head.at(t.token[q]), x.result + q * p.width(), 1, a.shape.head_dim)) stats.live[q] = 0;
  clear_dead(p, t, stats, x);
  const int64_t operand = kQ * p.width() * p.bytes();
  p.columns(x.q_columns + i * operand, x.q);
  p.columns(x.dout_columns + i * operand, x.dout);
  for (int64_t n = 0; n < t.halo.planes; ++n) {
    const int64_t at = kept.place(t.lo[0] + n, i) * p.kept_bytes(t.halo), plane = n * dsa_plane_keys(t.halo);
    p.keep(x.gamma_kept + at, x.gamma + plane, t);
    p.keep(x.pi_kept + at, x.pi + plane, t);
  }
  for (int64_t q = 0; q < t.active; ++q)
    if (stats.live[q] == 0) literal_backward(a, head, t, q, x.partial);
}

// Adds to dk and dv what the span's tiles give to their keys, a plane at a time, over all tiles that read it.
void add_keys(const DsaBackwardArgs& a, const DsaProducts& p, const std::vector<DsaTile>& tiles, const KeptPlanes& kept,
              const Head& head, const Scratch& x) {
  const DsaTile& t = tiles.front();  // all have the same rows and columns
  const int64_t operand = kQ * p.width() * p.bytes(), n = static_cast<int64_t>(tiles.size());
  const auto add = [&](float* gradient, const std::byte* weights, const std::byte* b, int64_t frame) {
    bool accumulate = false;
    for (int64_t i = 0; i < n;) {  // runs of tiles that read the plane: one run, unless shots are strange
      int64_t end = i;
      while (end < n && KeptPlanes::reads(tiles[static_cast<size_t>(end)], frame)) ++end;
      if (end > i) {
        const std::byte* of_run = weights + kept.place(frame, i) * p.kept_bytes(t.halo);
        p.outer(x.sums, of_run, b + i * operand, end - i, t.halo, accumulate);
        accumulate = true;
      }
      i = end + 1;
    }
    if (accumulate)
      dsa_vector_add(gradient + head.base, head.stride, x.sums, p.width(), a.shape.head_dim, t.halo, frame - t.lo[0]);
  };
  for (int64_t frame = kept.lo(); frame <= kept.hi(); ++frame) {
    add(a.dk, x.gamma_kept, x.q_columns, frame);
    add(a.dv, x.pi_kept, x.dout_columns, frame);
  }
}

// The offset gradients of the tile's queries from those at the sample points.
void offset_gradients(const DsaBackwardArgs& a, const DsaTile& t, int64_t batch, int64_t group, const float* sum,
                      const float* slope) {
  const DsaShape& s = a.shape;
  const int64_t row = dsa_offset_row(s);
  float* doffsets = a.doffsets + batch * s.tokens() * row;
  for (int64_t i = 0; i < t.active; ++i) {
    float* to = doffsets + t.token[i] * row;
    int64_t ordinal = 0;
    for (int64_t jt = 0; jt < t.bounds.k_eff[0]; ++jt)
      for (int64_t jh = 0; jh < t.bounds.k_eff[1]; ++jh)
        for (int64_t jw = 0; jw < t.bounds.k_eff[2]; ++jw, ++ordinal)
          for (int axis = 0; axis < 3; ++axis) {
            const int64_t slot = (jt * s.kernel[1] + jh) * s.kernel[2] + jw;
            const int64_t index = dsa_offset_index(s, group, jt, slot, axis), at = (ordinal * 3 + axis) * kQ + i;
            if (index >= 0 && !t.idle[axis]) to[index] += sum[at] * slope[at];
          }
  }
}

// The tiles of one column over a span of frames.
std::vector<DsaTile> tiles_of(const DsaShape& s, const DsaTiling& tiling, int64_t frames, const DsaPiece& piece,
                              int64_t column) {
  std::vector<DsaTile> tiles;
  const int64_t first = s.query_begin + piece.span * frames, last = std::min(s.query_end(), first + frames);
  tiles.reserve(static_cast<size_t>(last - first));
  for (int64_t f = first; f < last; ++f) tiles.emplace_back(s, tiling, f, piece.band, column);
  return tiles;
}

// One head through a column of tiles, frame after frame, then its keys.
void backward_column(const DsaBackwardArgs& a, const DsaProducts& p, const std::vector<DsaTile>& tiles,
                     const Head& head, bool first, Scratch& x) {
  x.keys.clear();
  x.values.clear();
  if (!p.packs_alike()) x.keys_as_values.clear();
  const KeptPlanes kept(tiles);
  for (size_t i = 0; i < tiles.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    backward_head(a, p, tiles[i], kept, index, head, x);
    const int64_t points = 3 * tiles[i].slots * kQ;
    float* sum = x.sum_of(index);
    if (first)
      std::copy_n(x.partial, points, sum);
    else
      for (int64_t j = 0; j < points; ++j) sum[j] += x.partial[j];
  }
  add_keys(a, p, tiles, kept, head, x);
}

}  // namespace

int64_t dsa_tile_scratch_bytes(const DsaShape& s, const DsaTiling& tiling, DType dtype, bool backward) {
  return with_dsa_products(s, dtype, [&](const auto& p) { return Scratch(Carver(), s, tiling, p, backward).bytes; });
}

void dsa_tile_forward_piece(const DsaForwardArgs& a, const DsaTiling& tiling, const DsaPiece& piece, int64_t column) {
  const DsaShape& s = a.shape;
  const auto tiles = tiles_of(s, tiling, tiling.forward_frames, piece, column);
  with_dsa_products(s, a.dtype, [&](const auto& p) {
    Scratch x = thread_scratch(s, tiling, p, false);
    const auto n = static_cast<int64_t>(tiles.size());
    for (int64_t i = 0; i < n; ++i)
      dsa_tile_place(s, tiles[static_cast<size_t>(i)], piece.batch, piece.group, a.offsets, x.places_of(i), x.place);
    for (int64_t head = dsa_first_head(s, piece.group); head < dsa_first_head(s, piece.group + 1); ++head) {
      x.keys.clear();
      x.values.clear();
      for (int64_t i = 0; i < n; ++i)
        forward_head(a, p, tiles[static_cast<size_t>(i)], x.places_of(i), Head(s, a.dtype, piece.batch, head), x);
    }
  });
}

void dsa_tile_backward_piece(const DsaBackwardArgs& a, const DsaTiling& tiling, const DsaPiece& piece) {
  const DsaShape& s = a.shape;
  with_dsa_products(s, a.dtype, [&](const auto& p) {
    Scratch x = thread_scratch(s, tiling, p, true);
    for (int64_t column = 0; column < tiling.across; ++column) {
      const auto tiles = tiles_of(s, tiling, tiling.backward_frames, piece, column);
      const auto n = static_cast<int64_t>(tiles.size());
      for (int64_t i = 0; i < n; ++i)
        dsa_tile_place(s, tiles[static_cast<size_t>(i)], piece.batch, piece.group, a.offsets, x.places_of(i), x.place);
      const int64_t first = dsa_first_head(s, piece.group);
      for (int64_t head = first; head < dsa_first_head(s, piece.group + 1); ++head)
        backward_column(a, p, tiles, Head(s, a.dtype, piece.batch, head), head == first, x);
      for (int64_t i = 0; i < n; ++i)
        offset_gradients(a, tiles[static_cast<size_t>(i)], piece.batch, piece.group, x.sum_of(i), x.places_of(i).slope);
    }
  });
}

}  // namespace megaslide
