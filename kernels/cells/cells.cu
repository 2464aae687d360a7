#include "kernels/cells/cells.h"

#include <cmath>

#include "kernels/elements.cuh"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

// Where a warp's window begins, and the image that it lies in.
struct WindowPlace {
  const float* image;
  int top, left;
  __device__ WindowPlace(const float* in, const CellWindows& w, int64_t result) {
    const int64_t column = result % w.columns, line = result / w.columns, row = line % w.rows;
    image = in + line / w.rows * w.height * w.width * w.channels;
    top = static_cast<int>(row * w.stride - w.before_y), left = static_cast<int>(column * w.stride - w.before_x);
  }
};
__device__ __forceinline__ bool inside(const CellWindows& w, int y, int x) { return y >= 0 && y < w.height && x >= 0 && x < w.width; }

// A warp a window, a lane kUnit channels of a cell at a time.
template <int kUnit>
__global__ void __launch_bounds__(32 * kWarpsPerBlock) unfold_cells_kernel(float* out, const float* in, CellWindows w) {
  const int64_t result = warp_unit();
  if (result >= w.results()) return;
  const WindowPlace p(in, w, result);
  const int channels = static_cast<int>(w.channels), side = static_cast<int>(w.side), columns = static_cast<int>(w.window());
  float* to = out + result * columns;
  for (int k = kUnit * static_cast<int>(threadIdx.x % 32); k < columns; k += kUnit * 32) {
    const int y = p.top + k / channels / side, x = p.left + k / channels % side;
    const float* from = p.image + (y * w.width + x) * channels + k % channels;
    if constexpr (kUnit == 4)
      store_aligned_quad(to + k, inside(w, y, x) ? load_aligned_quad(from) : Quad());
    else
      to[k] = inside(w, y, x) ? *from : 0.0f;
  }
}

// A warp a window, a lane a channel at a time.
__global__ void __launch_bounds__(32 * kWarpsPerBlock) max_pool_cells_kernel(float* out, const float* in, CellWindows w) {
  const int64_t result = warp_unit();
  if (result >= w.results()) return;
  const WindowPlace p(in, w, result);
  const int side = static_cast<int>(w.side);
  for (int64_t c = threadIdx.x % 32; c < w.channels; c += 32) {
    float largest = -INFINITY;
    for (int i = 0; i < side; ++i)
      for (int j = 0; j < side; ++j) {
        const int y = p.top + i, x = p.left + j;
        const float v = inside(w, y, x) ? p.image[(y * w.width + x) * w.channels + c] : 0.0f;
        largest = largest < v ? v : largest;
      }
    out[result * w.channels + c] = largest;
  }
}

__device__ __forceinline__ double warp_sum(double x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(prim::kFullMask, x, offset);
  return x;
}

constexpr int kNormWarps = 8;

struct GroupNorm {
  float* y;
  const float *x, *addend, *weight, *bias;
  GroupNormShape shape;
  float eps;
  bool relu;
  double share;  // of a value in its group
};

// A warp a group of a sample, the blocks' warps neighbouring ones, whose channels share sectors of memory. It comes by three times, the
// last two from a cache. y may be x or addend.
__global__ void __launch_bounds__(32 * kNormWarps) group_norm_kernel(GroupNorm a) {
  const GroupNormShape& s = a.shape;
  const int64_t unit = int64_t{blockIdx.x} * kNormWarps + threadIdx.x / 32;
  if (unit >= s.samples * s.groups) return;
  const unsigned group = static_cast<unsigned>(s.channels / s.groups), n = group * static_cast<unsigned>(s.cells), lane = threadIdx.x % 32;
  const unsigned channel = static_cast<unsigned>(unit % s.groups) * group;
  const int64_t first = unit / s.groups * s.cells * s.channels + channel;
  const auto at = [&](unsigned i) { return first + i / group * s.channels + i % group; };
  double sum = 0, squares = 0;
  for (unsigned i = lane; i < n; i += 32) sum += static_cast<double>(a.x[at(i)]);
  // About the mean as rounded: its error is no larger than that of the values themselves.
  const float mean = static_cast<float>(warp_sum(sum) * a.share);
  for (unsigned i = lane; i < n; i += 32) {
    const double d = static_cast<double>(a.x[at(i)] - mean);
    squares += d * d;
  }
  const double scale = 1 / sqrt(warp_sum(squares) * a.share + static_cast<double>(a.eps));
  for (unsigned i = lane; i < n; i += 32) {
    const unsigned c = channel + i % group;
    const float factor = static_cast<float>(scale * static_cast<double>(a.weight[c]));
    const float v = (a.x[at(i)] - mean) * factor + a.bias[c] + (a.addend == nullptr ? 0.0f : a.addend[at(i)]);
    a.y[at(i)] = a.relu && v < 0 ? 0.0f : v;
  }
}

void check_windows(const CellWindows& w) {
  count32(w.window() + 128, "values of a window");
  count32((w.rows * w.stride + w.side) + w.before_y + w.height, "rows of cells");
  count32((w.columns * w.stride + w.side) + w.before_x + w.width, "columns of cells");
}

}  // namespace

namespace cuda {

void unfold_cells(Stream& stream, float* out, const float* in, CellWindows w) {
  if (w.results() == 0 || w.window() == 0) return;
  check_windows(w);
  const auto kernel = quads_aligned(w.channels, out, in) ? &unfold_cells_kernel<4> : &unfold_cells_kernel<1>;
  prim::launch(kernel, warp_grid(count32(w.results(), "windows")), warp_block(), 0, stream, out, in, w);
}

void max_pool_cells(Stream& stream, float* out, const float* in, CellWindows w) {
  if (w.results() == 0 || w.channels == 0) return;
  check_windows(w);
  prim::launch(max_pool_cells_kernel, warp_grid(count32(w.results(), "windows")), warp_block(), 0, stream, out, in, w);
}

void group_norm_forward(Stream& stream, float* y, const float* x, const float* addend, const float* weight, const float* bias, GroupNormShape s,
                        float eps, bool relu) {
  MS_CHECK(s.channels <= kGroupNormMaxChannels && s.channels % s.groups == 0, "{} channels in {} groups", s.channels, s.groups);
  const int64_t units = s.samples * s.groups;
  if (units * s.cells * s.channels == 0) return;
  const unsigned values = count32(s.cells * s.channels / s.groups + 32, "values of a group") - 32;
  prim::launch(group_norm_kernel, dim3(count32((units + kNormWarps - 1) / kNormWarps, "groups")), dim3(32 * kNormWarps), 0, stream,
               GroupNorm{y, x, addend, weight, bias, s, eps, relu, 1.0 / values});
}

}  // namespace cuda
}  // namespace megaslide
