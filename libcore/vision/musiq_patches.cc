#include "vision/musiq_patches.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "vision/resample.h"

namespace megaslide {
namespace {

constexpr int64_t kLongestSide = 512;
constexpr int64_t kScaleSides[] = {224, 384};

// Place of patch i of n in the table of positions.
int64_t table_place(int64_t i, int64_t n) { return i * kMusiqGrid / n; }

// Rows of the image (h,w,3) into the patches of its scale, which are zeros.
void cut(float* patches, const float* image, MusiqSize s) {
  const int64_t top = (s.rows() * kMusiqPatch - s.height) / 2, left = (s.columns() * kMusiqPatch - s.width) / 2;
  for (int64_t y = 0; y < s.height; ++y) {
    const int64_t row = (y + top) / kMusiqPatch, inner = (y + top) % kMusiqPatch;
    for (int64_t x = 0; x < s.width;) {
      const int64_t column = (x + left) / kMusiqPatch, at = (x + left) % kMusiqPatch, n = std::min(kMusiqPatch - at, s.width - x);
      float* patch = patches + (row * s.columns() + column) * kMusiqPatch * kMusiqPatch * 3;
      std::copy_n(image + (y * s.width + x) * 3, n * 3, patch + (inner * kMusiqPatch + at) * 3);
      x += n;
    }
  }
}

}  // namespace

MusiqSize musiq_frame_size(int64_t height, int64_t width) {
  const int64_t longer = std::max(height, width);
  if (longer <= kLongestSide) return {height, width};
  const double s = static_cast<double>(kLongestSide) / static_cast<double>(longer);
  return {static_cast<int64_t>(s * static_cast<double>(height)), static_cast<int64_t>(s * static_cast<double>(width))};
}

std::array<MusiqSize, kMusiqScales> musiq_scales(MusiqSize frame) {
  std::array<MusiqSize, kMusiqScales> out;
  for (size_t i = 0; i < 2; ++i) {
    const double r = static_cast<double>(kScaleSides[i]) / static_cast<double>(std::max(frame.height, frame.width));
    out[i] = {static_cast<int64_t>(std::nearbyint(static_cast<double>(frame.height) * r)),
              static_cast<int64_t>(std::nearbyint(static_cast<double>(frame.width) * r))};
  }
  out[2] = frame;
  return out;
}

HostTensor musiq_frame(const Picture& picture, ThreadPool& pool) {
  MS_CHECK(picture.width > 0 && picture.height > 0 && static_cast<int64_t>(picture.rgb.size()) == 3 * picture.width * picture.height, "{}x{}",
           picture.width, picture.height);
  const MusiqSize size = musiq_frame_size(picture.height, picture.width);
  bool narrow = size.height == 0 || size.width == 0;
  if (!narrow)
    for (const MusiqSize& s : musiq_scales(size)) narrow = narrow || s.height == 0 || s.width == 0;
  if (narrow)
    throw Error(fmt::format("a frame of {}x{} pixels is too narrow: at 224 pixels for the longer side nothing would be left of the other",
                            picture.width, picture.height),
                "cut the video to the part that matters");
  HostTensor frame(DType::kF32, {size.height, size.width, 3});
  float* v = frame.f32();
  const int64_t n = frame.elements();
  if (size == MusiqSize{picture.height, picture.width}) {
    std::transform(picture.rgb.begin(), picture.rgb.end(), v, [](uint8_t b) { return static_cast<float>(b); });
  } else {
    resample(pool, v, picture.rgb.data(), linear_axis(picture.height, size.height), linear_axis(picture.width, size.width));
  }
  for (int64_t i = 0; i < n; ++i) v[i] /= 255.0f;
  return frame;
}

MusiqPatches musiq_patches(const HostTensor& frame, ThreadPool& pool) {
  const MusiqSize size{frame.shape()[0], frame.shape()[1]};
  std::vector<float> mapped(static_cast<size_t>(frame.elements()));
  for (size_t i = 0; i < mapped.size(); ++i) mapped[i] = (frame.f32()[i] - 0.5f) * 2;
  MusiqPatches out;
  const auto scales = musiq_scales(size);
  for (int64_t scale = 0; scale < kMusiqScales; ++scale) {
    const MusiqSize s = scales[static_cast<size_t>(scale)];
    for (int64_t i = 0; i < s.rows(); ++i)
      for (int64_t j = 0; j < s.columns(); ++j) {
        out.positions.push_back(table_place(i, s.rows()) * kMusiqGrid + table_place(j, s.columns()));
        out.scales.push_back(scale);
      }
  }
  out.pixels = HostTensor(DType::kF32, {out.count(), kMusiqPatch, kMusiqPatch, 3});
  float* to = out.pixels.f32();
  for (const MusiqSize& s : scales) {
    if (s == size) {
      cut(to, mapped.data(), s);
    } else {
      std::vector<float> image(static_cast<size_t>(s.height * s.width * 3));
      resample(pool, image.data(), mapped.data(), cubic_axis(size.height, s.height), cubic_axis(size.width, s.width));
      cut(to, image.data(), s);
    }
    to += s.rows() * s.columns() * kMusiqPatch * kMusiqPatch * 3;
  }
  return out;
}

}  // namespace megaslide
