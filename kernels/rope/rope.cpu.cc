#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope/rope.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/rope/rope.h"
#include "kernels/simd-inl.h"

#include <cmath>
#include <cstring>
#include <vector>

#ifndef MEGASLIDE_ROPE_ROW_ANGLES
#define MEGASLIDE_ROPE_ROW_ANGLES
namespace megaslide {
// The cosines and signed sines of one head at one token, gathered from the three axes of the table.
class RowAngles {
 public:
  RowAngles(const float* table, const RopeGrid& grid)
      : table_(table), grid_(grid), values_(static_cast<size_t>(2 * grid.head_dim)) {}
  bool rotates() const { return table_ != nullptr; }
  void move_to(int64_t row) {
    const int64_t token = row % (grid_.frames * grid_.height * grid_.width);
    const int64_t t = token / (grid_.height * grid_.width), h = token / grid_.width % grid_.height,
                  w = token % grid_.width;
    const int64_t ct = grid_.time_channels(), cs = grid_.space_channels();
    const float* rows = table_ + 2 * grid_.frames * ct;
    const float* columns = rows + 2 * grid_.height * cs;
    if (t != t_) take(table_ + 2 * t * ct, 0, ct);
    if (h != h_) take(rows + 2 * h * cs, ct, cs);
    take(columns + 2 * w * cs, ct + cs, cs);
    t_ = t;
    h_ = h;
  }
  const float* cosines() const { return values_.data(); }
  const float* sines() const { return values_.data() + grid_.head_dim; }

 private:
  void take(const float* from, int64_t at, int64_t n) {
    std::memcpy(values_.data() + at, from, static_cast<size_t>(n) * sizeof(float));
    std::memcpy(values_.data() + grid_.head_dim + at, from + n, static_cast<size_t>(n) * sizeof(float));
  }
  const float* table_;
  RopeGrid grid_;
  std::vector<float> values_;
  int64_t t_ = -1, h_ = -1;
};
}  // namespace megaslide
#endif

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

template <class T>
void ForwardRows(T* y, float* rstd, const T* x, const float* gain, const float* table, const RopeGrid& grid,
                 int64_t begin, int64_t end, float eps) {
  const int64_t width = grid.heads * grid.head_dim;
  RowAngles angles(table, grid);
  for (int64_t r = begin; r < end; ++r) {
    const T* row = x + r * width;
    T* out = y + r * width;
    RowSum square;
    ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
      const auto v = LoadFloat(d, row + c);
      square.at(d) = hn::MulAdd(v, v, square.at(d));
    });
    const float scale = 1.0f / std::sqrt(square.total() / static_cast<float>(width) + eps);
    if (rstd) rstd[r] = scale;
    if (!angles.rotates()) {
      ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
        StoreFloat(hn::Mul(hn::Mul(LoadFloat(d, row + c), hn::Set(d, scale)), hn::LoadU(d, gain + c)), d, out + c);
      });
      continue;
    }
#if HWY_TARGET == HWY_SCALAR
    // Lanes come singly here: in place, the first of a pair would overwrite what the second reads.
    const std::vector<T> copy(row, row + width);
    row = copy.data();
#endif
    angles.move_to(r);
    const float *cosines = angles.cosines(), *sines = angles.sines();
    for (int64_t first = 0; first < width; first += grid.head_dim) {
      ForEachPair(grid.head_dim, [&](auto d, int64_t i) HWY_ATTR {
        const auto value = [&](int64_t at) HWY_ATTR {
          return hn::Mul(hn::Mul(LoadFloat(d, row + first + at), hn::Set(d, scale)), hn::LoadU(d, gain + first + at));
        };
        const auto across = hn::Mul(ExchangePairs(d, i, value), hn::LoadU(d, sines + i));
        StoreFloat(hn::MulAdd(value(i), hn::LoadU(d, cosines + i), across), d, out + first + i);
      });
    }
  }
}

void RmsRopeForwardRows(void* y, DType dtype, float* rstd, const void* x, const float* gain, const float* table,
                        const RopeGrid& grid, int64_t begin, int64_t end, float eps) {
  if (dtype == DType::kBF16)
    ForwardRows(static_cast<bf16*>(y), rstd, static_cast<const bf16*>(x), gain, table, grid, begin, end, eps);
  else
    ForwardRows(static_cast<float*>(y), rstd, static_cast<const float*>(x), gain, table, grid, begin, end, eps);
}

// sums: dgain (width), then dbias (width).
template <class T>
void BackwardRows(T* dx, float* sums, const float* dy, const T* x, const float* rstd, const float* gain,
                  const float* table, const RopeGrid& grid, int64_t begin, int64_t end) {
  const int64_t width = grid.heads * grid.head_dim;
  float *dgain = sums, *dbias = sums + width;
  RowAngles angles(table, grid);
  std::vector<float> turned(static_cast<size_t>(width));
  for (int64_t r = begin; r < end; ++r) {
    const float* g = dy + r * width;
    if (angles.rotates()) {
      angles.move_to(r);
      const float *cosines = angles.cosines(), *sines = angles.sines();
      for (int64_t first = 0; first < width; first += grid.head_dim) {
        ForEachPair(grid.head_dim, [&](auto d, int64_t i) HWY_ATTR {
          const auto value = [&](int64_t j) HWY_ATTR { return hn::LoadU(d, g + first + j); };
          const auto along = hn::Mul(value(i), hn::LoadU(d, cosines + i));
          hn::StoreU(hn::NegMulAdd(ExchangePairs(d, i, value), hn::LoadU(d, sines + i), along), d,
                     turned.data() + first + i);
        });
      }
      g = turned.data();
    }
    const T* row = x + r * width;
    RowSum inner;
    const float scale = rstd[r];
    ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
      const auto xv = LoadFloat(d, row + c);
      const auto gx = hn::Mul(hn::LoadU(d, g + c), xv);
      inner.at(d) = hn::MulAdd(gx, hn::LoadU(d, gain + c), inner.at(d));
      hn::StoreU(hn::MulAdd(gx, hn::Set(d, scale), hn::LoadU(d, dgain + c)), d, dgain + c);
    });
    const float pull = inner.total() * scale * scale * scale / static_cast<float>(width);
    ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
      const auto u = hn::Mul(hn::LoadU(d, g + c), hn::LoadU(d, gain + c));
      const auto v = hn::NegMulAdd(LoadFloat(d, row + c), hn::Set(d, pull), hn::Mul(u, hn::Set(d, scale)));
      hn::StoreU(hn::Add(v, hn::LoadU(d, dbias + c)), d, dbias + c);
      StoreFloat(v, d, dx + r * width + c);
    });
  }
}

void RmsRopeBackwardRows(void* dx, DType dtype, float* sums, const float* dy, const void* x, const float* rstd,
                         const float* gain, const float* table, const RopeGrid& grid, int64_t begin, int64_t end) {
  if (dtype == DType::kBF16)
    BackwardRows(static_cast<bf16*>(dx), sums, dy, static_cast<const bf16*>(x), rstd, gain, table, grid, begin, end);
  else
    BackwardRows(static_cast<float*>(dx), sums, dy, static_cast<const float*>(x), rstd, gain, table, grid, begin, end);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(RmsRopeForwardRows);
HWY_EXPORT(RmsRopeBackwardRows);

namespace cpu {

void rope_table(Stream&, float* table, RopeGrid grid) {
  const int64_t positions[3] = {grid.frames, grid.height, grid.width}, first[3] = {grid.first_frame, 0, 0};
  const int64_t channels[3] = {grid.time_channels(), grid.space_channels(), grid.space_channels()};
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t n = channels[axis];
    for (int64_t i = 0; i < n / 2; ++i) {
      const double frequency = std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(n));
      for (int64_t p = 0; p < positions[axis]; ++p) {
        const double theta = static_cast<double>(first[axis] + p) * frequency;
        float* at = table + 2 * p * n + 2 * i;
        at[0] = at[1] = static_cast<float>(std::cos(theta));
        at[n + 1] = static_cast<float>(std::sin(theta));
        at[n] = -at[n + 1];
      }
    }
    table += 2 * positions[axis] * n;
  }
}

void rms_rope_forward(Stream& stream, void* y, float* rstd, const void* x, const float* gain, const float* table,
                      RopeGrid grid, int64_t rows, float eps, DType dtype) {
  const auto run = HWY_DYNAMIC_DISPATCH(RmsRopeForwardRows);
  stream.parallel_for(rows, rows_grain(grid.heads * grid.head_dim), [&](int64_t begin, int64_t end) {
    run(y, dtype, rstd, x, gain, table, grid, begin, end, eps);
  });
}

void rms_rope_backward(Stream& stream, void* dx, float* dgain, float* dbias, float* scratch, const float* dy,
                       const void* x_kept, const float* rstd, const float* gain, const float* table, RopeGrid grid,
                       int64_t rows, DType dtype) {
  const int64_t width = grid.heads * grid.head_dim;
  const auto run = HWY_DYNAMIC_DISPATCH(RmsRopeBackwardRows);
  for_row_pieces(stream, rows, rows, 2 * width, scratch, [&](int64_t, int64_t begin, int64_t end, float* sums) {
    run(dx, dtype, sums, dy, x_kept, rstd, gain, table, grid, begin, end);
  });
  add_row_pieces(stream, dgain, 0, rows, rows, 2 * width, 0, width, scratch);
  add_row_pieces(stream, dbias, 0, rows, rows, 2 * width, width, width, scratch);
}

}  // namespace cpu
}  // namespace megaslide
#endif
