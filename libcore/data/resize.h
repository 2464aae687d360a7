// Pictures to float planes of another size.
#pragma once
#include <cstdint>

#include "data/selection.h"
#include "io/video.h"

namespace megaslide {

// Resamples `region` of the picture to width×height and writes three planes in [-1, 1], value / 127.5 - 1, each
// `plane_stride` floats after the one before. Shrinking averages exact areas, enlarging interpolates with Catmull-Rom
// cubics (clipped to [-1, 1]), edges repeat; an axis that keeps its scale on whole pixels is copied.
void resample(const Picture& picture, const Region& region, int64_t width, int64_t height, float* out, int64_t plane_stride);

// The way back for showing: [-1, 1] to 0 … 255, rounded and clipped.
Picture picture_from_planes(const float* planes, int64_t plane_stride, int64_t width, int64_t height);

}  // namespace megaslide
