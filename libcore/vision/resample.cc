#include "vision/resample.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace megaslide {
namespace {

constexpr int64_t kBandRows = 8;
constexpr int kPillowBits = 22;  // 8 bits of a sample and 2 for overshoot are left of 32

// Weights of the four neighbours of a place t beyond the second: the cubic of Keys (1981).
void cubic_weights(float t, float* w) {
  constexpr float a = -0.75f;
  const auto near = [](float x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto far = [](float x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  w[0] = far(t + 1), w[1] = near(t), w[2] = near(1 - t), w[3] = far(2 - t);
}

// One rounding, as PyTorch's builds fuse it: at far places another would move a sharp edge by more than all other rounding.
float source_place(int64_t i, int64_t from, int64_t to) {
  const float step = static_cast<float>(from) / static_cast<float>(to);
  return std::fma(step, static_cast<float>(i) + 0.5f, -0.5f);
}

template <class Weight>
ResampleAxis<Weight> empty_axis(int64_t from, int64_t to, int64_t taps) {
  MS_CHECK(from > 0 && to > 0, "{} to {}", from, to);
  return {from, taps, std::vector<int64_t>(static_cast<size_t>(to * taps)), std::vector<Weight>(static_cast<size_t>(to * taps))};
}

double pillow_cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

// How sums are kept, and what becomes of them after an axis.
struct FloatSums {
  using Sum = float;
  using Kept = float;
  static constexpr float start = 0;
  static float finish(float sum) { return sum; }
};
struct FixedSums {
  using Sum = int32_t;
  using Kept = uint8_t;
  static constexpr int32_t start = 1 << (kPillowBits - 1);
  static uint8_t finish(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kPillowBits, 0, 255)); }
};

// A source row along the columns: (columns.to(), 3).
template <class Sums, class T, class Weight>
void spread_row(typename Sums::Kept* out, const T* row, const ResampleAxis<Weight>& columns) {
  const int64_t *place = columns.place.data(), n = columns.to();
  const Weight* weight = columns.weight.data();
  for (int64_t i = 0; i < n; ++i, place += columns.taps, weight += columns.taps) {
    typename Sums::Sum sum[3] = {Sums::start, Sums::start, Sums::start};
    for (int64_t k = 0; k < columns.taps; ++k) {
      const T* p = row + 3 * place[k];
      for (int c = 0; c < 3; ++c) sum[c] += weight[k] * static_cast<typename Sums::Sum>(p[c]);
    }
    for (int c = 0; c < 3; ++c) *out++ = Sums::finish(sum[c]);
  }
}

template <class Sums, class T, class Weight>
void resample_rows(ThreadPool& pool, typename Sums::Kept* out, const T* in, const ResampleAxis<Weight>& rows, const ResampleAxis<Weight>& columns) {
  const int64_t width = 3 * columns.to();
  pool.parallel_for(rows.to(), kBandRows, [&](int64_t begin, int64_t end) {
    // The taps of a result are neighbours, or the border once more: slots by row never collide.
    std::vector<typename Sums::Kept> kept(static_cast<size_t>(rows.taps * width));
    std::vector<int64_t> holds(static_cast<size_t>(rows.taps), -1);
    std::vector<typename Sums::Sum> sum(static_cast<size_t>(width));
    for (int64_t y = begin; y < end; ++y) {
      std::fill(sum.begin(), sum.end(), Sums::start);
      for (int64_t k = 0; k < rows.taps; ++k) {
        const int64_t source = rows.place[static_cast<size_t>(y * rows.taps + k)], slot = source % rows.taps;
        const Weight weight = rows.weight[static_cast<size_t>(y * rows.taps + k)];
        if (weight == 0) continue;
        typename Sums::Kept* line = kept.data() + slot * width;
        if (holds[static_cast<size_t>(slot)] != source) {
          spread_row<Sums>(line, in + source * 3 * columns.from, columns);
          holds[static_cast<size_t>(slot)] = source;
        }
        for (int64_t i = 0; i < width; ++i) sum[static_cast<size_t>(i)] += weight * static_cast<typename Sums::Sum>(line[i]);
      }
      for (int64_t i = 0; i < width; ++i) out[y * width + i] = Sums::finish(sum[static_cast<size_t>(i)]);
    }
  });
}

}  // namespace

template <class Weight>
ResampleAxis<Weight> ResampleAxis<Weight>::cropped(int64_t first, int64_t count) const {
  MS_CHECK(first >= 0 && count > 0 && first + count <= to(), "{} {} of {}", first, count, to());
  const auto begin = static_cast<std::ptrdiff_t>(first * taps), end = static_cast<std::ptrdiff_t>((first + count) * taps);
  return {from, taps, {place.begin() + begin, place.begin() + end}, {weight.begin() + begin, weight.begin() + end}};
}
template struct ResampleAxis<float>;
template struct ResampleAxis<int32_t>;

ResampleAxis<float> linear_axis(int64_t from, int64_t to) {
  ResampleAxis<float> axis = empty_axis<float>(from, to, 2);
  for (int64_t i = 0; i < to; ++i) {
    const float source = std::max(source_place(i, from, to), 0.0f);
    const int64_t base = std::min(static_cast<int64_t>(source), from - 1);
    const float t = std::clamp(source - static_cast<float>(base), 0.0f, 1.0f);
    const auto at = static_cast<size_t>(2 * i);
    axis.place[at] = base, axis.place[at + 1] = std::min(base + 1, from - 1);
    axis.weight[at] = 1 - t, axis.weight[at + 1] = t;
  }
  return axis;
}

ResampleAxis<float> cubic_axis(int64_t from, int64_t to) {
  ResampleAxis<float> axis = empty_axis<float>(from, to, 4);
  for (int64_t i = 0; i < to; ++i) {
    const float source = source_place(i, from, to);
    const auto base = static_cast<int64_t>(std::floor(source));
    cubic_weights(source - static_cast<float>(base), &axis.weight[static_cast<size_t>(4 * i)]);
    for (int64_t k = 0; k < 4; ++k) axis.place[static_cast<size_t>(4 * i + k)] = std::clamp<int64_t>(base - 1 + k, 0, from - 1);
  }
  return axis;
}

ResampleAxis<int32_t> pillow_cubic_axis(int64_t from, int64_t to) {
  const double step = static_cast<double>(from) / static_cast<double>(to), stretch = std::max(step, 1.0), support = 2 * stretch;
  ResampleAxis<int32_t> axis = empty_axis<int32_t>(from, to, 2 * static_cast<int64_t>(std::ceil(support)) + 1);
  std::vector<double> w(static_cast<size_t>(axis.taps));
  for (int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * step;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(centre - support + 0.5), 0);
    const int64_t end = std::min(static_cast<int64_t>(centre + support + 0.5), from);
    double sum = 0;
    for (int64_t k = 0; k < axis.taps; ++k) {
      const double weight = first + k < end ? pillow_cubic((static_cast<double>(first + k) - centre + 0.5) / stretch) : 0;
      w[static_cast<size_t>(k)] = weight;
      sum += weight;
    }
    for (int64_t k = 0; k < axis.taps; ++k) {
      const double units = w[static_cast<size_t>(k)] / sum * (1 << kPillowBits);
      axis.place[static_cast<size_t>(i * axis.taps + k)] = std::min(first + k, from - 1);
      axis.weight[static_cast<size_t>(i * axis.taps + k)] = static_cast<int32_t>(units + (units < 0 ? -0.5 : 0.5));
    }
  }
  return axis;
}

template <class T>
void resample(ThreadPool& pool, float* out, const T* in, const ResampleAxis<float>& rows, const ResampleAxis<float>& columns) {
  resample_rows<FloatSums>(pool, out, in, rows, columns);
}
template void resample(ThreadPool&, float*, const uint8_t*, const ResampleAxis<float>&, const ResampleAxis<float>&);
template void resample(ThreadPool&, float*, const float*, const ResampleAxis<float>&, const ResampleAxis<float>&);

void resample(ThreadPool& pool, uint8_t* out, const uint8_t* in, const ResampleAxis<int32_t>& rows, const ResampleAxis<int32_t>& columns) {
  resample_rows<FixedSums>(pool, out, in, rows, columns);
}

}  // namespace megaslide
