#include "data/strip.h"

#include <algorithm>
#include <cmath>

#include "data/resize.h"
#include "io/contact_sheet.h"

namespace megaslide {
namespace {

// At most kStripHeight lines and twice as many columns.
Picture shrunk(const Picture& p, double& scale) {
  scale = std::min({1.0, static_cast<double>(kStripHeight) / static_cast<double>(p.height), 2.0 * kStripHeight / static_cast<double>(p.width)});
  const auto side = [&](int64_t n) { return std::max<int64_t>(1, std::lround(static_cast<double>(n) * scale)); };
  const int64_t w = side(p.width), h = side(p.height);
  std::vector<float> planes(static_cast<size_t>(3 * w * h));
  resample(p, {0, 0, static_cast<double>(p.width), static_cast<double>(p.height)}, w, h, planes.data(), w * h);
  return picture_from_planes(planes.data(), w * h, w, h);
}

// Evenly spaced indices of `n` things.
std::vector<size_t> spread(size_t n) {
  std::vector<size_t> out;
  const size_t shown = std::min(n, static_cast<size_t>(kStripPictures));
  for (size_t i = 0; i < shown; ++i) out.push_back(shown == 1 ? 0 : i * (n - 1) / (shown - 1));
  return out;
}

void darken(Picture& p, int64_t x, int64_t y) {
  uint8_t* q = &p.rgb[static_cast<size_t>((y * p.width + x) * 3)];
  for (int c = 0; c < 3; ++c) q[c] = static_cast<uint8_t>(q[c] / 4 + 24);
}

}  // namespace

void StripMaker::add(const Picture& picture, int64_t outputs) {
  const int64_t index = count_++;
  if (index % stride_ != 0) return;
  Kept k;
  k.small = shrunk(picture, k.scale);
  k.index = index;
  k.outputs = outputs;
  kept_.push_back(std::move(k));
  if (kept_.size() < 4 * static_cast<size_t>(kStripPictures)) return;
  stride_ *= 2;
  std::erase_if(kept_, [&](const Kept& old) { return old.index % stride_ != 0; });
}

Picture StripMaker::row(const Region& region, int64_t frames_used) const {
  if (kept_.empty()) return {};
  std::vector<Picture> shown;
  for (const size_t i : spread(kept_.size())) {
    const Kept& k = kept_[i];
    Picture p = k.small;
    const double left = region.x * k.scale, right = (region.x + region.width) * k.scale, top = region.y * k.scale, bottom = (region.y + region.height) * k.scale;
    for (int64_t y = 0; y < p.height; ++y)
      for (int64_t x = 0; x < p.width; ++x) {
        const double cx = static_cast<double>(x) + 0.5, cy = static_cast<double>(y) + 0.5;
        if (k.outputs >= frames_used || cx < left || cx > right || cy < top || cy > bottom) darken(p, x, y);
      }
    shown.push_back(std::move(p));
  }
  return contact_sheet({shown}, kStripPictures);
}

Picture strip_of(const TensorView& video) {
  const int64_t frames = video.shape[1], height = video.shape[2], width = video.shape[3], plane = height * width;
  const auto* data = reinterpret_cast<const float*>(video.data);
  std::vector<Picture> shown;
  double scale = 1;
  for (const size_t t : spread(static_cast<size_t>(frames)))
    shown.push_back(shrunk(picture_from_planes(data + static_cast<int64_t>(t) * plane, frames * plane, width, height), scale));
  return contact_sheet({shown}, kStripPictures);
}

}  // namespace megaslide
