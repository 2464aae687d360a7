// Kernel A of spec dsa.md §3, forward: a warp a query and head. Scores lane by lane, 32 samples at a time with a
// running softmax; then the lanes turn to channels and add up the values.
#include "kernels/dsa/dsa_cuda.h"

#include "kernels/dsa/dsa_place.cuh"
#include "kernels/dsa/dsa_tile_cuda.h"
#include "kernels/elements.cuh"

namespace megaslide {
namespace {

struct ForwardArgs {
  float *out, *lse;
  const void *q, *k, *v;
  const float* offsets;
  DsaGrid grid;
  unsigned units;   // queries · heads
  int first_query;  // among batch · tokens
};

// 32 samples, as the lanes placed and weighed them.
struct WarpSamples {
  float weight[8][32];
  int token[8][32];  // of the corner
  float p[32];       // exp(score − running maximum)
};

// Operation by operation what the backward does: P = exp(score − lse) is then as exact as the lse.
template <class T, int V>
__device__ float score(const ForwardArgs& x, const WarpSamples& s, const T* q, const T* keys, int lane) {
  float dot[8] = {};
  MS_NO_UNROLL
  for (int c = 0; c < x.grid.head_dim; c += V) {
    float query[V];
    load_floats(query, q + c);
    for (int corner = 0; corner < 8; ++corner) {
      if (s.weight[corner][lane] == 0) continue;
      float key[V];
      load_floats(key, keys + s.token[corner][lane] * x.grid.row + c);
      for (int i = 0; i < V; ++i) dot[corner] = fmaf(query[i], key[i], dot[corner]);
    }
  }
  float sum = 0;
  for (int corner = 0; corner < 8; ++corner)
    if (s.weight[corner][lane] != 0) sum = fmaf(s.weight[corner][lane], dot[corner], sum);
  return sum * x.grid.scale;
}

template <class T, int NC>  // NC: channels a lane has
__device__ void add_values(float (&sum)[NC], const WarpSamples& s, int count, const T* values, const DsaGrid& g, int lane) {
  for (int j = 0; j < count; ++j) {
    float value[NC] = {};
    for (int corner = 0; corner < 8; ++corner) {
      const float weight = s.weight[corner][j];
      if (weight == 0) continue;
      const T* row = values + s.token[corner][j] * g.row;
      for (int i = 0; i < NC; ++i)
        if (lane + 32 * i < g.head_dim) value[i] = fmaf(weight, prim::widen(row[lane + 32 * i]), value[i]);
    }
    for (int i = 0; i < NC; ++i) sum[i] = fmaf(s.p[j], value[i], sum[i]);
  }
}

template <class T, int V, int NC>
__global__ void __launch_bounds__(32 * kWarpsPerBlock) dsa_forward_kernel(ForwardArgs x) {
  const DsaGrid& g = x.grid;
  const int lane = static_cast<int>(threadIdx.x % 32);
  WarpSamples& s = prim::dynamic_shared<WarpSamples>()[threadIdx.x / 32];
  const unsigned unit = warp_unit();
  if (unit >= x.units) return;
  const int head = static_cast<int>(unit) % g.heads;
  const int query_row = x.first_query + static_cast<int>(unit) / g.heads;  // among batch · tokens
  const int64_t query = query_row;
  const int64_t base = int64_t{query_row / g.tokens} * g.tokens * g.row + int64_t{head} * g.head_dim;
  const DsaWindow window(g, query_row % g.tokens);
  const float* raw = x.offsets + query * g.row_offsets;
  const T* q = static_cast<const T*>(x.q) + query * g.row + int64_t{head} * g.head_dim;
  const int samples = window.samples();
  float top = -INFINITY, total = 0, sum[NC] = {};
  for (int first = 0; first < samples; first += 32) {
    const bool mine = first + lane < samples;
    float own = -INFINITY;
    if (mine) {
      const DsaSample sample(g, window, raw, g.group_of(head), first + lane);
      for (int corner = 0; corner < 8; ++corner) {
        s.weight[corner][lane] = sample.corner_weight(corner);
        s.token[corner][lane] = sample.corner_token(g, corner);
      }
      own = score<T, V>(x, s, q, static_cast<const T*>(x.k) + base, lane);
    }
    const float higher = fmaxf(top, prim::warp_max(own));
    const float p = mine ? expf(own - higher) : 0.0f, rescale = first == 0 ? 0.0f : expf(top - higher);
    s.p[lane] = p;
    __syncwarp();
    total = total * rescale + prim::warp_sum(p);
    for (int i = 0; i < NC; ++i) sum[i] *= rescale;
    top = higher;
    add_values(sum, s, DsaGrid::min_of(32, samples - first), static_cast<const T*>(x.v) + base, g, lane);
    __syncwarp();
  }
  float* out = x.out + query * g.row + int64_t{head} * g.head_dim;
  for (int i = 0; i < NC; ++i)
    if (lane + 32 * i < g.head_dim) out[lane + 32 * i] = sum[i] / total;
  if (lane == 0) x.lse[query * g.lse_row + head] = top + logf(total);
}

template <class T>
void launch_forward(Stream& stream, const ForwardArgs& x) {
  const bool usual = x.grid.head_dim <= 128 && aligned_rows(x.grid.head_dim, kVectorElements<T>, x.q, x.k);
  const auto kernel = usual ? dsa_forward_kernel<T, kVectorElements<T>, 4> : dsa_forward_kernel<T, 1, kMaxHeadDim / 32>;
  prim::launch(kernel, warp_grid(x.units), warp_block(), kWarpsPerBlock * sizeof(WarpSamples), stream, x);
}

bool tiles_allowed = true;

}  // namespace

bool dsa_tiles_allowed() { return tiles_allowed; }

namespace cuda {

void allow_dsa_tiles(bool allowed) { tiles_allowed = allowed; }

void dsa_forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v,
                 const float* offsets, void*, DsaShape s, DType dtype) {
  check_head_dim(s.head_dim);
  const ForwardArgs x{out, lse, q, k, v, offsets, DsaGrid(s),
                      count32(s.batch * (s.query_end() - s.query_begin) * s.height * s.width * s.heads, "queries times heads"),
                      static_cast<int>(s.query_begin * s.height * s.width)};
  if (x.units == 0) return;
  if (tiles_allowed && dsa_tile_forward_fits(s, dtype)) return dsa_tile_forward(stream, out, lse, q, k, v, offsets, s);
  dtype == DType::kBF16 ? launch_forward<bf16>(stream, x) : launch_forward<float>(stream, x);
}

}  // namespace cuda
}  // namespace megaslide
