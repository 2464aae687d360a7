// Small images in batches, channels innermost, (N,H,W,C) fp32: windows of cells as rows of a product (a convolution is then a
// linear layer), their maximum, and group normalisation.
#pragma once
#include <cstdint>

#include "base/host_device.h"
#include "kernels/kernel.h"

namespace megaslide {

// Result (r,c) sees the square of `side` cells that begins at (stride·r − before_y, stride·c − before_x); cells outside are 0.
struct CellWindows {
  int64_t samples = 0, height = 0, width = 0, channels = 0;  // N H W C
  int64_t side = 1, stride = 1, before_y = 0, before_x = 0;
  int64_t rows = 0, columns = 0;  // of results
  MS_HOST_DEVICE int64_t results() const { return samples * rows * columns; }
  MS_HOST_DEVICE int64_t window() const { return side * side * channels; }
};
// Padding "same" as TensorFlow has it: ⌈n/stride⌉ results an axis, the odd cell of padding at the end.
CellWindows same_windows(int64_t samples, int64_t height, int64_t width, int64_t channels, int64_t side, int64_t stride);

// Column (i·side + j)·C + c of a row is channel c of cell (i,j) of the window. Overwritten.
using UnfoldCells = void(Stream&, float* out /*(N·rows·columns, side·side·C)*/, const float* in /*(N,H,W,C)*/, CellWindows w);
// out = max over the window of each channel, cells outside as 0. Overwritten.
using MaxPoolCells = void(Stream&, float* out /*(N,rows,columns,C)*/, const float* in /*(N,H,W,C)*/, CellWindows w);

struct GroupNormShape {
  int64_t samples = 0, cells = 0, channels = 0, groups = 1;  // C is a multiple of the groups
};
inline constexpr int64_t kGroupNormMaxChannels = 1024;
// û = (x − mean)·(var + eps)^−½ over a sample's cells and the C/G channels of a group (biased variance; both in fp64),
// y = û ⊙ weight + bias (+ addend), and max(y, 0) when `relu`. y may be x or addend; addend may be nullptr.
using GroupNormForward = void(Stream&, float* y /*(N,cells,C)*/, const float* x /*(N,cells,C)*/, const float* addend /*(N,cells,C)*/,
                              const float* weight /*(C)*/, const float* bias /*(C)*/, GroupNormShape shape, float eps, bool relu);

namespace cpu {
UnfoldCells unfold_cells;
MaxPoolCells max_pool_cells;
GroupNormForward group_norm_forward;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL UnfoldCells unfold_cells;
MS_OPTIONAL MaxPoolCells max_pool_cells;
MS_OPTIONAL GroupNormForward group_norm_forward;
}  // namespace cuda

// The plain twins, one value after the other, fp64 inside.
namespace reference {
void unfold_cells(float* out, const float* in, const CellWindows& w);
void max_pool_cells(float* out, const float* in, const CellWindows& w);
void group_norm_forward(float* y, const float* x, const float* addend, const float* weight, const float* bias, const GroupNormShape& shape,
                        double eps, bool relu);
}  // namespace reference

inline Cost unfold_cells_cost(float*, const float*, CellWindows w) {
  return {KernelClass::kVector, 0, 4.0 * static_cast<double>(w.results() * w.window() + w.samples * w.height * w.width * w.channels)};
}
inline Cost max_pool_cells_cost(float*, const float*, CellWindows w) {
  return {KernelClass::kVector, static_cast<double>(w.results() * w.window()),
          4.0 * static_cast<double>(w.results() * w.channels + w.samples * w.height * w.width * w.channels)};
}
inline Cost group_norm_forward_cost(float*, const float*, const float* addend, const float*, const float*, GroupNormShape s, float, bool) {
  const auto n = static_cast<double>(s.samples * s.cells * s.channels);
  return {KernelClass::kVector, 8 * n, (addend == nullptr ? 8.0 : 12.0) * n};
}

inline constexpr Kernel<UnfoldCells> unfold_cells{"unfold_cells", &cpu::unfold_cells, &cuda::unfold_cells, &unfold_cells_cost};
inline constexpr Kernel<MaxPoolCells> max_pool_cells{"max_pool_cells", &cpu::max_pool_cells, &cuda::max_pool_cells, &max_pool_cells_cost};
inline constexpr Kernel<GroupNormForward> group_norm_forward{"group_norm_forward", &cpu::group_norm_forward, &cuda::group_norm_forward,
                                                             &group_norm_forward_cost};

}  // namespace megaslide
