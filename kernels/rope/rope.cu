#include "kernels/rope/rope.h"

#include <cmath>

#include "kernels/memory/row_piece.cuh"
#include "kernels/memory/row_sums_cuda.h"
#include "kernels/quads.cuh"
#include "kernels/sinusoid.cuh"

namespace megaslide {
namespace {

// The grid as device code reads it, and the table; without one nothing is turned.
struct Turns {
  const float* table;
  unsigned tokens, plane, line;
  int head_dim, time, space, rows_at, columns_at;  // where the lines' and the columns' angles begin in the table
  int step;                                        // channels within heads from a thread's quad to its next
  Turns(const float* table_, const RopeGrid& g, dim3 threads)
      : table(table_), tokens(count32(g.frames * g.height * g.width, "tokens")), plane(static_cast<unsigned>(g.height * g.width)),
        line(static_cast<unsigned>(g.width)), head_dim(static_cast<int>(g.head_dim)), time(static_cast<int>(g.time_channels())),
        space(static_cast<int>(g.space_channels())), rows_at(2 * static_cast<int>(g.frames) * time),
        columns_at(rows_at + 2 * static_cast<int>(g.height) * space), step(static_cast<int>(4 * threads.x) % head_dim) {}
};

// Where the angles of one token lie in the table, less the channel of a head at which an axis begins.
struct TokenAngles {
  int t = 0, h = 0, w = 0;
  __device__ TokenAngles(const Turns& g, unsigned row) {
    if (g.table == nullptr) return;
    const unsigned token = row % g.tokens, frame = token / g.plane, place = token - frame * g.plane, y = place / g.line;
    t = 2 * static_cast<int>(frame) * g.time;
    h = g.rows_at + 2 * static_cast<int>(y) * g.space - g.time;
    w = g.columns_at + 2 * static_cast<int>(place - y * g.line) * g.space - g.time - g.space;
  }
  // Cosine and sine of the pair that begins at channel i of a head.
  __device__ float2 at(const Turns& g, int i) const {
    const float* p = g.table + (i < g.time ? t : i < g.time + g.space ? h : w) + i;
    return {p[0], p[(i < g.time ? g.time : g.space) + 1]};
  }
};

__device__ __forceinline__ void turn_pair(float& even, float& odd, float2 angle, bool back) {
  const float sine = back ? -angle.y : angle.y, was = even;
  even = fmaf(was, angle.x, -(odd * sine));
  odd = fmaf(odd, angle.x, was * sine);
}
// Turns a quad's two pairs, or back; i: the channel of a head at which it begins.
__device__ __forceinline__ void turn(Quad& q, const Turns& g, const TokenAngles& angles, int i, bool back) {
  turn_pair(q.v[0], q.v[1], angles.at(g, i), back);
  turn_pair(q.v[2], q.v[3], angles.at(g, i + 2 < g.head_dim ? i + 2 : 0), back);
}
__device__ __forceinline__ int next_channel(const Turns& g, int i) { return i + g.step < g.head_dim ? i + g.step : i + g.step - g.head_dim; }

template <int K, class T>
__global__ void __launch_bounds__(ForwardRows::kThreads) rms_rope_forward_kernel(T* y, float* rstd, const T* x, const float* gain, Turns turns,
                                                                                 int width, float eps, bool aligned) {
  BlockSums block(prim::dynamic_shared<float>());
  const int64_t at = int64_t{blockIdx.x} * width;
  RowQuads<K> row(block, x + at, width, aligned);
  const float scale = 1 / sqrtf(row.square / static_cast<float>(width) + eps);
  if (rstd != nullptr && threadIdx.x == 0) rstd[blockIdx.x] = scale;
  const TokenAngles angles(turns, blockIdx.x);
  int channel = quad_column(0) % turns.head_dim;
  MS_UNROLL
  for (int k = 0; k < K; ++k) {
    const int c = quad_column(k), left = width - c;
    const Quad g = load_quad(gain + c, left, aligned);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) row.v[k].v[i] = row.v[k].v[i] * scale * g.v[i];
    if (turns.table != nullptr && left > 0) turn(row.v[k], turns, angles, channel, false);
    channel = next_channel(turns, channel);
    store_quad(y + at + c, row.v[k], left, aligned);
  }
}

template <class T>
struct BackwardArgs {
  T* dx;
  float* sums;
  const float* dy;
  const T* x;
  const float *rstd, *gain;
  Turns turns;
  RowPieces pieces;
  int width;
  bool aligned;
};

// A row in the place where it came. Not unrolled: where angles lie for each quad would be kept in registers for all rows.
template <int K>
__device__ __forceinline__ void turn_back(const Turns& g, const RowAhead<K, float>& row, unsigned r, int channel, int width) {
  const TokenAngles angles(g, r);
  MS_NO_UNROLL
  for (int k = 0; k < K && quad_column(k) < width; ++k) {
    Quad q = row.quad(k);
    turn(q, g, angles, channel, true);
    row.put(k, q);
    channel = next_channel(g, channel);
  }
}

// A block a piece of rows: a thread keeps its columns' sums, and fetches the next row as soon as it has read this one.
template <int K, class T>
__global__ void __launch_bounds__(BackwardRows::kThreads, 1) rms_rope_backward_kernel(BackwardArgs<T> a) {
  auto* memory = prim::dynamic_shared<unsigned char>();
  BlockSums block(reinterpret_cast<float*>(memory));
  memory += BlockSums::kShared;
  const RowAhead<K, float> dy_ahead(memory);
  RowAhead<K, T> x(memory), x_ahead(memory);
  const RowPiece piece(a.pieces, blockIdx.x);
  const auto fetch = [&](int64_t row, const RowAhead<K, T>& to) {
    dy_ahead.fetch(a.dy + row * a.width, a.width, a.aligned);
    to.fetch(a.x + row * a.width, a.width, a.aligned);
    prim::cp_async_commit();
  };
  const int channel = quad_column(0) % a.turns.head_dim;
  Quad dgain[K], dbias[K];
  fetch(piece.begin, x);
  for (int64_t r = piece.begin; r < piece.end; ++r) {
    const float scale = a.rstd[r];
    Quad g[K];
    float inner = 0;
    prim::cp_async_wait<0>();
    if (a.turns.table != nullptr) turn_back(a.turns, dy_ahead, static_cast<unsigned>(r), channel, a.width);
    MS_UNROLL
    for (int k = 0; k < K; ++k) {
      g[k] = dy_ahead.quad(k);
      const Quad v = x.quad(k), w = load_quad(a.gain + quad_column(k), a.width - quad_column(k), a.aligned);
      MS_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float gx = g[k].v[i] * v.v[i];
        inner = fmaf(gx, w.v[i], inner);
        dgain[k].v[i] = fmaf(gx, scale, dgain[k].v[i]);
        g[k].v[i] *= w.v[i];
      }
    }
    const float pull = block.of(inner) * scale * scale * scale / static_cast<float>(a.width);
    if (r + 1 < piece.end) fetch(r + 1, x_ahead);
    MS_UNROLL
    for (int k = 0; k < K; ++k) {
      const Quad v = x.quad(k);
      MS_UNROLL
      for (int i = 0; i < 4; ++i) {
        g[k].v[i] = fmaf(-v.v[i], pull, g[k].v[i] * scale);
        dbias[k].v[i] += g[k].v[i];
      }
      store_quad(a.dx + r * a.width + quad_column(k), g[k], a.width - quad_column(k), a.aligned);
    }
    x.swap(x_ahead);
  }
  float* to = a.sums + int64_t{blockIdx.x} * 2 * a.width;
  MS_UNROLL
  for (int k = 0; k < K; ++k) {
    const int c = quad_column(k), left = a.width - c;
    store_quad(to + c, dgain[k], left, a.aligned);
    store_quad(to + a.width + c, dbias[k], left, a.aligned);
  }
}

// A thread a pair of channels at a position.
__global__ void __launch_bounds__(256) rope_table_kernel(float* table, int64_t positions, int64_t first, int n) {
  const int64_t i = element_index(), p = i / (n / 2);
  if (p >= positions) return;
  const int pair = static_cast<int>(i % (n / 2));
  const Sinusoid s(static_cast<double>(first + p) * frequency(2.0 * pair / n));
  float* at = table + 2 * p * n + 2 * pair;
  at[0] = at[1] = static_cast<float>(s.cosine);
  at[n + 1] = static_cast<float>(s.sine);
  at[n] = -at[n + 1];
}

}  // namespace

namespace cuda {

void rope_table(Stream& stream, float* table, RopeGrid grid) {
  const int64_t positions[3] = {grid.frames, grid.height, grid.width}, first[3] = {grid.first_frame, 0, 0};
  const int64_t channels[3] = {grid.time_channels(), grid.space_channels(), grid.space_channels()};
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t n = channels[axis], pairs = positions[axis] * (n / 2);
    if (pairs > 0)
      prim::launch(rope_table_kernel, element_grid(pairs), element_block(), 0, stream, table, positions[axis], first[axis], static_cast<int>(n));
    table += 2 * positions[axis] * n;
  }
}

void rms_rope_forward(Stream& stream, void* y, float* rstd, const void* x, const float* gain, const float* table, RopeGrid grid,
                      int64_t rows, float eps, DType dtype) {
  const int64_t width = grid.heads * grid.head_dim;
  if (rows == 0 || width == 0) return;
  const ForwardRows block(width);
  const dim3 blocks(count32(rows, "rows"));
  by_type(dtype, [&]<class T>(T*) {
    auto* out = static_cast<T*>(y);
    const auto* in = static_cast<const T*>(x);
    block.with_quads([&](auto k) {
      prim::launch(rms_rope_forward_kernel<k, T>, blocks, block.threads, BlockSums::kShared, stream, out, rstd, in, gain,
                   Turns(table, grid, block.threads),
                   static_cast<int>(width), eps, quads_aligned(width, out, in, gain));
    });
  });
}

void rms_rope_backward(Stream& stream, void* dx, float* dgain, float* dbias, float* scratch, const float* dy, const void* x_kept,
                       const float* rstd, const float* gain, const float* table, RopeGrid grid, int64_t rows, DType dtype) {
  const int64_t width = grid.heads * grid.head_dim;
  if (rows == 0 || width == 0) return;
  const BackwardRows block(width);
  by_type(dtype, [&]<class T>(T*) {
    auto* out = static_cast<T*>(dx);
    const auto* x = static_cast<const T*>(x_kept);
    const BackwardArgs<T> a{out, scratch, dy, x, rstd, gain, Turns(table, grid, block.threads), RowPieces(rows, rows), static_cast<int>(width),
                            quads_aligned(width, out, scratch, dy, x, gain)};
    block.with_quads([&](auto k) {
      prim::launch(rms_rope_backward_kernel<k, T>, dim3(a.pieces.count), block.threads,
                   BlockSums::kShared + RowAhead<k, float>::shared(block) + 2 * RowAhead<k, T>::shared(block), stream, a);
    });
  });
  add_piece_sums(stream, dgain, 0, rows, rows, 2 * width, 0, width, scratch);
  add_piece_sums(stream, dbias, 0, rows, rows, 2 * width, width, width, scratch);
}

}  // namespace cuda
}  // namespace megaslide
