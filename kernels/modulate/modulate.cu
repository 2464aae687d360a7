#include "kernels/modulate/modulate.h"

#include "kernels/memory/row_piece.cuh"
#include "kernels/memory/row_sums_cuda.h"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

// Vectors of a sample: small, an element a thread.
struct Slots {
  int64_t batch, slots, e_slots, width;
  __device__ int64_t e_index(int64_t b, int64_t s, int64_t c) const { return (b * e_slots + (e_slots == 1 ? 0 : s)) * width + c; }
};

template <class T>
__global__ void __launch_bounds__(256) modulation_forward_kernel(float* m, const T* table, const float* e, Slots g, uint32_t plus_one) {
  const int64_t i = element_index(), row = g.slots * g.width;
  if (i >= g.batch * row) return;
  const int64_t b = i / row, at = i % row, s = at / g.width;
  const float one = (plus_one >> s & 1u) != 0 ? 1.0f : 0.0f;
  m[i] = one + (prim::widen(table[at]) + e[g.e_index(b, s, at % g.width)]);
}

__global__ void __launch_bounds__(256) modulation_table_gradient_kernel(float* dtable, const float* dm, Slots g) {
  const int64_t i = element_index(), row = g.slots * g.width;
  if (i >= row) return;
  float sum = dtable[i];
  for (int64_t b = 0; b < g.batch; ++b) sum += dm[b * row + i];
  dtable[i] = sum;
}

__global__ void __launch_bounds__(256) modulation_embedding_gradient_kernel(float* de, const float* dm, Slots g) {
  const int64_t i = element_index();
  if (i >= g.batch * g.e_slots * g.width) return;
  if (g.e_slots != 1) {
    de[i] += dm[i];
    return;
  }
  const int64_t b = i / g.width, c = i % g.width;
  float sum = de[i];
  for (int64_t s = 0; s < g.slots; ++s) sum += dm[(b * g.slots + s) * g.width + c];
  de[i] = sum;
}

constexpr int kColumnThreads = 128;
constexpr int64_t kForwardRows = 4;  // of a thread: its columns of the gate serve them all

struct Columns {
  int64_t at;
  int left;
  __device__ explicit Columns(int64_t width) : at(4 * (int64_t{blockIdx.y} * kColumnThreads + threadIdx.x)) {
    left = static_cast<int>(width - at < 4 ? width - at : 4);
  }
};
dim3 column_grid(int64_t rows, int64_t width) {
  return dim3(count32(rows, "rows"), static_cast<unsigned>((width + 4 * kColumnThreads - 1) / (4 * kColumnThreads)));
}

template <class T>
__global__ void __launch_bounds__(kColumnThreads) gated_add_forward_kernel(float* y, T* kept, const float* x, const float* a, const float* gate,
                                                                           int64_t rows, int64_t width, unsigned group_rows,
                                                                           int64_t group_stride, bool aligned) {
  const Columns c(width);
  if (c.left <= 0) return;
  const int64_t first = blockIdx.x * kForwardRows, last = first + kForwardRows < rows ? first + kForwardRows : rows;
  for (int64_t r = first; r < last; ++r) {
    const int64_t at = r * width + c.at, group = static_cast<unsigned>(r) / group_rows;
    Quad v = load_quad(a + at, c.left, aligned), sum = load_quad(x + at, c.left, aligned), g{{1, 1, 1, 1}};
    if (gate != nullptr) g = load_quad(gate + group * group_stride + c.at, c.left, aligned);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) {
      v.v[i] = rounded(v.v[i], kept);
      sum.v[i] = fmaf(g.v[i], v.v[i], sum.v[i]);
    }
    if (kept != nullptr) store_quad(kept + at, v, c.left, aligned);
    store_quad(y + at, sum, c.left, aligned);
  }
}

// A piece of rows, a thread four columns.
template <class T>
__global__ void __launch_bounds__(kColumnThreads) gated_add_backward_kernel(T* da, float* sums, const float* dy, const T* kept, const float* gate,
                                                                            RowPieces pieces, int64_t width, int64_t group_stride,
                                                                            bool aligned) {
  const Columns c(width);
  if (c.left <= 0) return;
  const RowPiece piece(pieces, blockIdx.x);
  const Quad g = load_quad(gate + piece.group * group_stride + c.at, c.left, aligned);
  Quad dgate, dbias;
  for (int64_t r = piece.begin; r < piece.end; ++r) {
    const int64_t at = r * width + c.at;
    Quad d = load_quad(dy + at, c.left, aligned);
    const Quad a = load_quad(kept + at, c.left, aligned);
    MS_UNROLL
    for (int i = 0; i < 4; ++i) {
      dgate.v[i] = fmaf(d.v[i], a.v[i], dgate.v[i]);
      d.v[i] *= g.v[i];
      dbias.v[i] += d.v[i];
    }
    store_quad(da + at, d, c.left, aligned);
  }
  float* to = sums + int64_t{blockIdx.x} * 2 * width + c.at;
  store_quad(to, dgate, c.left, aligned);
  store_quad(to + width, dbias, c.left, aligned);
}

}  // namespace

namespace cuda {

void modulation_forward(Stream& stream, float* m, const void* table, const float* e, int64_t batch, int64_t slots, int64_t e_slots,
                        int64_t width, uint32_t plus_one, DType dtype) {
  const int64_t n = batch * slots * width;
  if (n == 0) return;
  by_type(dtype, [&]<class T>(T*) {
    prim::launch(modulation_forward_kernel<T>, element_grid(n), element_block(), 0, stream, m, static_cast<const T*>(table), e,
                 Slots{batch, slots, e_slots, width}, plus_one);
  });
}

void modulation_backward(Stream& stream, float* dtable, float* de, const float* dm, int64_t batch, int64_t slots, int64_t e_slots,
                         int64_t width) {
  if (batch * slots * width == 0) return;
  const Slots g{batch, slots, e_slots, width};
  prim::launch(modulation_table_gradient_kernel, element_grid(slots * width), element_block(), 0, stream, dtable, dm, g);
  prim::launch(modulation_embedding_gradient_kernel, element_grid(batch * e_slots * width), element_block(), 0, stream, de, dm, g);
}

void gated_add_forward(Stream& stream, float* y, void* a_kept, const float* x, const float* a, const float* gate, int64_t rows,
                       int64_t width, int64_t group_rows, int64_t group_stride, DType dtype) {
  if (rows == 0 || width == 0) return;
  by_type(dtype, [&]<class T>(T*) {
    auto* kept = static_cast<T*>(a_kept);
    prim::launch(gated_add_forward_kernel<T>, column_grid((count32(rows, "rows") + kForwardRows - 1) / kForwardRows, width),
                 dim3(kColumnThreads), 0, stream, y, kept, x, a, gate, rows, width, count32(group_rows, "rows"), group_stride,
                 group_stride % 4 == 0 && quads_aligned(width, y, kept, x, a, gate));
  });
}

void gated_add_backward(Stream& stream, void* da, float* dgate, float* dbias, float* scratch, const float* dy, const void* a_kept,
                        const float* gate, int64_t rows, int64_t width, int64_t group_rows, int64_t group_stride, DType dtype) {
  if (rows == 0 || width == 0) return;
  const RowPieces pieces(rows, group_rows);
  by_type(dtype, [&]<class T>(T*) {
    auto* out = static_cast<T*>(da);
    const auto* kept = static_cast<const T*>(a_kept);
    prim::launch(gated_add_backward_kernel<T>, column_grid(pieces.count, width), dim3(kColumnThreads), 0, stream, out, scratch, dy, kept,
                 gate, pieces, width, group_stride, group_stride % 4 == 0 && quads_aligned(width, out, scratch, dy, kept, gate));
  });
  add_piece_sums(stream, dgate, group_stride, rows, group_rows, 2 * width, 0, width, scratch);
  // The bias belongs to all samples: their pieces follow each other, so they are one group here.
  const int64_t all = int64_t{pieces.count} * kPieceRows;
  add_piece_sums(stream, dbias, 0, all, all, 2 * width, width, width, scratch);
}

}  // namespace cuda
}  // namespace megaslide
