#include "kernels/attention/attention.h"

#include <algorithm>
#include <vector>

#include "kernels/attention/attention_pieces.h"
#include "kernels/attention/scratch.h"
#include "kernels/attention/tile_attention.h"
#include "kernels/attention/window_groups.h"

namespace megaslide {
namespace {

double query_elements(const AttentionShape& s) {
  return static_cast<double>(s.batch) * static_cast<double>(s.queries) * static_cast<double>(s.heads * s.head_dim);
}
double key_elements(const AttentionShape& s) {
  return static_cast<double>(s.batch) * static_cast<double>(s.keys) * static_cast<double>(s.heads * s.head_dim);
}
double pairs(const AttentionShape& s) { return query_elements(s) * static_cast<double>(s.keys); }

int64_t matrix_floats(const AttentionShape& s) {
  return s.batch * s.heads * ((s.queries + kMaterialisedBlock - 1) / kMaterialisedBlock) * s.keys * kMaterialisedBlock;
}

Cost with_matrix(Cost c, const AttentionShape& s, double passes) {
  c.bytes += 4 * passes * static_cast<double>(matrix_floats(s));
  return c;
}

void check_shape(const AttentionShape& s, DType dtype) {
  MS_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "dtype {}", dtype_name(dtype));
  MS_CHECK(s.batch >= 0 && s.queries >= 0 && s.keys > 0 && s.heads > 0 && s.head_dim > 0, "{} {} {} {} {}", s.batch,
           s.queries, s.keys, s.heads, s.head_dim);
}
void check_shape(const WindowShape& s, DType dtype) {
  MS_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "dtype {}", dtype_name(dtype));
  MS_CHECK(s.frames > 0 && s.height > 0 && s.width > 0 && s.heads > 0 && s.head_dim > 0);
  for (int64_t w : s.window) MS_CHECK(w > 0, "window {}", w);
}

double window_elements(const WindowShape& s) {
  return static_cast<double>(s.batch) * static_cast<double>(s.tokens()) * static_cast<double>(s.heads * s.head_dim);
}
double window_pair_elements(const WindowShape& s) {
  return static_cast<double>(s.batch * s.heads * s.head_dim) * window_attention_pairs(s);
}

// body(batch, head, i) for every i below n, one piece each.
template <class F>
void for_heads(Stream& stream, int64_t batch, int64_t heads, int64_t n, F body) {
  stream.parallel_for(batch * heads * n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i / n / heads, i / n % heads, i % n);
  });
}

// Heads of all samples are pieces; few heads are cut further, by the sizes alone: into ranges of queries forward, of
// keys backward. A range packs its head's operands again, and backward it has a dq of its own.
constexpr int64_t kFewHeads = 8, kRangeQueries = 2048;
struct Ranges {
  Ranges(const AttentionShape& s, int64_t n, int64_t unit, int64_t longest) {
    const int64_t heads = std::max<int64_t>(1, s.batch * s.heads);
    const int64_t wanted = std::max((kFewHeads + heads - 1) / heads, (n + longest - 1) / longest);
    step = std::max(unit, ((n + wanted - 1) / wanted + unit - 1) / unit * unit);
    count = (n + step - 1) / step;
  }
  int64_t step, count;
};
Ranges query_ranges(const AttentionShape& s) { return {s, s.queries, kTileQueries, kRangeQueries}; }
Ranges key_ranges(const AttentionShape& s) { return {s, s.keys, kTileKeys, s.keys}; }

bool on_tiles(DType dtype) { return dtype == DType::kBF16 && tile_unit() != TileUnit::kNone; }

TileHead tile_head(const AttentionShape& s, const void* q, const void* k, const void* v, int64_t b, int64_t head) {
  const int64_t stride = s.heads * s.head_dim, at = head * s.head_dim;
  const auto* keys = static_cast<const uint16_t*>(k) + b * s.keys * stride + at;
  const auto* values = static_cast<const uint16_t*>(v) + b * s.keys * stride + at;
  return {static_cast<const uint16_t*>(q) + b * s.queries * stride + at, keys, values, stride, stride, s.queries,
          s.keys, s.head_dim, s.scale};
}

void tile_forward(Stream& stream, const AttentionArgs& a) {
  const AttentionShape& s = a.shape;
  const Ranges ranges = query_ranges(s);
  const TileUnit unit = tile_unit();
  for_heads(stream, s.batch, s.heads, ranges.count, [&](int64_t b, int64_t head, int64_t i) {
    const TileHead h = tile_head(s, a.q, a.k, a.v, b, head);
    const int64_t stride = s.heads * s.head_dim;
    tile_attention_forward(unit, h, i * ranges.step, std::min((i + 1) * ranges.step, s.queries),
                           {.out = a.out + b * s.queries * stride + head * s.head_dim,
                            .out_stride = stride,
                            .lse = a.lse + b * s.queries * s.heads + head,
                            .lse_stride = s.heads},
                           ThreadScratch::get(static_cast<int64_t>(tile_attention_forward_scratch(h))));
  });
}

void tile_backward(Stream& stream, const AttentionGradientArgs& a, float* parts) {
  const AttentionShape& s = a.shape;
  const Ranges ranges = key_ranges(s);
  const TileUnit unit = tile_unit();
  const int64_t stride = s.heads * s.head_dim, elements = s.batch * s.queries * stride;
  for_heads(stream, s.batch, s.heads, ranges.count, [&](int64_t b, int64_t head, int64_t i) {
    const TileHead h = tile_head(s, a.q, a.k, a.v, b, head);
    const int64_t begin = i * ranges.step, end = std::min(begin + ranges.step, s.keys);
    const int64_t q = b * s.queries * stride + head * s.head_dim, k = b * s.keys * stride + head * s.head_dim;
    tile_attention_backward(unit, h, begin, end,
                            {.out = a.out + q,
                             .dout = a.dout + q,
                             .lse = a.lse + b * s.queries * s.heads + head,
                             .lse_stride = s.heads,
                             .dq = (ranges.count > 1 ? parts + i * elements : a.dq) + q,
                             .dq_stride = stride,
                             .dk = a.dk + k,
                             .dv = a.dv + k},
                            ThreadScratch::get(static_cast<int64_t>(tile_attention_backward_scratch(h, begin, end))));
  });
  if (ranges.count == 1) return;
  stream.parallel_for(elements, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      float sum = parts[e];
      for (int64_t i = 1; i < ranges.count; ++i) sum += parts[i * elements + e];
      a.dq[e] = sum;
    }
  });
}

// The tokens of a window gathered into rows of d, on the calling thread: q, k, v in bf16; backward adds out and dout and
// takes back dq, dk and dv, all fp32.
class WindowTile {
 public:
  WindowTile(const WindowShape& s, int64_t batch, int64_t head, int64_t window) : d_(s.head_dim), scale_(s.scale) {
    const WindowGroups g(s);
    const int64_t t = window / g.w.groups() / g.h.groups(), h = window / g.w.groups() % g.h.groups(),
                  w = window % g.w.groups();
    for (int64_t i = g.t.begin(t); i < g.t.end(t); ++i)
      for (int64_t j = g.h.begin(h); j < g.h.end(h); ++j)
        for (int64_t k = g.w.begin(w); k < g.w.end(w); ++k)
          rows_.push_back((batch * s.tokens() + (i * s.height + j) * s.width + k) * s.heads + head);
  }
  int64_t tokens() const { return static_cast<int64_t>(rows_.size()); }
  const std::vector<int64_t>& rows() const { return rows_; }  // in units of d: rows of (B, N, heads)

  template <class T>
  std::vector<T> gather(const void* from) const {
    std::vector<T> r(rows_.size() * static_cast<size_t>(d_));
    for (size_t i = 0; i < rows_.size(); ++i)
      std::copy_n(static_cast<const T*>(from) + rows_[i] * d_, d_, r.data() + static_cast<int64_t>(i) * d_);
    return r;
  }
  void scatter(float* to, const std::vector<float>& from) const {
    for (size_t i = 0; i < rows_.size(); ++i)
      std::copy_n(from.data() + static_cast<int64_t>(i) * d_, d_, to + rows_[i] * d_);
  }
  TileHead head(const uint16_t* q, const uint16_t* k, const uint16_t* v) const {
    return {q, k, v, d_, d_, tokens(), tokens(), d_, scale_};
  }

 private:
  int64_t d_;
  float scale_;
  std::vector<int64_t> rows_;
};

void tile_window_forward(const WindowArgs& a, int64_t batch, int64_t head, int64_t window) {
  const WindowTile w(a.shape, batch, head, window);
  const auto q = w.gather<uint16_t>(a.q), k = w.gather<uint16_t>(a.k), v = w.gather<uint16_t>(a.v);
  std::vector<float> out(q.size()), lse(w.rows().size());
  const TileHead h = w.head(q.data(), k.data(), v.data());
  tile_attention_forward(tile_unit(), h, 0, w.tokens(),
                         {.out = out.data(), .out_stride = a.shape.head_dim, .lse = lse.data(), .lse_stride = 1},
                         ThreadScratch::get(static_cast<int64_t>(tile_attention_forward_scratch(h))));
  w.scatter(a.out, out);
  for (size_t i = 0; i < lse.size(); ++i) a.lse[w.rows()[i]] = lse[i];
}

void tile_window_backward(const WindowGradientArgs& a, int64_t batch, int64_t head, int64_t window) {
  const WindowTile w(a.shape, batch, head, window);
  const auto q = w.gather<uint16_t>(a.q), k = w.gather<uint16_t>(a.k), v = w.gather<uint16_t>(a.v);
  const auto out = w.gather<float>(a.out), dout = w.gather<float>(a.dout);
  std::vector<float> dq(q.size()), dk(q.size()), dv(q.size()), lse(w.rows().size());
  for (size_t i = 0; i < lse.size(); ++i) lse[i] = a.lse[w.rows()[i]];
  const TileHead h = w.head(q.data(), k.data(), v.data());
  tile_attention_backward(tile_unit(), h, 0, w.tokens(),
                          {.out = out.data(),
                           .dout = dout.data(),
                           .lse = lse.data(),
                           .lse_stride = 1,
                           .dq = dq.data(),
                           .dq_stride = a.shape.head_dim,
                           .dk = dk.data(),
                           .dv = dv.data()},
                          ThreadScratch::get(static_cast<int64_t>(tile_attention_backward_scratch(h, 0, w.tokens()))));
  w.scatter(a.dq, dq);
  w.scatter(a.dk, dk);
  w.scatter(a.dv, dv);
}

}  // namespace

int64_t dense_attention_forward_workspace_bytes(const AttentionShape&, DType) { return 0; }
int64_t dense_attention_backward_workspace_bytes(const AttentionShape& s, DType dtype) {
  const int64_t ranges = key_ranges(s).count;
  if (dtype != DType::kBF16 || ranges == 1) return 0;
  return 4 * ranges * s.batch * s.queries * s.heads * s.head_dim;
}
int64_t dense_materialised_forward_workspace_bytes(const AttentionShape& s, DType) { return 4 * matrix_floats(s); }
int64_t dense_materialised_backward_workspace_bytes(const AttentionShape& s, DType) { return 8 * matrix_floats(s); }
int64_t window_attention_forward_workspace_bytes(const WindowShape&, DType) { return 0; }
int64_t window_attention_backward_workspace_bytes(const WindowShape&, DType) { return 0; }

double window_attention_pairs(const WindowShape& s) {
  const WindowGroups groups(s);
  double pairs = 1;
  for (const WindowAxis* axis : {&groups.t, &groups.h, &groups.w}) {
    double along = 0;
    for (int64_t g = 0; g < axis->groups(); ++g) {
      const double n = static_cast<double>(axis->end(g) - axis->begin(g));
      along += n * n;
    }
    pairs *= along;
  }
  return pairs;
}

Cost attention_cost(double pairs, double query_elements, double key_elements, double element_bytes, bool backward) {
  const double inputs = element_bytes * (query_elements + 2 * key_elements);
  if (!backward) return {KernelClass::kAttention, 4 * pairs, inputs + 4 * query_elements};
  return {KernelClass::kAttention, 10 * pairs, inputs + 12 * query_elements + 8 * key_elements};
}
Cost dense_attention_forward_cost(float*, float*, const void*, const void*, const void*, void*, AttentionShape s,
                                  DType t) {
  return attention_cost(pairs(s), query_elements(s), key_elements(s), static_cast<double>(dtype_bytes(t)), false);
}
Cost dense_attention_backward_cost(float*, float*, float*, const void*, const void*, const void*, const float*,
                                   const float*, const float*, void*, AttentionShape s, DType t) {
  return attention_cost(pairs(s), query_elements(s), key_elements(s), static_cast<double>(dtype_bytes(t)), true);
}
Cost dense_materialised_forward_cost(float* out, float* lse, const void* q, const void* k, const void* v, void* w,
                                     AttentionShape s, DType t) {
  return with_matrix(dense_attention_forward_cost(out, lse, q, k, v, w, s, t), s, 4);  // write, read-write, read
}
Cost dense_materialised_backward_cost(float* dq, float* dk, float* dv, const void* q, const void* k, const void* v,
                                      const float* out, const float* lse, const float* dout, void* w, AttentionShape s,
                                      DType t) {
  return with_matrix(dense_attention_backward_cost(dq, dk, dv, q, k, v, out, lse, dout, w, s, t), s, 4);
}
Cost window_attention_forward_cost(float*, float*, const void*, const void*, const void*, void*, WindowShape s,
                                   DType t) {
  const double n = window_elements(s);
  return attention_cost(window_pair_elements(s), n, n, static_cast<double>(dtype_bytes(t)), false);
}
Cost window_attention_backward_cost(float*, float*, float*, const void*, const void*, const void*, const float*,
                                    const float*, const float*, void*, WindowShape s, DType t) {
  const double n = window_elements(s);
  return attention_cost(window_pair_elements(s), n, n, static_cast<double>(dtype_bytes(t)), true);
}

namespace cpu {

void dense_attention_forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v,
                             void*, AttentionShape s, DType dtype) {
  check_shape(s, dtype);
  const AttentionArgs a{out, lse, q, k, v, s, dtype};
  if (on_tiles(dtype)) return tile_forward(stream, a);
  for_heads(stream, s.batch, s.heads, (s.queries + kAttentionQueryTile - 1) / kAttentionQueryTile,
            [&](int64_t b, int64_t head, int64_t tile) { attention_forward_piece(a, b, head, tile); });
}

void dense_attention_backward(Stream& stream, float* dq, float* dk, float* dv, const void* q, const void* k,
                              const void* v, const float* out, const float* lse, const float* dout, void* workspace,
                              AttentionShape s, DType dtype) {
  check_shape(s, dtype);
  const AttentionGradientArgs a{dq, dk, dv, q, k, v, out, lse, dout, s, dtype};
  if (on_tiles(dtype)) return tile_backward(stream, a, static_cast<float*>(workspace));
  for_heads(stream, s.batch, s.heads, 1, [&](int64_t b, int64_t head, int64_t) { attention_backward_piece(a, b, head); });
}

void dense_materialised_forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v,
                                void* workspace, AttentionShape s, DType dtype) {
  check_shape(s, dtype);
  const AttentionArgs a{out, lse, q, k, v, s, dtype};
  float* matrix = static_cast<float*>(workspace);
  const int64_t blocks = (s.queries + kMaterialisedBlock - 1) / kMaterialisedBlock;
  for_heads(stream, s.batch, s.heads, blocks,
            [&](int64_t b, int64_t head, int64_t i) { materialised_scores_piece(a, matrix, b, head, i); });
  for_heads(stream, s.batch, s.heads, blocks,
            [&](int64_t b, int64_t head, int64_t i) { materialised_softmax_piece(a, matrix, b, head, i); });
  for_heads(stream, s.batch, s.heads, blocks,
            [&](int64_t b, int64_t head, int64_t i) { materialised_output_piece(a, matrix, b, head, i); });
}

void dense_materialised_backward(Stream& stream, float* dq, float* dk, float* dv, const void* q, const void* k,
                                 const void* v, const float* out, const float* lse, const float* dout, void* workspace,
                                 AttentionShape s, DType dtype) {
  check_shape(s, dtype);
  const AttentionGradientArgs a{dq, dk, dv, q, k, v, out, lse, dout, s, dtype};
  float *p = static_cast<float*>(workspace), *ds = p + matrix_floats(s);
  for_heads(stream, s.batch, s.heads, (s.queries + kMaterialisedBlock - 1) / kMaterialisedBlock,
            [&](int64_t b, int64_t head, int64_t i) { materialised_gradient_piece(a, p, ds, b, head, i); });
  for_heads(stream, s.batch, s.heads, 1,
            [&](int64_t b, int64_t head, int64_t) { materialised_keys_piece(a, p, ds, b, head); });
}

void window_attention_forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v,
                              void*, WindowShape s, DType dtype) {
  check_shape(s, dtype);
  const WindowArgs a{out, lse, q, k, v, s, dtype};
  for_heads(stream, s.batch, s.heads, WindowGroups(s).count(),
            [&, tiles = on_tiles(dtype)](int64_t b, int64_t head, int64_t i) {
              tiles ? tile_window_forward(a, b, head, i) : window_forward_piece(a, b, head, i);
            });
}

void window_attention_backward(Stream& stream, float* dq, float* dk, float* dv, const void* q, const void* k,
                               const void* v, const float* out, const float* lse, const float* dout, void*,
                               WindowShape s, DType dtype) {
  check_shape(s, dtype);
  const WindowGradientArgs a{dq, dk, dv, q, k, v, out, lse, dout, s, dtype};
  for_heads(stream, s.batch, s.heads, WindowGroups(s).count(),
            [&, tiles = on_tiles(dtype)](int64_t b, int64_t head, int64_t i) {
              tiles ? tile_window_backward(a, b, head, i) : window_backward_piece(a, b, head, i);
            });
}

}  // namespace cpu
}  // namespace megaslide
