// Kernel A of spec dsa.md §3, backward, without atomics. For a band of query frames at a time:
//   queries  a warp a query and group: lanes are samples. dq, the offset gradients, and P and dS of every sample.
//   keys     a warp a key and group: walks the samples of the band within reach in a fixed order; dk and dv.
// Or both by tiles on tensor cores (kernel B, dsa_tile_backward.cu and dsa_tile_keys.cu).
#include "kernels/dsa/dsa_cuda.h"

#include <algorithm>
#include <cmath>

#include "kernels/dsa/dsa_place.cuh"
#include "kernels/dsa/dsa_tile_cuda.h"
#include "kernels/elements.cuh"

namespace megaslide {
namespace {

struct BackwardArgs {
  float *dq, *dk, *dv, *doffsets;
  const void *q, *k, *v;
  const float *offsets, *out, *lse, *dout;
  DsaPairs pairs;
  DsaGrid grid;
  int batch;
  int frame0, frame1;  // query frames of the band
  int band0, band_tokens;
};

struct QueryShared {
  float weight[8][32];
  int token[8][32];
  float ds[32];
  float dx[3][32];
};

// Dot products of the query with the keys, and of dO with the values, at the corners that weigh or steer.
template <class T, int V>
struct CornerDots {
  float a[8] = {}, b[8] = {}, d = 0;
  __device__ CornerDots(const BackwardArgs& x, const QueryShared& s, int lane, unsigned needed, int64_t row, int64_t base) {
    const T *q = static_cast<const T*>(x.q) + row, *k = static_cast<const T*>(x.k) + base,
            *v = static_cast<const T*>(x.v) + base;
    MS_NO_UNROLL
    for (int c = 0; c < x.grid.head_dim; c += V) {
      float query[V], dout[V], out[V];
      load_floats(query, q + c);
      load_floats(dout, x.dout + row + c);
      load_floats(out, x.out + row + c);
      for (int i = 0; i < V; ++i) d = fmaf(dout[i], out[i], d);
      for (int corner = 0; corner < 8; ++corner) {
        if ((needed >> corner & 1) == 0) continue;
        float key[V], value[V];
        const int64_t at = s.token[corner][lane] * x.grid.row + c;
        load_floats(key, k + at);
        load_floats(value, v + at);
        for (int i = 0; i < V; ++i) {
          a[corner] = fmaf(query[i], key[i], a[corner]);
          b[corner] = fmaf(dout[i], value[i], b[corner]);
        }
      }
    }
  }
};

// Product of a corner's weights along the two other axes: the derivative along `axis`, up to its sign.
__device__ float slope_weight(const DsaSample& s, int corner, int axis) {
  const int a = axis == 0 ? 1 : 0, b = axis == 2 ? 1 : 2;
  return s.weight_along(corner, a) * s.weight_along(corner, b);
}

// A corner that weighs nothing is read only where the gradient of an offset needs it.
__device__ unsigned needed_corners(const DsaSample& s) {
  unsigned needed = 0;
  for (int corner = 0; corner < 8; ++corner) {
    bool reads = s.corner_weight(corner) != 0;
    for (int a = 0; a < 3; ++a) reads = reads || (s.axis[a].inside && slope_weight(s, corner, a) != 0);
    needed |= reads ? 1u << corner : 0u;
  }
  return needed;
}

// One sample of one head: P, dS (with the scale) and what it adds to the gradient at its point.
template <class T, int V>
__device__ float2 sample_gradient(const BackwardArgs& x, const DsaSample& s, const QueryShared& shared, int lane,
                                  unsigned needed, bool alone, int64_t row, int64_t base, float lse, float (&dx)[3]) {
  const CornerDots<T, V> dots(x, shared, lane, needed, row, base);
  float score = 0, dp = 0;
  for (int corner = 0; corner < 8; ++corner) {
    const float weight = shared.weight[corner][lane];
    if (weight == 0) continue;
    score = fmaf(weight, dots.a[corner], score);
    dp = fmaf(weight, dots.b[corner], dp);
  }
  const float p = expf(score * x.grid.scale - lse);
  const float ds = alone ? 0.0f : p * (dp - dots.d) * x.grid.scale;  // P = 1, exactly
  for (int corner = 0; corner < 8; ++corner) {
    const float u = ds * dots.a[corner] + p * dots.b[corner];
    for (int a = 0; a < 3; ++a) {
      const float slope = slope_weight(s, corner, a);
      if (s.axis[a].inside && slope != 0) dx[a] = fmaf((corner >> (2 - a)) & 1 ? u : -u, slope, dx[a]);
    }
  }
  return {p, ds};
}

// dq of one head from 32 samples: the first 32 of a query overwrite it, later ones add.
template <class T>
__device__ void add_query_gradient(const BackwardArgs& x, const QueryShared& s, int count, bool first, int64_t row,
                                   int64_t base, int lane) {
  const T* k = static_cast<const T*>(x.k) + base;
  for (int c = lane; c < x.grid.head_dim; c += 32) {
    float sum = first ? 0.0f : x.dq[row + c];
    for (int j = 0; j < count; ++j) {
      float key = 0;
      for (int corner = 0; corner < 8; ++corner)
        if (s.weight[corner][j] != 0) key = fmaf(s.weight[corner][j], prim::widen(k[s.token[corner][j] * x.grid.row + c]), key);
      sum = fmaf(s.ds[j], key, sum);
    }
    x.dq[row + c] = sum;
  }
}

// Offset gradients from those at the sample points: each sample has its own (full), or 32 samples are added to those
// of their frame (slice) or window (rigid), in order.
__device__ void add_offset_gradient(const BackwardArgs& x, QueryShared& s, const DsaWindow& w, int group, int first,
                                    int count, int64_t query, int lane) {
  const DsaGrid& g = x.grid;
  float* doffsets = x.doffsets + query * g.row_offsets;
  if (g.mode == DsaOffsetMode::kFull) {
    if (lane >= count) return;
    const int ordinal = first + lane;
    const int slot = (ordinal / (w.k_eff[1] * w.k_eff[2]) * g.kernel[1] + ordinal / w.k_eff[2] % w.k_eff[1]) * g.kernel[2] +
                     ordinal % w.k_eff[2];
    for (int a = 0; a < 3; ++a) doffsets[g.offset_index(group, 0, slot, a)] = s.dx[a][lane];
    return;
  }
  if (lane >= 3) return;
  for (int j = 0; j < count; ++j) {
    const int index = g.offset_index(group, (first + j) / (w.k_eff[1] * w.k_eff[2]), 0, lane);
    if (index >= 0) doffsets[index] += s.dx[lane][j];
  }
}

template <class T, int V>
__global__ void __launch_bounds__(32 * kWarpsPerBlock, 3) dsa_backward_query_kernel(BackwardArgs x) {
  const DsaGrid& g = x.grid;
  const int lane = static_cast<int>(threadIdx.x % 32);
  QueryShared& s = prim::dynamic_shared<QueryShared>()[threadIdx.x / 32];
  const int unit = static_cast<int>(warp_unit());
  if (unit >= x.batch * x.band_tokens * g.groups) return;
  const int group = unit % g.groups, b = unit / g.groups / x.band_tokens, token = x.band0 + unit / g.groups % x.band_tokens;
  const int64_t batch0 = int64_t{b} * g.tokens, query = batch0 + token;
  const DsaWindow window(g, token);
  const int samples = window.samples();
  for (int first = 0; first < samples; first += 32) {
    const bool mine = first + lane < samples;
    const int count = DsaGrid::min_of(32, samples - first);
    const DsaSample sample(g, window, x.offsets + query * g.row_offsets, group, mine ? first + lane : first);
    for (int corner = 0; corner < 8; ++corner) {
      s.weight[corner][lane] = sample.corner_weight(corner);
      s.token[corner][lane] = sample.corner_token(g, corner);
    }
    float dx[3] = {};
    const unsigned needed = needed_corners(sample);
    MS_NO_UNROLL
    for (int head = g.first_head(group); head < g.first_head(group + 1); ++head) {
      const int64_t row = query * g.row + int64_t{head} * g.head_dim, base = batch0 * g.row + int64_t{head} * g.head_dim;
      if (mine) {
        const float2 pair = sample_gradient<T, V>(x, sample, s, lane, needed, samples == 1, row, base,
                                                 x.lse[query * g.lse_row + head], dx);
        x.pairs.of(b, head, token)[sample.slot] = pair;
        s.ds[lane] = pair.y;
      }
      __syncwarp();
      add_query_gradient<T>(x, s, count, first == 0, row, base, lane);
      __syncwarp();
    }
    for (int a = 0; a < 3; ++a) s.dx[a][lane] = sample.axis[a].inside ? dx[a] * sample.axis[a].slope : 0.0f;
    __syncwarp();
    add_offset_gradient(x, s, window, group, first, count, query, lane);
  }
}

// A query coordinate and a slot whose base point lies within reach of the key, along one axis.
struct Candidate {
  int p, j, b;
};

// What a key's warp keeps in shared memory, besides three lists of candidates.
struct Hits {
  float weight[32];
  int token[32], slot[32];
  int count[3];
};

struct CandidateLimits {
  int x, y, z;  // entries of the lists along t, h and w
  __host__ __device__ int sum() const { return x + y + z; }
};

// Candidates of one axis at most: the window holds its query, so |p − key| < k + R.
int candidate_limit(const DsaGrid& g, int axis) {
  const int reach = static_cast<int>(std::ceil(g.reach[axis]));
  return std::min(2 * (g.kernel[axis] + reach) + 1, g.length[axis]) * std::min(g.kernel[axis], 2 * reach + 1);
}

template <int axis>
__device__ int list_candidates(Candidate* list, const BackwardArgs& x, int key) {
  const DsaGrid& g = x.grid;
  const float reach = g.reach[axis];
  const int far = g.kernel[axis] + static_cast<int>(ceilf(reach));
  const int last = DsaGrid::min_of(key + far, axis == 0 ? x.frame1 - 1 : g.length[axis] - 1);
  int count = 0;
  for (int p = DsaGrid::max_of(key - far, axis == 0 ? x.frame0 : 0); p <= last; ++p) {
    int lo, hi, k_eff;
    g.bounds(axis, p, lo, hi, k_eff);  // along h and w no frame matters
    const int start = DsaGrid::window_start(p, k_eff, lo, hi);
    for (int j = 0; j < k_eff; ++j)
      if (fabsf(static_cast<float>(start + j - key)) < reach + 1) list[count++] = {p, j, start + j};
  }
  return count;
}

// The weight of the key in candidate `index` of the product of the three lists; 0 past the end.
__device__ float candidate_weight(const BackwardArgs& x, Candidate* const (&lists)[3], const Hits& s, int index,
                                  int total, const int (&key)[3], int group, int64_t batch0, int& token, int& slot) {
  if (index >= total) return 0;
  const DsaGrid& g = x.grid;
  const Candidate c[3] = {lists[0][index / (s.count[1] * s.count[2])], lists[1][index / s.count[2] % s.count[1]],
                          lists[2][index % s.count[2]]};
  token = g.token(c[0].p, c[1].p, c[2].p);
  slot = (c[0].j * g.kernel[1] + c[1].j) * g.kernel[2] + c[2].j;
  const float* raw = x.offsets + (batch0 + token) * g.row_offsets;
  float weight = 1;
  for (int a = 0; a < 3; ++a) {
    int lo, hi, k_eff;
    g.bounds(a, c[0].p, lo, hi, k_eff);
    const DsaAxisCell cell = dsa_place_axis(g, raw, group, a, c[0].j, slot, c[a].b, lo, hi);
    weight *= (key[a] == cell.i0 ? 1 - cell.f : 0.0f) + (key[a] == cell.i1 && cell.i1 != cell.i0 ? cell.f : 0.0f);
  }
  return weight;
}

template <class T, int NC>  // NC: channels of the group that a lane has; blockIdx.y: which 32·NC of them
__global__ void __launch_bounds__(32 * kWarpsPerBlock, NC <= 4 ? 6 : 4)
    dsa_backward_key_kernel(BackwardArgs x, CandidateLimits limits, int key0, int keys) {
  const DsaGrid& g = x.grid;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  Hits& s = prim::dynamic_shared<Hits>()[warp];
  Candidate* memory = reinterpret_cast<Candidate*>(prim::dynamic_shared<Hits>() + kWarpsPerBlock) + warp * limits.sum();
  Candidate* const lists[3] = {memory, memory + limits.x, memory + limits.x + limits.y};
  const int unit = static_cast<int>(warp_unit());
  if (unit >= x.batch * keys * g.groups) return;
  const int group = unit % g.groups, b = unit / g.groups / keys, token = key0 + unit / g.groups % keys;
  const int64_t batch0 = int64_t{b} * g.tokens;
  const DsaWindow at(g, token);
  if (lane == 0) s.count[0] = list_candidates<0>(lists[0], x, at.p[0]);
  if (lane == 1) s.count[1] = list_candidates<1>(lists[1], x, at.p[1]);
  if (lane == 2) s.count[2] = list_candidates<2>(lists[2], x, at.p[2]);
  __syncwarp();
  const int total = s.count[0] * s.count[1] * s.count[2];
  const int first = g.first_head(group), channels = (g.first_head(group + 1) - first) * g.head_dim;
  const int channel0 = static_cast<int>(blockIdx.y) * 32 * NC + lane;
  const int64_t key_row = (batch0 + token) * g.row + int64_t{first} * g.head_dim;
  float dk[NC] = {}, dv[NC] = {};  // go on where earlier bands ended: bands do not change the bits
  MS_UNROLL
  for (int i = 0; i < NC; ++i) {
    if (channel0 + 32 * i >= channels) continue;
    dk[i] = x.dk[key_row + channel0 + 32 * i];
    dv[i] = x.dv[key_row + channel0 + 32 * i];
  }
  for (int index = 0; index < total; index += 32) {
    int query = 0, slot = 0;
    const float weight = candidate_weight(x, lists, s, index + lane, total, at.p, group, batch0, query, slot);
    s.weight[lane] = weight, s.token[lane] = query, s.slot[lane] = slot;
    __syncwarp();
    unsigned hits = __ballot_sync(prim::kFullMask, weight != 0);
    for (; hits != 0; hits &= hits - 1) {
      const int j = __ffs(hits) - 1;
      const int64_t row = (batch0 + s.token[j]) * g.row + int64_t{first} * g.head_dim;
      MS_UNROLL
      for (int i = 0; i < NC; ++i) {
        const int c = channel0 + 32 * i;
        if (c >= channels) continue;
        const float2 pair = x.pairs.of(b, first + c / g.head_dim, s.token[j])[s.slot[j]];
        dk[i] = fmaf(s.weight[j] * pair.y, prim::widen(static_cast<const T*>(x.q)[row + c]), dk[i]);
        dv[i] = fmaf(s.weight[j] * pair.x, x.dout[row + c], dv[i]);
      }
    }
    __syncwarp();
  }
  MS_UNROLL
  for (int i = 0; i < NC; ++i) {
    if (channel0 + 32 * i >= channels) continue;
    x.dk[key_row + channel0 + 32 * i] = dk[i];
    x.dv[key_row + channel0 + 32 * i] = dv[i];
  }
}

// The first `width` elements of rows that lie `row` apart.
__global__ void fill_zero_kernel(float* p, int64_t rows, int64_t width, int64_t row) {
  const int64_t n = rows * width, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) p[i / width * row + i % width] = 0;
}
void fill_zero(Stream& stream, float* p, int64_t rows, int64_t width, int64_t row) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((rows * width + 1023) / 1024, 4096));
  if (blocks > 0) prim::launch(fill_zero_kernel, dim3(blocks), dim3(256), 0, stream, p, rows, width, row);
}

template <class T>
void launch_queries(Stream& stream, const BackwardArgs& x) {
  const int64_t units = int64_t{x.batch} * x.band_tokens * x.grid.groups;
  const size_t bytes = kWarpsPerBlock * sizeof(QueryShared);
  const bool aligned = aligned_rows(x.grid.head_dim, kVectorElements<T>, x.q, x.k, x.v) &&
                       aligned_rows(x.grid.head_dim, kVectorElements<T>, x.out, x.dout);
  const auto kernel = aligned ? dsa_backward_query_kernel<T, kVectorElements<T>> : dsa_backward_query_kernel<T, 1>;
  prim::launch(kernel, warp_grid(units), warp_block(), bytes, stream, x);
}

template <class T>
void launch_keys(Stream& stream, const BackwardArgs& x) {
  const DsaGrid& g = x.grid;
  const CandidateLimits limits{candidate_limit(g, 0), candidate_limit(g, 1), candidate_limit(g, 2)};
  const size_t bytes = kWarpsPerBlock * (sizeof(Hits) + sizeof(Candidate) * static_cast<size_t>(limits.sum()));
  const int far = g.kernel[0] + static_cast<int>(std::ceil(g.reach[0]));
  const int plane = g.length[1] * g.length[2];
  const int key0 = std::max(0, x.frame0 - far) * plane, key1 = std::min(g.length[0], x.frame1 + far) * plane;
  const int64_t units = int64_t{x.batch} * (key1 - key0) * g.groups;
  const int channels = (g.heads + g.groups - 1) / g.groups * g.head_dim;
  const int nc = channels <= 128 ? 4 : 12;
  dim3 grid = warp_grid(units);
  grid.y = static_cast<unsigned>((channels + 32 * nc - 1) / (32 * nc));
  prim::launch(nc == 4 ? dsa_backward_key_kernel<T, 4> : dsa_backward_key_kernel<T, 12>, grid, warp_block(), bytes, stream,
               x, limits, key0, key1 - key0);
}

}  // namespace

namespace cuda {

void dsa_backward(Stream& stream, float* dq, float* dk, float* dv, float* doffsets, const void* q, const void* k,
                  const void* v, const float* offsets, const float* out, const float* lse, const float* dout,
                  void* workspace, DsaShape s, DType dtype) {
  const int64_t rows = s.batch * s.tokens();
  if (rows == 0) return;
  check_head_dim(s.head_dim);
  count32(rows * s.heads, "queries times heads");
  const int64_t width = s.heads * s.head_dim, offsets_a_row = dsa_offset_count(s);
  for (float* p : {dk, dv}) fill_zero(stream, p, rows, width, s.row());
  fill_zero(stream, doffsets, rows, offsets_a_row, dsa_offset_row(s));
  BackwardArgs x{dq, dk, dv, doffsets, q, k, v, offsets, out, lse, dout, DsaPairs(static_cast<float2*>(workspace), s, 0, 0), DsaGrid(s),
                 static_cast<int>(s.batch), 0, 0, 0, 0};
  const bool tiles = dsa_tiles_allowed() && dsa_tile_backward_fits(s, dtype);
  for (int64_t frame = s.query_begin; frame < s.query_end(); frame += dsa_band_frames(s)) {
    x.frame0 = static_cast<int>(frame);
    x.frame1 = static_cast<int>(std::min(frame + dsa_band_frames(s), s.query_end()));
    x.band0 = x.frame0 * x.grid.length[1] * x.grid.length[2];
    x.band_tokens = (x.frame1 - x.frame0) * x.grid.length[1] * x.grid.length[2];
    x.pairs = DsaPairs(x.pairs.pairs, s, x.frame0, x.frame1);
    if (tiles) {
      dsa_tile_backward_queries(stream, {dq, doffsets, q, k, v, offsets, out, lse, dout, x.pairs.pairs, x.frame0, x.frame1}, s);
      dsa_tile_backward_keys(stream, {dk, dv, q, offsets, dout, x.pairs.pairs, x.frame0, x.frame1}, s);
    } else if (dtype == DType::kBF16) {
      launch_queries<bf16>(stream, x);
      launch_keys<bf16>(stream, x);
    } else {
      launch_queries<float>(stream, x);
      launch_keys<float>(stream, x);
    }
  }
}

}  // namespace cuda
}  // namespace megaslide
