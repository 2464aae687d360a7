#include "vision/preprocess.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "vision/resample.h"

namespace megaslide {
namespace {

constexpr int64_t kMostElongated = 32;  // a film strip; what is longer has more pixels after the resizing than anyone can want

struct Normalisation {
  float mean[3], deviation[3];
};
constexpr Normalisation kClip{{0.48145466f, 0.4578275f, 0.40821073f}, {0.26862954f, 0.26130258f, 0.27577711f}};
constexpr Normalisation kImageNet{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};

struct Size {
  int64_t height, width;
};
Size resized(const Picture& p, int64_t side) {
  const int64_t shorter = std::min(p.height, p.width), longer = std::max(p.height, p.width);
  const int64_t long_side = side * longer / shorter;
  return p.height <= p.width ? Size{side, long_side} : Size{long_side, side};
}

// Where a centred cut begins; halves to even.
int64_t cut_offset(int64_t length, int64_t side) {
  const int64_t half = (length - side) / 2;
  return (length - side) % 2 == 0 ? half : half + half % 2;
}

// (h,w,3) of levels to normalised planes. Three steps as PyTorch takes them: a factor and an addend would round otherwise.
template <class T>
void normalise(ThreadPool& pool, float* planes, const T* levels, Size size, const Normalisation& n) {
  const int64_t plane = size.height * size.width;
  pool.parallel_for(size.height, 16, [&](int64_t begin, int64_t end) {
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t i = begin * size.width; i < end * size.width; ++i)
        planes[c * plane + i] = (static_cast<float>(levels[3 * i + c]) / 255.0f - n.mean[c]) / n.deviation[c];
  });
}

template <class Weight>
ResampleAxis<Weight> centred(const ResampleAxis<Weight>& axis, int64_t side) {
  return axis.cropped(cut_offset(axis.to(), side), side);
}

// Of the result.
Size prepared_size(const Picture& picture, Preprocessing how, int64_t side) {
  MS_CHECK(picture.width > 0 && picture.height > 0 && side > 0 && static_cast<int64_t>(picture.rgb.size()) == 3 * picture.width * picture.height,
           "{}x{}", picture.width, picture.height);
  if (std::max(picture.height, picture.width) > kMostElongated * std::min(picture.height, picture.width))
    throw Error(fmt::format("a picture of {}x{} pixels: networks read sides of up to 1:{}", picture.width, picture.height, kMostElongated),
                "cut the video to the part that matters");
  return how == Preprocessing::kDino ? resized(picture, side) : Size{side, side};
}

void prepare(float* planes, const Picture& picture, Preprocessing how, int64_t side, Size out, ThreadPool& pool) {
  const Size whole = resized(picture, side);
  const auto count = static_cast<size_t>(3 * out.height * out.width);
  if (how == Preprocessing::kClipPil) {
    std::vector<uint8_t> bytes(count);
    resample(pool, bytes.data(), picture.rgb.data(), centred(pillow_cubic_axis(picture.height, whole.height), side),
             centred(pillow_cubic_axis(picture.width, whole.width), side));
    return normalise(pool, planes, bytes.data(), out, kClip);
  }
  std::vector<float> levels(count);
  if (how == Preprocessing::kDino) {
    resample(pool, levels.data(), picture.rgb.data(), linear_axis(picture.height, whole.height), linear_axis(picture.width, whole.width));
    return normalise(pool, planes, levels.data(), out, kImageNet);
  }
  resample(pool, levels.data(), picture.rgb.data(), centred(cubic_axis(picture.height, whole.height), side),
           centred(cubic_axis(picture.width, whole.width), side));
  if (how == Preprocessing::kClipUint8)
    for (float& v : levels) v = std::nearbyint(std::clamp(v, 0.0f, 255.0f));
  normalise(pool, planes, levels.data(), out, kClip);
}

}  // namespace

HostTensor preprocess(const Picture& picture, Preprocessing how, int64_t side, ThreadPool& pool) {
  const Size size = prepared_size(picture, how, side);
  HostTensor out(DType::kF32, {3, size.height, size.width});
  prepare(out.f32(), picture, how, side, size, pool);
  return out;
}

HostTensor preprocess(std::span<const Picture> pictures, Preprocessing how, int64_t side, ThreadPool& pool) {
  MS_CHECK(!pictures.empty());
  const Picture& first = pictures[0];
  const Size size = prepared_size(first, how, side);
  HostTensor out(DType::kF32, {static_cast<int64_t>(pictures.size()), 3, size.height, size.width});
  float* planes = out.f32();
  for (const Picture& p : pictures) {
    if (p.width != first.width || p.height != first.height)
      throw Error(fmt::format("a frame of {}x{} pixels after one of {}x{}", p.width, p.height, first.width, first.height),
                  "re-encode the video at one size");
    prepare(planes, p, how, side, size, pool);
    planes += 3 * size.height * size.width;
  }
  return out;
}

}  // namespace megaslide
