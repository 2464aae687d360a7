// Sums over the bytes of pictures. Integer results are exact.
#pragma once
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "io/video.h"

namespace megaslide {

// Sum over all bytes of |a - b| and of (a - b)^2; n bytes each.
uint64_t sum_abs_difference(const uint8_t* a, const uint8_t* b, int64_t n);
uint64_t sum_squared_difference(const uint8_t* a, const uint8_t* b, int64_t n);

// Structural similarity of two pictures of equal size (Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from
// error visibility to structural similarity", 2004): 11 x 11 Gaussian of sigma 1.5, K1 = .01, K2 = .03, range 255,
// population moments, mean over the valid region and over R, G, B. As scikit-image gives it with gaussian_weights and
// without use_sample_covariance. Both sides at least 11 pixels. Bands of rows run in parallel; their sums are added in
// order, so the result does not depend on the number of threads.
constexpr int64_t kSsimWindow = 11;
double ssim(const Picture& a, const Picture& b, ThreadPool& pool);

// The share of pixels whose brightest channel is at most `level`.
double dark_share(const Picture& p, int level);
double mean_level(const Picture& p);  // over all bytes, 0 .. 255

// Means over boxes, the longer side at most `side` (never enlarged). Row-major RGB of width x height cells.
struct SmallPicture {
  int64_t width = 0, height = 0;
  std::vector<float> rgb;  // 0 .. 255
};
SmallPicture shrink(const Picture& p, int64_t side);
Picture to_picture(const SmallPicture& s);                                 // rounded to bytes
double mean_abs_difference(const SmallPicture& a, const SmallPicture& b);  // 0 .. 255; equal sizes

}  // namespace megaslide
