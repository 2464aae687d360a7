#include "kernels/attention/tile_attention.h"

#if MEGASLIDE_TILE
#include "kernels/tile/tile-inl.h"

namespace megaslide {
namespace {

// Blocks of queries and keys: the forward pass holds scores of 64 × 512, the backward pass of 128 × 256, so that they
// and the operands beside them stay in the second-level cache.
inline constexpr int64_t kQ = kTileQueries, kK = 512, kBackQ = 128, kBackK = kTileKeys;
inline constexpr float kMasked = -1e30F;  // finite: inf − inf would be NaN

inline int64_t up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline __mmask16 lanes(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1); }

// 64-byte aligned arrays out of one block; on nullptr it only measures.
class Carve {
 public:
  explicit Carve(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(int64_t n) {
    T* p = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += up(n * static_cast<int64_t>(sizeof(T)), 64);
    return p;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// Rows [begin, end) of x (d wide) as rows of A, `dp` wide, zeros up to `padded` rows.
void copy_rows(uint16_t* out, const uint16_t* x, int64_t stride, int64_t begin, int64_t end, int64_t padded, int64_t d,
               int64_t dp) {
  for (int64_t i = 0; i < padded; ++i)
    for (int64_t c = 0; c < dp; c += 32)
      _mm512_store_si512(out + i * dp + c, begin + i < end ? load32(x + (begin + i) * stride + c, d - c)
                                                           : _mm512_setzero_si512());
}

// The same rows transposed as an A whose k are these rows: [padded/32][dp][32].
void copy_transposed(uint16_t* out, const uint16_t* x, int64_t stride, int64_t begin, int64_t end, int64_t padded,
                     int64_t d, int64_t dp) {
  for (int64_t i = 0; i < padded; i += 32)
    for (int64_t c = 0; c < dp; c += 32)
      transpose_block32(out + i * dp + c * 32, 32, x + (begin + i) * stride + c, stride, end - begin - i, d - c);
}

// out (rows, d) from its transpose (dp, 16), row stride 16, times a factor a column.
void store_transposed(float* out, int64_t stride, const float* t, __m512 factor, int64_t rows, int64_t d) {
  for (int64_t c = 0; c < d; c += 16) {
    __m512i r[16];
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i)
      r[i] = _mm512_castps_si512(_mm512_mul_ps(factor, _mm512_load_ps(t + (c + i) * 16)));
    transpose16(r);
    const __mmask16 m = lanes(d - c);
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i)
      if (i < rows) _mm512_mask_storeu_ps(out + i * stride + c, m, _mm512_castsi512_ps(r[i]));
  }
}

struct ForwardScratch {
  ForwardScratch(Carve& c, const TileHead& h)
      : dp(up(h.d, 32)), keys(up(h.keys, 32)), k(c.take<uint16_t>(keys * dp)), vt(c.take<uint16_t>(keys * dp)),
        q(c.take<uint16_t>(kQ * dp)), p(c.take<uint16_t>(kK * kQ)), st(c.take<float>(kK * kQ)),
        ot(c.take<float>(dp * kQ)) {}
  int64_t dp, keys;
  uint16_t *k, *vt, *q, *p;  // vt: [keys/32][dp][32]; q, p: tiles of B
  float *st, *ot;            // [kQ/16][kK][16], [kQ/16][dp][16]
};

// Running maximum (of scale·log2e·score) and sum of a block of 16 queries.
struct Running {
  __m512 top, sum;
};

// Scores x (keys,16), padded to `padded` keys, become P in tiles of B, every second tile row of `step` elements; the
// output so far follows the maximum.
__attribute__((noinline)) void softmax_block(float* x, int64_t keys, int64_t padded, float scale, Running& run,
                                             float* ot, int64_t dp, bool first, uint16_t* p, int64_t step) {
  const __m512 c = _mm512_set1_ps(scale);
  __m512 m0 = _mm512_load_ps(x), m1 = m0;
  int64_t i = 0;
  for (; i + 2 <= keys; i += 2) {
    m0 = _mm512_max_ps(m0, _mm512_load_ps(x + i * 16));
    m1 = _mm512_max_ps(m1, _mm512_load_ps(x + i * 16 + 16));
  }
  if (i < keys) m0 = _mm512_max_ps(m0, _mm512_load_ps(x + i * 16));
  for (i = keys; i < padded; ++i) _mm512_store_ps(x + i * 16, _mm512_set1_ps(kMasked));
  const __m512 top = _mm512_max_ps(run.top, _mm512_mul_ps(c, _mm512_max_ps(m0, m1)));
  if (!first && _mm512_cmp_ps_mask(top, run.top, _CMP_NEQ_UQ)) {
    const __m512 shrink = exp2_16(_mm512_sub_ps(run.top, top));
    run.sum = _mm512_mul_ps(run.sum, shrink);
    for (int64_t e = 0; e < dp; ++e) _mm512_store_ps(ot + e * 16, _mm512_mul_ps(shrink, _mm512_load_ps(ot + e * 16)));
  }
  run.top = top;
  __m512 s0 = run.sum, s1 = _mm512_setzero_ps();
  for (int64_t j = 0; j < padded; j += 32)
    for (int64_t r = 0; r < 32; r += 2) {
      const float* at = x + (j + r) * 16;
      const __m512 p0 = exp2_16(_mm512_fmsub_ps(c, _mm512_load_ps(at), top));
      const __m512 p1 = exp2_16(_mm512_fmsub_ps(c, _mm512_load_ps(at + 16), top));
      s0 = _mm512_add_ps(s0, p0);
      s1 = _mm512_add_ps(s1, p1);
      _mm512_store_si512(p + j / 32 * step + r * 16, pack_pair(p0, p1));
    }
  run.sum = _mm512_add_ps(s0, s1);
}

// 64 queries from q0 on.
void forward_queries(TileUnit unit, const TileHead& h, int64_t q0, int64_t end, const TileHeadResult& o,
                     const ForwardScratch& s) {
  constexpr int64_t kBlocks = kQ / 16;
  const int64_t dp = s.dp;
  Running run[kBlocks];
  for (int64_t b = 0; b < kBlocks; ++b) {
    run[b] = {_mm512_set1_ps(kMasked), _mm512_setzero_ps()};
    for (int64_t c = 0; c < dp; c += 32)
      pack_tile_of_rows(s.q + b * dp * 16 + c * 16, h.q + (q0 + b * 16) * h.q_stride + c, h.q_stride, end - q0 - b * 16,
                        h.d - c);
  }
  for (int64_t k0 = 0; k0 < h.keys; k0 += kK) {
    const int64_t keys = least(kK, h.keys - k0), padded = up(keys, 32);
    tile_product(unit, {.m = padded, .n = kQ, .k = dp,
                        .a = s.k + k0 * dp, .a_row = dp, .a_step = 32,
                        .b = s.q, .b_block = dp * 16, .b_step = kTileElements,
                        .c = s.st, .c_row = 16, .c_block = kK * 16, .accumulate = false});
    for (int64_t b = 0; b < kBlocks; ++b)
      softmax_block(s.st + b * kK * 16, keys, padded, h.scale * kLog2E, run[b], s.ot + b * dp * 16, dp, k0 == 0,
                    s.p + b * kTileElements, kBlocks * kTileElements);
    tile_product(unit, {.m = dp, .n = kQ, .k = padded,
                        .a = s.vt + k0 * dp, .a_row = 32, .a_step = dp * 32,
                        .b = s.p, .b_block = kTileElements, .b_step = kBlocks * kTileElements,
                        .c = s.ot, .c_row = 16, .c_block = dp * 16, .accumulate = k0 > 0});
  }
  for (int64_t b = 0; b < kBlocks && q0 + b * 16 < end; ++b) {
    const int64_t row = q0 + b * 16, rows = least(16, end - row);
    store_transposed(o.out + row * o.out_stride, o.out_stride, s.ot + b * dp * 16,
                     _mm512_div_ps(_mm512_set1_ps(1.0F), run[b].sum), rows, h.d);
    alignas(64) float top[16], sum[16];
    _mm512_store_ps(top, run[b].top);
    _mm512_store_ps(sum, run[b].sum);
    for (int64_t i = 0; i < rows; ++i) o.lse[(row + i) * o.lse_stride] = top[i] * kLn2 + __builtin_logf(sum[i]);
  }
}

struct BackwardScratch {
  BackwardScratch(Carve& c, const TileHead& h, int64_t begin, int64_t end)
      : dp(up(h.d, 32)), queries(up(h.queries, kBackQ)), keys(up(end - begin, 32)), k(c.take<uint16_t>(keys * dp)),
        v(c.take<uint16_t>(keys * dp)), kt(c.take<uint16_t>(keys * dp)), qt(c.take<uint16_t>(queries * dp)),
        dot(c.take<uint16_t>(queries * dp)), qv(c.take<uint16_t>(queries * dp)), dov(c.take<uint16_t>(queries * dp)),
        rows(c.take<uint16_t>(32 * dp)), p(c.take<uint16_t>(kBackK * kBackQ)), ds(c.take<uint16_t>(kBackK * kBackQ)),
        dsv(c.take<uint16_t>(kBackK * kBackQ)), dqt(c.take<float>(queries * dp)), l2(c.take<float>(queries)),
        delta(c.take<float>(queries)), st(c.take<float>(kBackK * kBackQ)), dp_t(c.take<float>(kBackK * kBackQ)),
        dk(c.take<float>(kBackK * dp)), dv(c.take<float>(kBackK * dp)) {}
  int64_t dp, queries, keys;
  uint16_t *k, *v, *kt;           // rows, rows, [keys/32][dp][32]
  uint16_t *qt, *dot, *qv, *dov;  // tiles of B: [queries/16][dp/32] twice, [queries/32][dp/16] twice
  uint16_t *rows;                 // 32 rows of dout
  uint16_t *p, *ds, *dsv;         // (kBackK, kBackQ) rows, rows, tiles of B
  float *dqt, *l2, *delta;        // [queries/16][dp][16]; lse/ln2, rowsum(dO ⊙ O)
  float *st, *dp_t;               // scores and dP, [kBackQ/16][kBackK][16]
  float *dk, *dv;                 // (kBackK, dp)
};

// All queries' operands, 32 at a time. Queries past the end have P = 0.
void pack_queries(const TileHead& h, const TileHeadGradient& g, const BackwardScratch& s) {
  const int64_t dp = s.dp;
  for (int64_t i = 0; i < s.queries; i += 32) {
    for (int64_t r = 0; r < 32; ++r) {
      __m512 sum = _mm512_setzero_ps();
      const bool there = i + r < h.queries;
      for (int64_t c = 0; c < dp; c += 16) {
        const __mmask16 m = there ? lanes(h.d - c) : 0;
        const int64_t at = (i + r) * h.q_stride + c;
        const __m256i x = narrow16(_mm512_maskz_loadu_ps(m, g.dout + at));
        _mm256_store_si256(reinterpret_cast<__m256i*>(s.rows + r * dp + c), x);
        sum = _mm512_fmadd_ps(widen16(x), _mm512_maskz_loadu_ps(m, g.out + at), sum);
      }
      s.delta[i + r] = _mm512_reduce_add_ps(sum);
      s.l2[i + r] = there ? g.lse[(i + r) * g.lse_stride] * kLog2E : -kMasked;
    }
    const uint16_t* q = h.q + i * h.q_stride;
    const int64_t left = h.queries - i;
    for (int64_t c = 0; c < dp; c += 32)
      for (int64_t b = 0; b < 32; b += 16) {
        const int64_t tile = (i + b) * dp + c * 16;
        pack_tile_of_rows(s.qt + tile, q + b * h.q_stride + c, h.q_stride, left - b, h.d - c);
        pack_tile_of_rows(s.dot + tile, s.rows + b * dp + c, dp, 16, 32);
      }
    for (int64_t c = 0; c < dp; c += 16) {
      const int64_t tile = i * dp + c * 32;
      pack_tile_of_columns(s.qv + tile, q + c, h.q_stride, left, h.d - c);
      pack_tile_of_columns(s.dov + tile, s.rows + c, dp, 32, 16);
    }
  }
}

// Scores x and dP y of 16 queries against `keys` keys, padded to `padded`, become P and scale·dS, as rows and as tiles
// of B; both are 0 for the padding.
__attribute__((noinline)) void softmax_gradient(float* x, const float* y, int64_t keys, int64_t padded, float scale,
                                                float ds_scale, const float* l2, const float* delta, uint16_t* p,
                                                uint16_t* ds, uint16_t* dsv) {
  for (int64_t j = keys; j < padded; ++j) _mm512_store_ps(x + j * 16, _mm512_set1_ps(kMasked));
  const __m512 c = _mm512_set1_ps(scale * kLog2E), by = _mm512_set1_ps(ds_scale);
  const __m512 l = _mm512_load_ps(l2), d = _mm512_load_ps(delta);
  for (int64_t j = 0; j < padded; j += 2) {
    const __m512 p0 = exp2_16(_mm512_fmsub_ps(c, _mm512_load_ps(x + j * 16), l));
    const __m512 p1 = exp2_16(_mm512_fmsub_ps(c, _mm512_load_ps(x + j * 16 + 16), l));
    const __m512 d0 = _mm512_mul_ps(_mm512_mul_ps(p0, by), _mm512_sub_ps(_mm512_load_ps(y + j * 16), d));
    const __m512 d1 = _mm512_mul_ps(_mm512_mul_ps(p1, by), _mm512_sub_ps(_mm512_load_ps(y + j * 16 + 16), d));
    const int64_t at = j * kBackQ;
    _mm256_store_si256(reinterpret_cast<__m256i*>(p + at), narrow16(p0));
    _mm256_store_si256(reinterpret_cast<__m256i*>(p + at + kBackQ), narrow16(p1));
    _mm256_store_si256(reinterpret_cast<__m256i*>(ds + at), narrow16(d0));
    _mm256_store_si256(reinterpret_cast<__m256i*>(ds + at + kBackQ), narrow16(d1));
    _mm512_store_si512(dsv + j / 32 * (kBackQ / 16) * kTileElements + j % 32 * 16, pack_pair(d0, d1));
  }
}

// One block of keys against one block of queries: five products.
void backward_block(TileUnit unit, const TileHead& h, const BackwardScratch& s, int64_t key, int64_t rows, int64_t query,
                    bool first) {
  const int64_t dp = s.dp, keys = up(rows, 32), queries = least(kBackQ, s.queries - query), blocks = queries / 16;
  TileProduct scores{.m = keys, .n = queries, .k = dp,
                     .a = s.k + key * dp, .a_row = dp, .a_step = 32,
                     .b = s.qt + query * dp, .b_block = dp * 16, .b_step = kTileElements,
                     .c = s.st, .c_row = 16, .c_block = kBackK * 16, .accumulate = false};
  tile_product(unit, scores);
  scores.a = s.v + key * dp, scores.b = s.dot + query * dp, scores.c = s.dp_t;
  tile_product(unit, scores);
  for (int64_t b = 0; b < blocks; ++b)
    softmax_gradient(s.st + b * kBackK * 16, s.dp_t + b * kBackK * 16, rows, keys, h.scale, h.keys == 1 ? 0 : h.scale,
                     s.l2 + query + b * 16, s.delta + query + b * 16, s.p + b * 16, s.ds + b * 16,
                     s.dsv + b * kTileElements);
  TileProduct of_keys{.m = keys, .n = dp, .k = queries,
                      .a = s.p, .a_row = kBackQ, .a_step = 32,
                      .b = s.dov + query * dp, .b_block = kTileElements, .b_step = dp * 32,
                      .c = s.dv, .c_row = dp, .c_block = 16, .accumulate = !first};
  tile_product(unit, of_keys);
  of_keys.a = s.ds, of_keys.b = s.qv + query * dp, of_keys.c = s.dk;
  tile_product(unit, of_keys);
  tile_product(unit, {.m = dp, .n = queries, .k = keys,
                      .a = s.kt + key * dp, .a_row = 32, .a_step = dp * 32,
                      .b = s.dsv, .b_block = kTileElements, .b_step = kBackQ / 16 * kTileElements,
                      .c = s.dqt + query * dp, .c_row = 16, .c_block = dp * 16, .accumulate = key > 0});
}

void store_rows(float* out, int64_t stride, const float* x, int64_t rows, int64_t d, int64_t dp) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < d; c += 16)
      _mm512_mask_storeu_ps(out + i * stride + c, lanes(d - c), _mm512_load_ps(x + i * dp + c));
}

}  // namespace

size_t tile_attention_forward_scratch(const TileHead& h) {
  Carve c(nullptr);
  ForwardScratch(c, h);
  return static_cast<size_t>(c.used());
}

void tile_attention_forward(TileUnit unit, const TileHead& h, int64_t begin, int64_t end, const TileHeadResult& o,
                            void* scratch) {
  const TileScope tiles(unit);
  Carve c(scratch);
  const ForwardScratch s(c, h);
  copy_rows(s.k, h.k, h.k_stride, 0, h.keys, s.keys, h.d, s.dp);
  copy_transposed(s.vt, h.v, h.k_stride, 0, h.keys, s.keys, h.d, s.dp);
  for (int64_t q = begin; q < end; q += kQ) forward_queries(unit, h, q, end, o, s);
}

size_t tile_attention_backward_scratch(const TileHead& h, int64_t begin, int64_t end) {
  Carve c(nullptr);
  BackwardScratch(c, h, begin, end);
  return static_cast<size_t>(c.used());
}

void tile_attention_backward(TileUnit unit, const TileHead& h, int64_t begin, int64_t end, const TileHeadGradient& g,
                             void* scratch) {
  const TileScope tiles(unit);
  Carve c(scratch);
  const BackwardScratch s(c, h, begin, end);
  copy_rows(s.k, h.k, h.k_stride, begin, end, s.keys, h.d, s.dp);
  copy_rows(s.v, h.v, h.k_stride, begin, end, s.keys, h.d, s.dp);
  copy_transposed(s.kt, h.k, h.k_stride, begin, end, s.keys, h.d, s.dp);
  pack_queries(h, g, s);
  for (int64_t key = 0; key < end - begin; key += kBackK) {
    const int64_t rows = least(kBackK, end - begin - key), at = (begin + key) * h.k_stride;
    for (int64_t query = 0; query < h.queries; query += kBackQ)
      backward_block(unit, h, s, key, rows, query, query == 0);
    store_rows(g.dk + at, h.k_stride, s.dk, rows, h.d, s.dp);
    store_rows(g.dv + at, h.k_stride, s.dv, rows, h.d, s.dp);
  }
  for (int64_t q = 0; q < h.queries; q += 16)
    store_transposed(g.dq + q * g.dq_stride, g.dq_stride, s.dqt + q * s.dp, _mm512_set1_ps(1.0F),
                     least(16, h.queries - q), h.d);
}

}  // namespace megaslide

#else
#include "base/error.h"

// No tile unit in this build: tile_unit() is kNone and nothing calls these.
namespace megaslide {
size_t tile_attention_forward_scratch(const TileHead&) { MS_CHECK(false, "no tile unit in this build"); }
void tile_attention_forward(TileUnit, const TileHead&, int64_t, int64_t, const TileHeadResult&, void*) { MS_CHECK(false, "no tile unit in this build"); }
size_t tile_attention_backward_scratch(const TileHead&, int64_t, int64_t) { MS_CHECK(false, "no tile unit in this build"); }
void tile_attention_backward(TileUnit, const TileHead&, int64_t, int64_t, const TileHeadGradient&, void*) {
  MS_CHECK(false, "no tile unit in this build");
}
}  // namespace megaslide
#endif
