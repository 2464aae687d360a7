// Convolutions of frames as implicit products: cells by output channels, summed over (t, i, j, channel). bf16 frames go
// through the tensor cores, fp32 ones through plain multiplications.
//
// A norm needs all channels of a cell and follows in a second pass, which reads the sums as `raw` or `normed` keeps them:
// in bf16 the norm is that of rounded sums.
#include "kernels/conv3d/conv3d.h"

#include "kernels/elements.cuh"
#include "kernels/mma_tiles.cuh"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

int64_t padded(int64_t channels) { return (channels + kConvPanel - 1) / kConvPanel * kConvPanel; }

// ---- weights: bf16 (taps, padded out, stored in), fp32 (taps, stored in, padded out) ----

template <class T>
__global__ void __launch_bounds__(256) conv_pack_kernel(T* packed, const float* w, ConvShape s, int64_t stored, int64_t out, int64_t n) {
  const int64_t i = element_index();
  if (i >= n) return;
  constexpr bool kInInside = sizeof(T) == 2;
  const int64_t inner = kInInside ? stored : out, a = i % inner, b = i / inner % (kInInside ? out : stored), tap = i / (stored * out);
  const int64_t c = kInInside ? a : b, o = kInInside ? b : a;
  store_one(packed + i, c < s.in && o < s.out ? w[(o * s.in + c) * s.taps() + tap] : 0.0f);
}

// ---- what both products share ----

struct Conv {
  FrameConv call;
  const void* frames[kConvMaxFrames];  // those that exist, oldest first
  int time[kConvMaxFrames];            // their taps
  int live, chunks;                    // chunks of channels a cell
  int64_t stored, out, cells;          // channels of an input cell, padded ones of the results
};

// Where a step of the sum reads.
struct Step {
  int frame = 0, i = 0, j = 0, chunk = 0;
  __device__ void next(const Conv& c) {
    if (++chunk < c.chunks) return;
    chunk = 0;
    if (++j < static_cast<int>(c.call.shape.kw)) return;
    j = 0;
    if (++i < static_cast<int>(c.call.shape.kh)) return;
    i = 0;
    ++frame;
  }
  __device__ int64_t cell(const Conv& c) const { return i * c.call.in.row() + j * c.stored; }
  __device__ int64_t tap(const Conv& c) const {
    return (int64_t{c.time[frame]} * c.call.shape.kh + i) * c.call.shape.kw + j;
  }
};
__device__ __forceinline__ int steps_of(const Conv& c) {
  return c.live * static_cast<int>(c.call.shape.kh * c.call.shape.kw) * c.chunks;
}

// Where a block's cells are: their inputs, and their results. −1 beyond the last.
template <int kCells>
struct CellPlaces {
  int64_t in[kCells], out[kCells];
  __device__ void fill(const Conv& c) {
    for (int r = static_cast<int>(threadIdx.x); r < kCells; r += static_cast<int>(blockDim.x)) {
      const int64_t m = int64_t{blockIdx.x} * kCells + r;
      const FrameConv& f = c.call;
      const int64_t y = m / f.columns, x = m % f.columns;
      in[r] = m < c.cells ? f.in.cell(f.stride * y + f.dy, f.stride * x + f.dx) : -1;
      out[r] = m < c.cells ? f.finish.out.cell(f.finish.step * y + f.finish.y, f.finish.step * x + f.finish.x) : -1;
    }
    __syncthreads();
  }
};

__device__ __forceinline__ void store_pair(bf16* p, float a, float b) { prim::store_bf16(p, a, b); }
__device__ __forceinline__ void store_pair(float* p, float a, float b) { p[0] = a, p[1] = b; }

// kN (2 or 4) sums of neighbouring channels from `channel` on, of a cell whose results lie at `at`: bias and residuals, to memory.
template <class T, int kN>
__device__ __forceinline__ void finish_sums(const FrameFinish& f, float (&u)[kN], int64_t at, int64_t channel) {
  const auto add = [&](const void* from) {
    MS_UNROLL
    for (int i = 0; i < kN; ++i) u[i] += prim::widen(static_cast<const T*>(from)[at + channel + i]);
  };
  MS_UNROLL
  for (int i = 0; i < kN; ++i) u[i] += f.bias != nullptr ? f.bias[channel + i] : 0.0f;
  if (f.residual != nullptr) add(f.residual);
  if (f.residual2 != nullptr) add(f.residual2);
  MS_UNROLL
  for (int i = 0; i < kN; ++i)
    if (f.slope != nullptr && u[i] < 0) u[i] *= f.slope[channel + i];
  T* to = static_cast<T*>(f.raw != nullptr ? f.raw : f.normed) + at + channel;
  if constexpr (kN == 4)
    store_aligned_quad(to, {{u[0], u[1], u[2], u[3]}});
  else
    store_pair(to, u[0], u[1]);
}

// ---- bf16: 128 cells by 64 channels a block, a warp 32 cells, three stages of 32 input channels ----

constexpr int kMmaCells = 128, kMmaOut = 64, kMmaDepth = 32, kStages = 3;

struct MmaShared {
  MmaTile<kMmaCells, kMmaDepth> cells[kStages];
  MmaTile<kMmaOut, kMmaDepth> weights[kStages];
  CellPlaces<kMmaCells> places;
};

__device__ __forceinline__ void fetch(MmaShared& s, int stage, const Conv& c, const Step& step, int64_t first_out) {
  const int64_t cell = step.cell(c) + int64_t{step.chunk} * kMmaDepth, tap = step.tap(c) * c.out;
  load_rows<true>(s.cells[stage], c.frames[step.frame], kMmaDepth,
                  [&](int r) { return s.places.in[r] < 0 ? int64_t{-1} : s.places.in[r] + cell; });
  load_rows<true>(s.weights[stage], c.call.packed, kMmaDepth, [&](int r) {
    return first_out + r < c.out ? (tap + first_out + r) * c.stored + int64_t{step.chunk} * kMmaDepth : int64_t{-1};
  });
}

template <class T>
__global__ void __launch_bounds__(kMmaThreads) frame_conv_mma_kernel(Conv c) {
  MmaShared& s = *prim::dynamic_shared<MmaShared>();
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 32, steps = steps_of(c);
  const int64_t first_out = int64_t{blockIdx.y} * kMmaOut;
  s.places.fill(c);
  float u[2][kMmaOut / 8][4] = {};
  Step ahead;
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < steps) fetch(s, i, c, ahead, first_out), ahead.next(c);
    prim::cp_async_commit();
  }
  for (int i = 0; i < steps; ++i) {
    prim::cp_async_wait<kStages - 2>();
    __syncthreads();
    if (i + kStages - 1 < steps) fetch(s, (i + kStages - 1) % kStages, c, ahead, first_out), ahead.next(c);
    prim::cp_async_commit();
    const auto &cells = s.cells[i % kStages];
    const auto &weights = s.weights[i % kStages];
    MS_UNROLL
    for (int k = 0; k < kMmaDepth; k += 16) {
      uint32_t a[2][4];
      left_fragment(a[0], cells, warp_row, k);
      left_fragment(a[1], cells, warp_row + 16, k);
      MS_UNROLL
      for (int n = 0; n < kMmaOut / 8; n += 2) {
        uint32_t b0[2], b1[2];
        right_by_rows(b0, b1, weights, n * 8, k);
        MS_UNROLL
        for (int m = 0; m < 2; ++m) {
          prim::mma_m16n8k16_bf16(u[m][n], a[m], b0);
          prim::mma_m16n8k16_bf16(u[m][n + 1], a[m], b1);
        }
      }
    }
  }
  prim::cp_async_wait<0>();
  MS_UNROLL
  for (int m = 0; m < 2; ++m)
    MS_UNROLL
    for (int n = 0; n < kMmaOut / 8; ++n)
      MS_UNROLL
      for (int i = 0; i < 4; i += 2) {
        const int64_t at = s.places.out[warp_row + 16 * m + fragment_row(i)], channel = first_out + n * 8 + fragment_column(i);
        float pair[2] = {u[m][n][i], u[m][n][i + 1]};
        if (at >= 0 && channel < c.out) finish_sums<T>(c.call.finish, pair, at, channel);
      }
}

// ---- fp32: 64 cells by 64 channels a block, a thread 4 by 4, 16 input channels a step ----

constexpr int kPlainTile = 64, kPlainDepth = 16, kPlainThreads = 256;

struct PlainShared {
  float cells[kPlainDepth][kPlainTile + 4], weights[kPlainDepth][kPlainTile];
  CellPlaces<kPlainTile> places;
};

template <class T>
__global__ void __launch_bounds__(kPlainThreads) frame_conv_plain_kernel(Conv c) {
  PlainShared& s = *prim::dynamic_shared<PlainShared>();
  const int thread = static_cast<int>(threadIdx.x), row = thread / 16 * 4, column = thread % 16 * 4, steps = steps_of(c);
  const int64_t first_out = int64_t{blockIdx.y} * kPlainTile;
  s.places.fill(c);
  float u[4][4] = {};
  Step step;
  for (int i = 0; i < steps; ++i, step.next(c)) {
    const int64_t k0 = int64_t{step.chunk} * kPlainDepth;
    {
      const int r = thread / 4, k = thread % 4 * 4;
      const int64_t at = s.places.in[r];
      Quad q;
      if (at >= 0) q = load_aligned_quad(static_cast<const float*>(c.frames[step.frame]) + at + step.cell(c) + k0 + k);
      MS_UNROLL
      for (int e = 0; e < 4; ++e) s.cells[k + e][r] = q.v[e];
    }
    {
      const int k = thread / 16, o = thread % 16 * 4;
      Quad q;
      if (first_out + o < c.out)
        q = load_aligned_quad(static_cast<const float*>(c.call.packed) + (step.tap(c) * c.stored + k0 + k) * c.out + first_out + o);
      MS_UNROLL
      for (int e = 0; e < 4; ++e) s.weights[k][o + e] = q.v[e];
    }
    __syncthreads();
    MS_UNROLL
    for (int k = 0; k < kPlainDepth; ++k)
      MS_UNROLL
      for (int a = 0; a < 4; ++a)
        MS_UNROLL
        for (int b = 0; b < 4; ++b) u[a][b] = fmaf(s.cells[k][row + a], s.weights[k][column + b], u[a][b]);
    __syncthreads();
  }
  MS_UNROLL
  for (int a = 0; a < 4; ++a) {
    const int64_t at = s.places.out[row + a];
    if (at >= 0 && first_out + column < c.out) finish_sums<T>(c.call.finish, u[a], at, first_out + column);
  }
}

// ---- norm ----

struct Finish {
  FrameFinish f;
  const void* in;
  int64_t columns, cells, quads;  // quads of a cell
};

// u of a quad: what is there with what is added.
template <class T>
__device__ __forceinline__ Quad finish_quad(const Finish& a, int64_t at, int64_t channel) {
  Quad u = load_aligned_quad(static_cast<const T*>(a.in) + at + channel);
  const auto add = [&](const Quad& q) {
    MS_UNROLL
    for (int i = 0; i < 4; ++i) u.v[i] += q.v[i];
  };
  if (a.f.bias != nullptr) add(load_aligned_quad(a.f.bias + channel));
  if (a.f.residual != nullptr) add(load_aligned_quad(static_cast<const T*>(a.f.residual) + at + channel));
  if (a.f.residual2 != nullptr) add(load_aligned_quad(static_cast<const T*>(a.f.residual2) + at + channel));
  return u;
}

// A warp a cell. normed may be in.
template <class T>
__global__ void __launch_bounds__(128) frame_finish_kernel(Finish a) {
  const int64_t cell = warp_unit(), lane = threadIdx.x % 32;
  if (cell >= a.cells) return;
  const FrameFinish& f = a.f;
  const int64_t at = f.out.cell(f.step * (cell / a.columns) + f.y, f.step * (cell % a.columns) + f.x);
  float squares = 0;
  for (int64_t q = lane; q < a.quads; q += 32) {
    const Quad u = finish_quad<T>(a, at, 4 * q);
    if (f.raw != nullptr) store_aligned_quad(static_cast<T*>(f.raw) + at + 4 * q, u);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) squares = fmaf(u.v[i], u.v[i], squares);
  }
  if (f.normed == nullptr) return;
  const float norm = sqrtf(prim::warp_sum(squares));
  const float scale = sqrtf(static_cast<float>(f.out.channels)) / (norm < 1e-12f ? 1e-12f : norm);
  for (int64_t q = lane; q < a.quads; q += 32) {
    Quad u = finish_quad<T>(a, at, 4 * q);
    const Quad gamma = load_aligned_quad(f.gamma + 4 * q);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float v = u.v[i] * scale * gamma.v[i];
      u.v[i] = f.silu ? v / (1 + expf(-v)) : v;
    }
    store_aligned_quad(static_cast<T*>(f.normed) + at + 4 * q, u);
  }
}

void finish(Stream& stream, const void* in, const FrameFinish& f, int64_t rows, int64_t columns) {
  const Finish a{f, in, columns, rows * columns, padded(f.out.channels) / 4};
  if (a.cells == 0) return;
  by_type(f.out.dtype, [&]<class T>(T*) {
    prim::launch(frame_finish_kernel<T>, warp_grid(count32(a.cells, "cells")), warp_block(), 0, stream, a);
  });
}

template <class T>
void sums(Stream& stream, const Conv& c) {
  const auto grid = [&](int64_t cells, int64_t out) {
    return dim3(count32((c.cells + cells - 1) / cells, "cells"), static_cast<unsigned>((c.out + out - 1) / out));
  };
  if (c.call.in.dtype == DType::kBF16)
    prim::launch(frame_conv_mma_kernel<T>, grid(kMmaCells, kMmaOut), dim3(kMmaThreads), sizeof(MmaShared), stream, c);
  else
    prim::launch(frame_conv_plain_kernel<T>, grid(kPlainTile, kPlainTile), dim3(kPlainThreads), sizeof(PlainShared), stream, c);
}

}  // namespace

namespace cuda {

void conv_pack(Stream& stream, void* packed, const float* w, ConvShape s, DType dtype) {
  FrameLayout in;
  in.channels = s.in, in.dtype = dtype;
  const int64_t n = s.taps() * in.stored() * padded(s.out);
  by_type(dtype, [&]<class T>(T*) {
    prim::launch(conv_pack_kernel<T>, element_grid(n), element_block(), 0, stream, static_cast<T*>(packed), w, s, in.stored(), padded(s.out), n);
  });
}

void frame_conv(Stream& stream, FrameConv call) {
  MS_CHECK(call.in.dtype == DType::kBF16 || call.in.dtype == DType::kF32, "{}", dtype_name(call.in.dtype));
  MS_CHECK(call.shape.kt <= kConvMaxFrames && call.in.channels == call.shape.in && call.finish.out.channels == call.shape.out);
  MS_CHECK(call.frames[call.shape.kt - 1] != nullptr);
  Conv c{call, {}, {}, 0, 0, call.in.stored(), padded(call.shape.out), call.rows * call.columns};
  c.chunks = static_cast<int>(c.stored / (call.in.dtype == DType::kBF16 ? kMmaDepth : kPlainDepth));
  for (int t = 0; t < static_cast<int>(call.shape.kt); ++t)
    if (call.frames[t] != nullptr) c.frames[c.live] = call.frames[t], c.time[c.live++] = t;
  if (c.cells == 0) return;
  const FrameFinish& f = call.finish;
  by_type(f.out.dtype, [&]<class T>(T*) { sums<T>(stream, c); });
  if (f.normed == nullptr) return;
  FrameFinish norm = f;
  norm.bias = nullptr, norm.residual = norm.residual2 = nullptr, norm.slope = nullptr, norm.raw = nullptr;
  finish(stream, f.raw != nullptr ? f.raw : f.normed, norm, call.rows, call.columns);
}

void frame_finish(Stream& stream, const void* in, FrameFinish f) {
  MS_CHECK(in != f.raw || (f.bias == nullptr && f.residual == nullptr && f.residual2 == nullptr));
  MS_CHECK(f.slope == nullptr);
  finish(stream, in, f, f.out.height, f.out.width);
}

}  // namespace cuda
}  // namespace megaslide
