// The motion term. A block has 8×8 tokens of a frame and walks the displacements δ: the products c(r)·c(r+δ) about its
// tokens lie in shared memory, and their 3×3 sums are the correlations of the patches (spec dsa.md §1).
#include <algorithm>
#include <cmath>

#include "kernels/dsa/dsa_place.cuh"
#include "kernels/dsa/motion_cuda.h"

namespace megaslide {
namespace {

constexpr int kSide = kMotionSide, kTokens = kSide * kSide;
constexpr int kSearch = static_cast<int>(kMotionSearch), kSpan = 2 * kSearch + 1, kDeltas = kSpan * kSpan;
constexpr int kC = static_cast<int>(kMotionChannels), kRow = kC + 1;  // odd: neighbouring tokens lie in other banks
constexpr int kForwardThreads = 128, kBackwardThreads = 160;
constexpr int kGainThreads = 128, kGainTokens = kMotionGainTokens;

struct MotionArgs {
  const float *c, *norm;
  AnyElements s, gain;
  DsaGrid grid;
  int tiles_h, tiles_w;
  __device__ float beta() const { return kMotionBetaBase * s.at(0); }
  __device__ float inverse(int64_t token) const { return norm[token] < kMotionUnitEps ? 0.0f : 1 / norm[token]; }
};

// One frame's tokens in a square about the block's tile; zeros outside the grid.
template <int kWidth>
struct Square {
  float at[kWidth * kWidth][kRow];
  __device__ void load(const MotionArgs& x, int frame, int h0, int w0) {
    const int height = x.grid.length[1], width = x.grid.length[2];
    for (int i = static_cast<int>(threadIdx.x); i < kWidth * kWidth * kC; i += static_cast<int>(blockDim.x)) {
      const int h = h0 + i / kC / kWidth, w = w0 + i / kC % kWidth;
      const bool inside = h >= 0 && h < height && w >= 0 && w < width;
      at[i / kC][i % kC] = inside ? x.c[((int64_t{frame} * height + h) * width + w) * kC + i % kC] : 0.0f;
    }
  }
  __device__ const float* token(int h, int w) const { return at[h * kWidth + w]; }
};
__device__ float dot(const float* a, const float* b) {
  float sum = 0;
  for (int i = 0; i < kC; ++i) sum = fmaf(a[i], b[i], sum);
  return sum;
}
// The 3×3 sum in a plane of `width` columns whose corner is (h, w).
__device__ float box(const float* plane, int width, int h, int w) {
  float sum = 0;
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b < 3; ++b) sum += plane[(h + a) * width + w + b];
  return sum;
}

// The block's tile: a frame among all samples', and its first line and column.
struct MotionTile {
  int frame, t, h0, w0;
  __device__ explicit MotionTile(const MotionArgs& x) {
    const int i = static_cast<int>(blockIdx.x), tiles = x.tiles_h * x.tiles_w;
    frame = i / tiles, t = frame % x.grid.length[0];
    h0 = i % tiles / x.tiles_w * kSide, w0 = i % x.tiles_w * kSide;
  }
};
__device__ bool in_frame(const DsaGrid& g, int h, int w) { return h >= 0 && h < g.length[1] && w >= 0 && w < g.length[2]; }
__device__ int64_t token_of(const DsaGrid& g, int frame, int h, int w) {
  return (int64_t{frame} * g.length[1] + h) * g.length[2] + w;
}
// The slot of frame `other` in the windows of frame t, −1 where there is none.
__device__ int slot_of(const DsaGrid& g, int t, int other) {
  int lo, hi, k_eff;
  g.bounds(0, t, lo, hi, k_eff);
  const int j = other - DsaGrid::window_start(t, k_eff, lo, hi);
  return other != t && j >= 0 && j < k_eff ? j : -1;
}

__global__ void __launch_bounds__(256) motion_norm_kernel(MotionArgs x, float* norm, int64_t tokens) {
  const int64_t token = element_index();
  if (token >= tokens) return;
  const int plane = x.grid.length[1] * x.grid.length[2], frame = static_cast<int>(token / plane);
  const int h = static_cast<int>(token % plane) / x.grid.length[2], w = static_cast<int>(token % plane) % x.grid.length[2];
  float sum = 0;
  for (int a = -1; a <= 1; ++a)
    for (int b = -1; b <= 1; ++b)
      if (in_frame(x.grid, h + a, w + b)) {
        const float* c = x.c + token_of(x.grid, frame, h + a, w + b) * kC;
        sum += dot(c, c);
      }
  norm[token] = sqrtf(sum);
}

struct ForwardShared {
  Square<kSide + 2> own;
  Square<kSide + 2 + 2 * kSearch> other;
  float product[2][(kSide + 2) * (kSide + 2)];
};

// m and lse of slot blockIdx.y.
__global__ void __launch_bounds__(kForwardThreads) motion_search_kernel(MotionArgs x, float* m, float* lse) {
  constexpr int kWide = kSide + 2;
  auto& s = *prim::dynamic_shared<ForwardShared>();
  const DsaGrid& g = x.grid;
  const MotionTile tile(x);
  const int thread = static_cast<int>(threadIdx.x), h = tile.h0 + thread / kSide, w = tile.w0 + thread % kSide;
  const bool mine = thread < kTokens && in_frame(g, h, w);
  const int64_t token = mine ? token_of(g, tile.frame, h, w) : 0, at = token * g.kernel[0] + blockIdx.y;
  int lo, hi, k_eff;
  g.bounds(0, tile.t, lo, hi, k_eff);
  const int j = static_cast<int>(blockIdx.y), other = DsaGrid::window_start(tile.t, k_eff, lo, hi) + j;
  if (j >= k_eff || other == tile.t) {
    if (mine) m[2 * at] = m[2 * at + 1] = lse[at] = 0;
    return;
  }
  const int other_frame = tile.frame - tile.t + other;
  s.own.load(x, tile.frame, tile.h0 - 1, tile.w0 - 1);
  s.other.load(x, other_frame, tile.h0 - 1 - kSearch, tile.w0 - 1 - kSearch);
  __syncthreads();
  const float factor = mine ? x.beta() * x.inverse(token) : 0.0f;
  float top = -INFINITY, sum = 0, sum_h = 0, sum_w = 0;
  for (int i = 0; i < kDeltas; ++i) {
    const int dh = i / kSpan - kSearch, dw = i % kSpan - kSearch;
    float* product = s.product[i % 2];
    if (thread < kWide * kWide) {
      const int r = thread / kWide, q = thread % kWide;
      product[thread] = dot(s.own.token(r, q), s.other.token(r + dh + kSearch, q + dw + kSearch));
    }
    __syncthreads();
    if (!mine || !in_frame(g, h + dh, w + dw)) continue;
    const float score = factor * x.inverse(token_of(g, other_frame, h + dh, w + dw)) * box(product, kWide, thread / kSide, thread % kSide);
    const float higher = fmaxf(top, score), rescale = expf(top - higher), e = expf(score - higher);
    sum = fmaf(sum, rescale, e);
    sum_h = fmaf(sum_h, rescale, e * static_cast<float>(dh));
    sum_w = fmaf(sum_w, rescale, e * static_cast<float>(dw));
    top = higher;
  }
  if (!mine) return;
  m[2 * at] = sum_h / sum, m[2 * at + 1] = sum_w / sum;
  lse[at] = top + logf(sum);
}

// The slot and the axis (0: h, 1: w) of a raw offset; axis −1: the term has none.
struct OffsetPlace {
  int group, jt, axis;
  __device__ OffsetPlace(const DsaGrid& g, int index) {
    if (g.mode == DsaOffsetMode::kSlice) {
      group = index / 2 / g.kernel[0], jt = index / 2 % g.kernel[0], axis = index % 2;
    } else {
      group = index / 3 / g.slots, jt = index / 3 % g.slots / (g.kernel[1] * g.kernel[2]), axis = index % 3 - 1;
    }
  }
};

__global__ void __launch_bounds__(256) motion_offset_kernel(MotionArgs x, float* offsets, const float* m, int64_t elements) {
  const int64_t i = element_index();
  if (i >= elements) return;
  const OffsetPlace p(x.grid, static_cast<int>(i % x.grid.offsets));
  if (p.axis < 0) return;
  const float gain = x.gain.at(p.group);
  const int64_t token = i / x.grid.offsets;
  if (gain != 0) offsets[token * x.grid.row_offsets + i % x.grid.offsets] += gain * m[(token * x.grid.kernel[0] + p.jt) * 2 + p.axis];
}

// Σ of a token's offset gradients over the nominal slots of frame slot jt, of one group.
__device__ float2 slot_gradient(const DsaGrid& g, const float* doffsets, int group, int jt) {
  if (g.mode == DsaOffsetMode::kSlice) {
    const float* p = doffsets + (group * g.kernel[0] + jt) * 2;
    return {p[0], p[1]};
  }
  float2 sum{0, 0};
  const int spatial = g.kernel[1] * g.kernel[2];
  for (int j = jt * spatial; j < (jt + 1) * spatial; ++j) {
    const float* p = doffsets + (group * g.slots + j) * 3 + 1;
    sum.x += p[0], sum.y += p[1];
  }
  return sum;
}

struct BackwardArgs {
  MotionArgs motion;
  float *dc, *ds, *dgain;
  const float *doffsets, *m, *lse;
  int64_t tokens;  // batch · N
  int gain_parts;
  float4* slots;      // (B,N,k_t): dm_h, dm_w, −dm·m, lse
  float* pull;        // (B,N): β Σ dS·cos / ‖z‖² of all pairs that the token is in
  double* ds_part;    // a block of motion_gather_kernel
  double* gain_part;  // (parts, G)
};

__global__ void __launch_bounds__(256) motion_slot_kernel(BackwardArgs x) {
  const int64_t i = element_index();
  const DsaGrid& g = x.motion.grid;
  if (i >= x.tokens * g.kernel[0]) return;
  const int64_t token = i / g.kernel[0];
  const int jt = static_cast<int>(i % g.kernel[0]);
  float dh = 0, dw = 0;
  for (int group = 0; group < g.groups; ++group) {
    const float2 d = slot_gradient(g, x.doffsets + token * g.row_offsets, group, jt);
    dh = fmaf(x.motion.gain.at(group), d.x, dh), dw = fmaf(x.motion.gain.at(group), d.y, dw);
  }
  x.slots[i] = {dh, dw, -(dh * x.m[2 * i] + dw * x.m[2 * i + 1]), x.lse[i]};
}

// Σ do·m of one group over tokens [first, last) by a block of kGainThreads, in fp64: many terms that cancel. Thread 0 has it.
__device__ double sum_of_gain(const DsaGrid& g, const float* doffsets, const float* m, int group, int64_t first, int64_t last) {
  double* part = prim::dynamic_shared<double>();
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int64_t i = first * g.kernel[0] + thread; i < last * g.kernel[0]; i += kGainThreads) {
    const float2 d = slot_gradient(g, doffsets + i / g.kernel[0] * g.row_offsets, group, static_cast<int>(i % g.kernel[0]));
    sum += static_cast<double>(d.x) * static_cast<double>(m[2 * i]) + static_cast<double>(d.y) * static_cast<double>(m[2 * i + 1]);
  }
  part[thread] = sum;
  __syncthreads();
  for (int i = 1; thread == 0 && i < kGainThreads; ++i) sum += part[i];
  return sum;
}

// One group (blockIdx.y) over kGainTokens tokens.
__global__ void __launch_bounds__(kGainThreads) motion_gain_kernel(BackwardArgs x) {
  const DsaGrid& g = x.motion.grid;
  const int group = static_cast<int>(blockIdx.y);
  const int64_t first = int64_t{blockIdx.x} * kGainTokens, last = first + kGainTokens < x.tokens ? first + kGainTokens : x.tokens;
  const double sum = sum_of_gain(g, x.doffsets, x.m, group, first, last);
  if (threadIdx.x == 0) x.gain_part[int64_t{blockIdx.x} * g.groups + group] = sum;
}

// m of one token and frame slot: read where the slot is of another frame that exists.
__global__ void __launch_bounds__(256) motion_given_kernel(DsaGrid g, float* m, const float* displacement, int64_t slots) {
  const int64_t i = element_index();
  if (i >= slots) return;
  const int64_t token = i / g.kernel[0];
  const int jt = static_cast<int>(i % g.kernel[0]), frame = static_cast<int>(token % g.tokens) / (g.length[1] * g.length[2]);
  int lo, hi, k_eff;
  g.bounds(0, frame, lo, hi, k_eff);
  const int other = DsaGrid::window_start(frame, k_eff, lo, hi) + jt;
  const bool live = jt < k_eff && other != frame;
  const float* from = displacement + (token * g.length[0] + (live ? other : frame)) * 2;
  m[2 * i] = live ? from[0] : 0.0f, m[2 * i + 1] = live ? from[1] : 0.0f;
}

// dgain of one group: a block, in a fixed order.
__global__ void __launch_bounds__(kGainThreads) motion_given_gain_kernel(DsaGrid g, float* dgain, const float* doffsets, const float* m, int64_t tokens) {
  const double sum = sum_of_gain(g, doffsets, m, static_cast<int>(blockIdx.x), 0, tokens);
  if (threadIdx.x == 0) dgain[blockIdx.x] += static_cast<float>(sum);
}

struct BackwardShared {
  Square<kSide + 4> own;
  Square<kSide + 4 + 2 * kSearch> other;
  float product[(kSide + 4) * (kSide + 4)];
  float u[(kSide + 2) * (kSide + 2)];
  double ds[kBackwardThreads];
};

// A pair of tokens p (own frame) and p + ε (other frame): dS of the query's softmax, for δ from query to key.
__device__ float pair_score_gradient(const float4& slot, float score, int dh, int dw) {
  return expf(score - slot.w) * (slot.x * static_cast<float>(dh) + slot.y * static_cast<float>(dw) + slot.z);
}

// Σ over the pairs of the block's tokens with those of frame `other`, in either role: u and pull of one ε.
struct PairSums {
  float pull = 0;
  double ds = 0;
};
__device__ float pair_gradient(const BackwardArgs& x, const MotionTile& tile, int other, int h, int w, int dh, int dw, float product,
                               bool inner, PairSums& sums) {
  const DsaGrid& g = x.motion.grid;
  if (!in_frame(g, h, w) || !in_frame(g, h + dh, w + dw)) return 0;
  const int64_t p = token_of(g, tile.frame, h, w), q = token_of(g, tile.frame - tile.t + other, h + dh, w + dw);
  const float inverse = x.motion.inverse(p) * x.motion.inverse(q), beta = x.motion.beta(), cosine = product * inverse;
  const int as_query = slot_of(g, tile.t, other), as_key = slot_of(g, other, tile.t);
  float ds = 0;
  if (as_query >= 0) {
    ds = pair_score_gradient(x.slots[p * g.kernel[0] + as_query], beta * cosine, dh, dw);
    if (inner) sums.ds += static_cast<double>(ds) * static_cast<double>(cosine);
  }
  if (as_key >= 0) ds += pair_score_gradient(x.slots[q * g.kernel[0] + as_key], beta * cosine, -dh, -dw);
  if (inner) sums.pull = fmaf(ds, cosine, sums.pull);
  return beta * ds * inverse;
}

// dc without the share of the patches' lengths, pull, and the block's part of ds.
__global__ void __launch_bounds__(kBackwardThreads, 3) motion_gather_kernel(BackwardArgs x) {
  constexpr int kWide = kSide + 2, kWidest = kSide + 4;
  auto& s = *prim::dynamic_shared<BackwardShared>();
  const DsaGrid& g = x.motion.grid;
  const MotionTile tile(x.motion);
  const int thread = static_cast<int>(threadIdx.x), u_h = thread / kWide, u_w = thread % kWide;
  // Thread i < 100 has u of the i-th token about the tile, and the sums of pairs of those inside; i < 64 dc of the tile's.
  const bool inner = thread < kWide * kWide && u_h >= 1 && u_h <= kSide && u_w >= 1 && u_w <= kSide;
  const int own_h = thread / kSide, own_w = thread % kSide;
  float dc[kC] = {};
  PairSums sums;
  s.own.load(x.motion, tile.frame, tile.h0 - 2, tile.w0 - 2);
  const int first = DsaGrid::max_of(0, tile.t - g.kernel[0]), last = DsaGrid::min_of(g.length[0] - 1, tile.t + g.kernel[0]);
  for (int other = first; other <= last; ++other) {
    if (slot_of(g, tile.t, other) < 0 && slot_of(g, other, tile.t) < 0) continue;
    __syncthreads();
    s.other.load(x.motion, tile.frame - tile.t + other, tile.h0 - 2 - kSearch, tile.w0 - 2 - kSearch);
    __syncthreads();
    for (int i = 0; i < kDeltas; ++i) {
      const int dh = i / kSpan - kSearch, dw = i % kSpan - kSearch;
      if (thread < kWidest * kWidest)
        s.product[thread] = dot(s.own.at[thread], s.other.token(thread / kWidest + dh + kSearch, thread % kWidest + dw + kSearch));
      __syncthreads();
      if (thread < kWide * kWide)
        s.u[thread] = pair_gradient(x, tile, other, tile.h0 - 1 + u_h, tile.w0 - 1 + u_w, dh, dw, box(s.product, kWidest, u_h, u_w),
                                    inner, sums);
      __syncthreads();
      if (thread < kTokens) {
        const float weight = box(s.u, kWide, own_h, own_w);
        const float* c = s.other.token(own_h + 2 + dh + kSearch, own_w + 2 + dw + kSearch);
        for (int k = 0; k < kC; ++k) dc[k] = fmaf(weight, c[k], dc[k]);
      }
    }
  }
  if (thread < kTokens && in_frame(g, tile.h0 + own_h, tile.w0 + own_w))
    for (int k = 0; k < kC; ++k) x.dc[token_of(g, tile.frame, tile.h0 + own_h, tile.w0 + own_w) * kC + k] = dc[k];
  if (const int h = tile.h0 - 1 + u_h, w = tile.w0 - 1 + u_w; inner && in_frame(g, h, w)) {
    const int64_t token = token_of(g, tile.frame, h, w);
    x.pull[token] = x.motion.beta() * sums.pull * x.motion.inverse(token) * x.motion.inverse(token);
  }
  s.ds[thread] = sums.ds;
  __syncthreads();
  if (thread != 0) return;
  double total = 0;
  for (int i = 0; i < kBackwardThreads; ++i) total += s.ds[i];
  x.ds_part[blockIdx.x] = total;
}

// dc −= c · box(pull): a thread a token. The first also adds up ds, and dgain.
__global__ void __launch_bounds__(256) motion_finish_kernel(BackwardArgs x, int blocks) {
  const int64_t token = element_index();
  const DsaGrid& g = x.motion.grid;
  if (token < g.groups) {
    double sum = 0;
    for (int i = 0; i < x.gain_parts; ++i) sum += x.gain_part[int64_t{i} * g.groups + token];
    x.dgain[token] += static_cast<float>(sum);
  }
  if (token == 0) {
    double sum = 0;
    for (int i = 0; i < blocks; ++i) sum += x.ds_part[i];
    *x.ds += static_cast<float>(static_cast<double>(kMotionBetaBase) * sum);
  }
  if (token >= x.tokens) return;
  const int plane = g.length[1] * g.length[2], frame = static_cast<int>(token / plane);
  const int h = static_cast<int>(token % plane) / g.length[2], w = static_cast<int>(token % plane) % g.length[2];
  float sum = 0;
  for (int a = -1; a <= 1; ++a)
    for (int b = -1; b <= 1; ++b)
      if (in_frame(g, h + a, w + b)) sum += x.pull[token_of(g, frame, h + a, w + b)];
  for (int k = 0; k < kC; ++k) x.dc[token * kC + k] = fmaf(-x.motion.c[token * kC + k], sum, x.dc[token * kC + k]);
}

MotionArgs motion_args(const float* c, const float* norm, const void* s, const void* gain, const DsaShape& shape, DType dtype) {
  if (shape.mode == DsaOffsetMode::kRigid) throw Error("the motion term is not defined for rigid offsets");
  count32(shape.batch * shape.tokens() * shape.kernel[0], "tokens times slots");
  return {c, norm, {s, dtype}, {gain, dtype}, DsaGrid(shape), tiles_of(shape.height), tiles_of(shape.width)};
}

}  // namespace

namespace cuda {

void motion_forward(Stream& stream, float* offsets, float* m, float* lse, float* norm, const float* c, const void* s,
                    const void* gain, void*, DsaShape shape, DType dtype) {
  const int64_t tokens = shape.batch * shape.tokens();
  if (tokens == 0) return;
  const MotionArgs x = motion_args(c, norm, s, gain, shape, dtype);
  prim::launch(motion_norm_kernel, element_grid(tokens), element_block(), 0, stream, x, norm, tokens);
  prim::launch(motion_search_kernel, dim3(count32(blocks_of(shape), "tiles"), static_cast<unsigned>(shape.kernel[0])),
               dim3(kForwardThreads), sizeof(ForwardShared), stream, x, m, lse);
  const int64_t elements = tokens * dsa_offset_count(shape);
  prim::launch(motion_offset_kernel, element_grid(elements), element_block(), 0, stream, x, offsets, m, elements);
}

void motion_backward(Stream& stream, float* dc, float* ds, float* dgain, const float* doffsets, const float* m,
                     const float* lse, const float* norm, const float* c, const void* s, const void* gain,
                     void* workspace, DsaShape shape, DType dtype) {
  const int64_t tokens = shape.batch * shape.tokens();
  if (tokens == 0) return;
  Carver carver(workspace);
  const MotionBackwardSpace w(carver, shape);
  const BackwardArgs x{motion_args(c, norm, s, gain, shape, dtype), dc, ds, dgain, doffsets, m, lse, tokens,
                       static_cast<int>(gain_parts_of(shape)), reinterpret_cast<float4*>(w.slots), w.pull, w.ds_part, w.gain_part};
  const unsigned blocks = count32(blocks_of(shape), "tiles");
  prim::launch(motion_slot_kernel, element_grid(tokens * shape.kernel[0]), element_block(), 0, stream, x);
  prim::launch(motion_gain_kernel, dim3(static_cast<unsigned>(x.gain_parts), static_cast<unsigned>(shape.groups)), dim3(kGainThreads),
               kGainThreads * sizeof(double), stream, x);
  prim::launch(motion_gather_kernel, dim3(blocks), dim3(kBackwardThreads), sizeof(BackwardShared), stream, x);
  prim::launch(motion_finish_kernel, element_grid(std::max(tokens, shape.groups)), element_block(), 0, stream, x,
               static_cast<int>(blocks));
}

void motion_given_forward(Stream& stream, float* offsets, float* m, const float* displacement, const void* gain, DsaShape shape,
                          DType dtype) {
  const int64_t tokens = shape.batch * shape.tokens(), slots = tokens * shape.kernel[0], elements = tokens * dsa_offset_count(shape);
  if (tokens == 0) return;
  const MotionArgs x = motion_args(nullptr, nullptr, nullptr, gain, shape, dtype);
  prim::launch(motion_given_kernel, element_grid(slots), element_block(), 0, stream, x.grid, m, displacement, slots);
  prim::launch(motion_offset_kernel, element_grid(elements), element_block(), 0, stream, x, offsets, static_cast<const float*>(m), elements);
}

void motion_given_backward(Stream& stream, float* dgain, const float* doffsets, const float* m, DsaShape shape) {
  if (shape.batch * shape.tokens() == 0) return;
  prim::launch(motion_given_gain_kernel, dim3(static_cast<unsigned>(shape.groups)), dim3(kGainThreads), kGainThreads * sizeof(double), stream,
               DsaGrid(shape), dgain, doffsets, m, shape.batch * shape.tokens());
}

}  // namespace cuda
}  // namespace megaslide
