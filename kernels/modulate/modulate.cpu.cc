#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/modulate/modulate.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/modulate/gated_rows.h"
#include "kernels/modulate/modulate.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

template <class T>
void Forward(float* y, T* kept, const float* x, const float* a, const float* gate, int64_t rows, int64_t width) {
  const T* type = nullptr;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * width;
    ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
      const auto v = RoundTo(d, hn::LoadU(d, a + at + c), type);
      if (kept) StoreFloat(v, d, kept + at + c);
      const auto g = gate ? hn::LoadU(d, gate + c) : hn::Set(d, 1.0f);
      hn::StoreU(hn::MulAdd(g, v, hn::LoadU(d, x + at + c)), d, y + at + c);
    });
  }
}

// a starts at row `begin`, the others at row 0.
void GatedAddForwardRows(float* y, void* kept, const float* x, const float* a, const float* gate, int64_t begin,
                         int64_t end, int64_t width, DType dtype) {
  const int64_t at = begin * width;
  if (dtype == DType::kBF16)
    Forward(y + at, kept ? static_cast<bf16*>(kept) + at : nullptr, x + at, a, gate, end - begin, width);
  else
    Forward(y + at, kept ? static_cast<float*>(kept) + at : nullptr, x + at, a, gate, end - begin, width);
}

// sums: dgate (width), then dbias (width).
template <class T>
void BackwardRows(T* da, float* sums, const float* dy, const T* a, const float* gate, int64_t rows, int64_t width) {
  float *dgate = sums, *dbias = sums + width;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * width;
    ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
      const auto g = hn::LoadU(d, dy + at + c);
      const auto v = hn::Mul(g, hn::LoadU(d, gate + c));
      hn::StoreU(hn::MulAdd(g, LoadFloat(d, a + at + c), hn::LoadU(d, dgate + c)), d, dgate + c);
      hn::StoreU(hn::Add(v, hn::LoadU(d, dbias + c)), d, dbias + c);
      StoreFloat(v, d, da + at + c);
    });
  }
}

void GatedAddBackwardRows(void* da, float* sums, const float* dy, const void* a, const float* gate, int64_t begin,
                          int64_t end, int64_t width, DType dtype) {
  const int64_t at = begin * width;
  if (dtype == DType::kBF16)
    BackwardRows(static_cast<bf16*>(da) + at, sums, dy + at, static_cast<const bf16*>(a) + at, gate, end - begin,
                 width);
  else
    BackwardRows(static_cast<float*>(da) + at, sums, dy + at, static_cast<const float*>(a) + at, gate, end - begin,
                 width);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(GatedAddForwardRows);
HWY_EXPORT(GatedAddBackwardRows);

void gated_add_rows(float* y, void* a_kept, const float* x, const float* a, const float* gate, int64_t begin,
                    int64_t end, int64_t width, int64_t first_row, int64_t group_rows, int64_t group_stride,
                    DType dtype) {
  const auto run = HWY_DYNAMIC_DISPATCH(GatedAddForwardRows);
  for (int64_t r = begin; r < end;) {
    const int64_t group = (first_row + r) / group_rows, last = std::min(end, (group + 1) * group_rows - first_row);
    run(y, a_kept, x, a + (r - begin) * width, gate ? gate + group * group_stride : nullptr, r, last, width, dtype);
    r = last;
  }
}

namespace cpu {

void modulation_forward(Stream&, float* m, const void* table, const float* e, int64_t batch, int64_t slots,
                        int64_t e_slots, int64_t width, uint32_t plus_one, DType dtype) {
  const int64_t row = slots * width;
  convert_to_f32(m, table, dtype, row);
  for (int64_t b = batch - 1; b >= 0; --b) {
    for (int64_t s = 0; s < slots; ++s) {
      const float one = plus_one >> s & 1 ? 1.0f : 0.0f;
      const float* from = e + (b * e_slots + (e_slots == 1 ? 0 : s)) * width;
      for (int64_t c = 0; c < width; ++c) m[b * row + s * width + c] = one + (m[s * width + c] + from[c]);
    }
  }
}

void modulation_backward(Stream&, float* dtable, float* de, const float* dm, int64_t batch, int64_t slots,
                         int64_t e_slots, int64_t width) {
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t s = 0; s < slots; ++s) {
      const float* from = dm + (b * slots + s) * width;
      float* to = de + (b * e_slots + (e_slots == 1 ? 0 : s)) * width;
      for (int64_t c = 0; c < width; ++c) {
        dtable[s * width + c] += from[c];
        to[c] += from[c];
      }
    }
  }
}

void gated_add_forward(Stream& stream, float* y, void* a_kept, const float* x, const float* a, const float* gate,
                       int64_t rows, int64_t width, int64_t group_rows, int64_t group_stride, DType dtype) {
  stream.parallel_for(rows, rows_grain(width), [&](int64_t begin, int64_t end) {
    gated_add_rows(y, a_kept, x, a + begin * width, gate, begin, end, width, 0, group_rows, group_stride, dtype);
  });
}

void gated_add_backward(Stream& stream, void* da, float* dgate, float* dbias, float* scratch, const float* dy,
                        const void* a_kept, const float* gate, int64_t rows, int64_t width, int64_t group_rows,
                        int64_t group_stride, DType dtype) {
  const auto run = HWY_DYNAMIC_DISPATCH(GatedAddBackwardRows);
  for_row_pieces(stream, rows, group_rows, 2 * width, scratch,
                 [&](int64_t group, int64_t begin, int64_t end, float* sums) {
                   run(da, sums, dy, a_kept, gate + group * group_stride, begin, end, width, dtype);
                 });
  add_row_pieces(stream, dgate, group_stride, rows, group_rows, 2 * width, 0, width, scratch);
  // The bias belongs to all samples: their pieces follow each other, so they are one group here.
  const int64_t pieces = row_pieces(rows, group_rows);
  add_row_pieces(stream, dbias, 0, pieces * kPieceRows, pieces * kPieceRows, 2 * width, width, width, scratch);
}

}  // namespace cpu
}  // namespace megaslide
#endif
