// Pictures of three channels at another size, as PyTorch and Pillow compute them: separable, a list of source places and
// weights for every place of the result. Half-pixel centres; borders repeat.
#pragma once
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace megaslide {

// One axis: result i is Σ_k weight[i·taps + k] · source[place[i·taps + k]].
template <class Weight>
struct ResampleAxis {
  int64_t from = 0, taps = 0;
  std::vector<int64_t> place;
  std::vector<Weight> weight;
  int64_t to() const { return static_cast<int64_t>(place.size()) / taps; }
  // Results [first, first + count) alone.
  ResampleAxis cropped(int64_t first, int64_t count) const;
};

// PyTorch's interpolate(align_corners=False, antialias=False) to a given size, in its fp32 coordinates: (i + ½)·from/to − ½.
//   linear: two taps, the coordinate clamped at 0.   cubic: four, a = −0.75, the coordinate not clamped.
ResampleAxis<float> linear_axis(int64_t from, int64_t to);
ResampleAxis<float> cubic_axis(int64_t from, int64_t to);
// Pillow's BICUBIC for 8-bit pictures: a = −½, as wide as a source step where it shrinks, weights in units of 2⁻²².
ResampleAxis<int32_t> pillow_cubic_axis(int64_t from, int64_t to);

// in: (rows.from, columns.from, 3), elements T = uint8_t or float. out: (rows.to(), columns.to(), 3). Sums along a row first.
// Bands of rows in parallel; each value is one sum in a fixed order, whatever the threads.
template <class T>
void resample(ThreadPool& pool, float* out, const T* in, const ResampleAxis<float>& rows, const ResampleAxis<float>& columns);
// The same on bytes in fixed point, cut to bytes with rounding after either axis.
void resample(ThreadPool& pool, uint8_t* out, const uint8_t* in, const ResampleAxis<int32_t>& rows, const ResampleAxis<int32_t>& columns);

}  // namespace megaslide
