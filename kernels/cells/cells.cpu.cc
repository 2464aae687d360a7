#include <algorithm>
#include <cmath>

#include "kernels/cells/cells.h"

namespace megaslide {
namespace {

constexpr int64_t kPieceElements = 16384;

int64_t same_before(int64_t n, int64_t side, int64_t stride) {
  return std::max<int64_t>(0, ((n + stride - 1) / stride - 1) * stride + side - n) / 2;
}

// The part of a window of `side` cells from `first` on that lies inside [0, n).
struct Inside {
  int64_t begin, end;  // within the window
  Inside(int64_t first, int64_t side, int64_t n) : begin(std::clamp<int64_t>(-first, 0, side)), end(std::clamp<int64_t>(n - first, begin, side)) {}
};

}  // namespace

CellWindows same_windows(int64_t samples, int64_t height, int64_t width, int64_t channels, int64_t side, int64_t stride) {
  return {.samples = samples,
          .height = height,
          .width = width,
          .channels = channels,
          .side = side,
          .stride = stride,
          .before_y = same_before(height, side, stride),
          .before_x = same_before(width, side, stride),
          .rows = (height + stride - 1) / stride,
          .columns = (width + stride - 1) / stride};
}

namespace cpu {

void unfold_cells(Stream& stream, float* out, const float* in, CellWindows w) {
  const int64_t c = w.channels, grain = std::max<int64_t>(1, kPieceElements / (w.columns * w.window()));
  stream.parallel_for(w.samples * w.rows, grain, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* image = in + row / w.rows * w.height * w.width * c;
      const int64_t y = row % w.rows * w.stride - w.before_y;
      for (int64_t column = 0; column < w.columns; ++column) {
        float* to = out + (row * w.columns + column) * w.window();
        const int64_t x = column * w.stride - w.before_x;
        const Inside inside(x, w.side, w.width);
        for (int64_t i = 0; i < w.side; ++i, to += w.side * c) {
          if (y + i < 0 || y + i >= w.height) {
            std::fill_n(to, w.side * c, 0.0f);
            continue;
          }
          std::fill_n(to, inside.begin * c, 0.0f);
          std::copy_n(image + ((y + i) * w.width + x + inside.begin) * c, (inside.end - inside.begin) * c, to + inside.begin * c);
          std::fill_n(to + inside.end * c, (w.side - inside.end) * c, 0.0f);
        }
      }
    }
  });
}

void max_pool_cells(Stream& stream, float* out, const float* in, CellWindows w) {
  const int64_t c = w.channels, grain = std::max<int64_t>(1, kPieceElements / (w.columns * w.window()));
  stream.parallel_for(w.samples * w.rows, grain, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* image = in + row / w.rows * w.height * w.width * c;
      const int64_t y = row % w.rows * w.stride - w.before_y;
      const Inside down(y, w.side, w.height);
      for (int64_t column = 0; column < w.columns; ++column) {
        float* to = out + (row * w.columns + column) * c;
        const int64_t x = column * w.stride - w.before_x;
        const Inside across(x, w.side, w.width);
        const bool all = down.end - down.begin == w.side && across.end - across.begin == w.side;
        std::fill_n(to, c, all ? -HUGE_VALF : 0.0f);
        for (int64_t i = down.begin; i < down.end; ++i)
          for (int64_t j = across.begin; j < across.end; ++j) {
            const float* from = image + ((y + i) * w.width + x + j) * c;
            for (int64_t k = 0; k < c; ++k) to[k] = std::max(to[k], from[k]);
          }
      }
    }
  });
}

void group_norm_forward(Stream& stream, float* y, const float* x, const float* addend, const float* weight, const float* bias, GroupNormShape s,
                        float eps, bool relu) {
  MS_CHECK(s.channels <= kGroupNormMaxChannels && s.channels % s.groups == 0, "{} channels in {} groups", s.channels, s.groups);
  stream.parallel_for(s.samples, std::max<int64_t>(1, kPieceElements / (s.cells * s.channels)), [=](int64_t begin, int64_t end) {
    double sums[kGroupNormMaxChannels];
    float mean[kGroupNormMaxChannels], factor[kGroupNormMaxChannels];
    const int64_t c = s.channels, group = c / s.groups;
    const double n = static_cast<double>(group * s.cells);
    const auto group_sum = [&](int64_t first) {
      double sum = 0;
      for (int64_t k = first; k < first + group; ++k) sum += sums[k];
      return sum;
    };
    for (int64_t sample = begin; sample < end; ++sample) {
      const int64_t first = sample * s.cells * c;
      const float* in = x + first;
      std::fill_n(sums, c, 0.0);
      for (int64_t i = 0; i < s.cells; ++i)
        for (int64_t k = 0; k < c; ++k) sums[k] += static_cast<double>(in[i * c + k]);
      for (int64_t g = 0; g < c; g += group) std::fill_n(mean + g, group, static_cast<float>(group_sum(g) / n));
      // About the mean as rounded: its error is no larger than that of the values themselves.
      std::fill_n(sums, c, 0.0);
      for (int64_t i = 0; i < s.cells; ++i)
        for (int64_t k = 0; k < c; ++k) {
          const double d = static_cast<double>(in[i * c + k] - mean[k]);
          sums[k] += d * d;
        }
      for (int64_t g = 0; g < c; g += group) {
        const double scale = 1 / std::sqrt(group_sum(g) / n + static_cast<double>(eps));
        for (int64_t k = g; k < g + group; ++k) factor[k] = static_cast<float>(scale * static_cast<double>(weight[k]));
      }
      for (int64_t i = 0; i < s.cells; ++i)
        for (int64_t k = 0; k < c; ++k) {
          const int64_t at = i * c + k;
          const float v = (in[at] - mean[k]) * factor[k] + bias[k] + (addend == nullptr ? 0.0f : addend[first + at]);
          y[first + at] = relu ? std::max(v, 0.0f) : v;
        }
    }
  });
}

}  // namespace cpu
}  // namespace megaslide
