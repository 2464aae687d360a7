// Correlations at flow positions, and the upsampling of a flow by its network's own weights.
//
// A block has a tile of 4×4 cells and a level. A warp keeps the features of a row of the tile in registers. The cells of the level that
// windows of the tile reach come by, by segments of a row, through shared memory: the next segment is on its way while the warps multiply
// one. Where flows part, segments between the windows are left out; memory stays that of the frames.
#include <cmath>

#include "kernels/elements.cuh"
#include "kernels/flow/flow.h"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

constexpr int kTile = 4, kQueries = kTile * kTile, kLookupThreads = 32 * kTile;
constexpr int kSegment = 16, kGroup = 8, kChunk = 256;  // cells, cells at a time, channels at a time
constexpr int kMaxRadius = 6, kMaxWindow = 2 * kMaxRadius + 2;
constexpr int kNowhere = 1 << 29;

struct Lookup {
  float* out;
  FrameLayout out_layout;
  CorrelationLookup c;
  int across;  // tiles
  __device__ int window() const { return 2 * static_cast<int>(c.radius) + 2; }  // cells of a side
  __device__ int level() const { return static_cast<int>(blockIdx.y); }
  __device__ int query_y(int q) const { return static_cast<int>(blockIdx.x) / across * kTile + q / kTile; }
  __device__ int query_x(int q) const { return static_cast<int>(blockIdx.x) % across * kTile + q % kTile; }
  __device__ bool exists(int q) const { return query_y(q) < out_layout.height && query_x(q) < out_layout.width; }
};

// The first cell of a query's window, and how far its positions are beyond their cells.
struct Window {
  int y = kNowhere, x = kNowhere;
  float fy = 0, fx = 0;
  __device__ bool reaches(int row, int first, int cells, int side) const {
    return row >= y && row < y + side && first < x + side && first + cells > x;
  }
};

struct LookupShared {
  float cells[2][kSegment][kChunk];
  float dots[kQueries][kMaxWindow * kMaxWindow];  // x slowest
  Window windows[kQueries];
};

__device__ Window place_window(const Lookup& a, int q) {
  Window w;
  if (!a.exists(q)) return w;
  const int y = a.query_y(q), x = a.query_x(q);
  const float* flow = a.c.flow + (y * a.out_layout.width + x) * a.c.flow_pitch + a.c.flow_first;
  const float shrink = 1.0f / static_cast<float>(1 << a.level());
  const float cx = (static_cast<float>(x) + a.c.flow_scale * flow[0]) * shrink, cy = (static_cast<float>(y) + a.c.flow_scale * flow[1]) * shrink;
  const FrameLayout& l = a.c.level_layouts[a.level()];
  // A window that misses the level by far; the comparison also keeps conversions in range. NaN answers NaN.
  const float far = static_cast<float>((l.height > l.width ? l.height : l.width) + kMaxWindow);
  if (!(fabsf(cy) < far && fabsf(cx) < far)) {
    if (cy != cy || cx != cx) w.fx = cy + cx;
    return w;
  }
  const float floor_y = floorf(cy), floor_x = floorf(cx);
  w.y = static_cast<int>(floor_y) - static_cast<int>(a.c.radius), w.x = static_cast<int>(floor_x) - static_cast<int>(a.c.radius);
  w.fy = cy - floor_y, w.fx = cx - floor_x;
  return w;
}

__device__ __forceinline__ int warp_min(int v) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const int other = __shfl_xor_sync(prim::kFullMask, v, offset);
    v = v < other ? v : other;
  }
  return v;
}

// The segments of the level's rows that windows reach into, in order, the same in all warps. `mine`: the lane's window.
struct Segments {
  Window mine;
  int side, x_begin, x_end, y_end;
  int y, x;
  unsigned reached;  // by windows, a bit each

  __device__ Segments(const LookupShared& s, const Lookup& a) : mine(s.windows[threadIdx.x % kQueries]), side(a.window()) {
    const FrameLayout& l = a.c.level_layouts[a.level()];
    const bool somewhere = mine.y != kNowhere;
    const int low_y = warp_min(mine.y), low_x = warp_min(mine.x), high_y = -warp_min(somewhere ? -mine.y : 0), high_x = -warp_min(somewhere ? -mine.x : 0);
    y = low_y > 0 ? low_y : 0, x_begin = low_x > 0 ? low_x : 0;
    y_end = high_y + side < l.height ? high_y + side : static_cast<int>(l.height);
    x_end = high_x + side < l.width ? high_x + side : static_cast<int>(l.width);
    if (x_begin >= x_end) y_end = 0;
    x = x_begin - kSegment;
    next();
  }
  __device__ bool left() const { return y < y_end; }
  __device__ unsigned reaching(int first, int cells) const { return __ballot_sync(prim::kFullMask, mine.reaches(y, first, cells, side)); }
  __device__ void next() {
    do {
      x += kSegment;
      if (x >= x_end) x = x_begin, ++y;
      reached = left() ? reaching(x, kSegment) : 1;
    } while (reached == 0);
  }
};

__device__ __forceinline__ void fetch(float (&cells)[kSegment][kChunk], const Lookup& a, const Segments& at, int first, int channels) {
  const FrameLayout& l = a.c.level_layouts[a.level()];
  const float* from = a.c.levels[a.level()] + l.cell(at.y, at.x) + first;
  const int stored = static_cast<int>(l.stored());
  for (int i = static_cast<int>(threadIdx.x); i < kSegment * kChunk / 4; i += kLookupThreads) {
    const int cell = i / (kChunk / 4), c = i % (kChunk / 4) * 4;
    if (c < channels && at.x + cell < at.x_end) prim::cp_async_16(&cells[cell][c], from + cell * stored + c);
  }
  prim::cp_async_commit();
}

// Sums of 32 values over the lanes: lane i's result is that of value i. Lanes halve the values that they hold with each exchange.
template <int kHalf = 16>
__device__ __forceinline__ float sums_by_lane(float (&v)[32]) {
  const bool upper = (threadIdx.x & kHalf) != 0;
  MS_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    const float mine = upper ? v[i + kHalf] : v[i], other = upper ? v[i] : v[i + kHalf];
    v[i] = mine + __shfl_xor_sync(prim::kFullMask, other, kHalf);
  }
  if constexpr (kHalf > 1)
    return sums_by_lane<kHalf / 2>(v);
  else
    return v[0];
}

using Features = Quad[kTile][kChunk / 128];  // a lane's channels of a warp's queries: quads 128 channels apart

// Eight cells from `g` of the segment on, by the warp's four queries.
__device__ __forceinline__ void multiply_group(LookupShared& s, const float (&cells)[kSegment][kChunk], const Features& f, const Segments& at, int g, int channels) {
  const int lane = static_cast<int>(threadIdx.x % 32), first_query = static_cast<int>(threadIdx.x) / 32 * kTile;
  float dots[kTile * kGroup] = {};
  MS_UNROLL
  for (int j = 0; j < kChunk / 128; ++j) {
    const int channel = 128 * j + 4 * lane;
    if (channel < channels) {
      MS_UNROLL
      for (int c = 0; c < kGroup; ++c) {
        const Quad t = load_aligned_quad(&cells[g + c][channel]);
        MS_UNROLL
        for (int q = 0; q < kTile; ++q)
          MS_UNROLL
          for (int e = 0; e < 4; ++e) dots[q * kGroup + c] = fmaf(f[q][j].v[e], t.v[e], dots[q * kGroup + c]);
      }
    }
  }
  const float dot = sums_by_lane(dots);
  const int q = first_query + lane / kGroup, x = at.x + g + lane % kGroup;
  const int dx = x - s.windows[q].x, dy = at.y - s.windows[q].y;
  // What lies behind the segment's end was never fetched.
  if (x < at.x_end && dx >= 0 && dx < at.side && dy >= 0 && dy < at.side) s.dots[q][dx * at.side + dy] += dot;
}

// Adds the products of channels [first, first + channels).
__device__ __forceinline__ void add_channels(LookupShared& s, const Lookup& a, int first, int channels) {
  const int lane = static_cast<int>(threadIdx.x % 32), first_query = static_cast<int>(threadIdx.x) / 32 * kTile;
  Features f;
  MS_UNROLL
  for (int q = 0; q < kTile; ++q)
    MS_UNROLL
    for (int j = 0; j < kChunk / 128; ++j) {
      const int c = 128 * j + 4 * lane;
      if (c < channels && a.exists(first_query + q))
        f[q][j] = load_aligned_quad(a.c.from + a.c.from_layout.cell(a.query_y(first_query + q), a.query_x(first_query + q)) + first + c);
    }
  Segments at(s, a);
  int buffer = 0;
  if (at.left()) fetch(s.cells[0], a, at, first, channels);
  const unsigned own = ((1u << kTile) - 1) << first_query;
  for (Segments next = at; at.left(); at = next, buffer ^= 1) {
    prim::cp_async_wait<0>();
    __syncthreads();  // the segment is there, and the one before it was read
    next.next();
    if (next.left()) fetch(s.cells[buffer ^ 1], a, next, first, channels);
    if ((at.reached & own) == 0) continue;
    for (int g = 0; g < kSegment; g += kGroup)
      if ((at.reaching(at.x + g, kGroup) & own) != 0) multiply_group(s, s.cells[buffer], f, at, g, channels);
  }
  __syncthreads();
}

__device__ __forceinline__ void interpolate(const LookupShared& s, const Lookup& a) {
  const int side = a.window(), k = side - 1;
  for (int i = static_cast<int>(threadIdx.x); i < kQueries * k * k; i += kLookupThreads) {
    const int q = i / (k * k), o = i % (k * k);
    if (!a.exists(q)) continue;
    const Window& w = s.windows[q];
    const float* dots = s.dots[q] + o / k * side + o % k;
    const float left = fmaf(w.fy, dots[1], (1 - w.fy) * dots[0]), right = fmaf(w.fy, dots[side + 1], (1 - w.fy) * dots[side]);
    a.out[a.out_layout.cell(a.query_y(q), a.query_x(q)) + a.c.first + a.level() * k * k + o] = fmaf(w.fx * a.c.scale, right, (1 - w.fx) * a.c.scale * left);
  }
}

__global__ void __launch_bounds__(kLookupThreads) correlation_lookup_kernel(Lookup a) {
  LookupShared& s = *prim::dynamic_shared<LookupShared>();
  const int thread = static_cast<int>(threadIdx.x), stored = static_cast<int>(a.c.from_layout.stored());
  if (thread < kQueries) s.windows[thread] = place_window(a, thread);
  for (int i = thread; i < kQueries * kMaxWindow * kMaxWindow; i += kLookupThreads) s.dots[i / (kMaxWindow * kMaxWindow)][i % (kMaxWindow * kMaxWindow)] = 0;
  __syncthreads();
  for (int first = 0; first < stored; first += kChunk) add_channels(s, a, first, stored - first < kChunk ? stored - first : kChunk);
  interpolate(s, a);
}

// ---- upsampling: a block four neighbouring cells, a thread a sub-pixel of one ----

constexpr int kUpsampledCells = 4, kUpsampleThreads = 64 * kUpsampledCells;

__global__ void __launch_bounds__(kUpsampleThreads) convex_upsample_kernel(float* out, const float* logits, FrameLayout l, const float* flow, unsigned across) {
  const int thread = static_cast<int>(threadIdx.x), b = thread % 8, a = thread / (8 * kUpsampledCells);
  const int y = static_cast<int>(blockIdx.x / across), x = static_cast<int>(blockIdx.x % across) * kUpsampledCells + thread / 8 % kUpsampledCells;
  if (x >= l.width) return;
  const float* p = logits + l.cell(y, x) + 8 * a + b;
  float weights[9], top = -INFINITY;
  MS_UNROLL
  for (int k = 0; k < 9; ++k) weights[k] = p[64 * k], top = fmaxf(top, weights[k]);
  float total = 0, u = 0, v = 0;
  MS_UNROLL
  for (int k = 0; k < 9; ++k) {
    const int ny = y + k / 3 - 1, nx = x + k % 3 - 1;
    const float e = expf(weights[k] - top);
    total += e;
    if (ny < 0 || nx < 0 || ny >= l.height || nx >= l.width) continue;
    const float* neighbour = flow + (ny * l.width + nx) * 2;
    u = fmaf(e, 8 * neighbour[0], u);
    v = fmaf(e, 8 * neighbour[1], v);
  }
  const int64_t width = 8 * l.width, at = (int64_t{8} * y + a) * width + 8 * x + b;
  out[at] = u / total;
  out[8 * l.height * width + at] = v / total;
}

}  // namespace

namespace cuda {

void correlation_lookup(Stream& stream, float* out, FrameLayout o, CorrelationLookup c) {
  const int64_t k = 2 * c.radius + 1;
  MS_CHECK(c.radius >= 0 && c.radius <= kMaxRadius && c.first + kFlowLevels * k * k <= o.channels);
  for (const FrameLayout& l : c.level_layouts) MS_CHECK(l.stored() == c.from_layout.stored());
  const int64_t across = (o.width + kTile - 1) / kTile, tiles = across * ((o.height + kTile - 1) / kTile);
  if (tiles == 0) return;
  prim::launch(correlation_lookup_kernel, dim3(count32(tiles, "tiles of cells"), kFlowLevels), dim3(kLookupThreads), sizeof(LookupShared), stream,
               Lookup{out, o, c, static_cast<int>(across)});
}

void convex_upsample(Stream& stream, float* out, const float* logits, FrameLayout l, const float* flow) {
  MS_CHECK(l.channels == 9 * 64);
  const int64_t across = (l.width + kUpsampledCells - 1) / kUpsampledCells;
  if (across * l.height == 0) return;
  prim::launch(convex_upsample_kernel, dim3(count32(across * l.height, "pieces of a frame")), dim3(kUpsampleThreads), 0, stream, out, logits, l, flow,
               static_cast<unsigned>(across));
}

}  // namespace cuda
}  // namespace megaslide
