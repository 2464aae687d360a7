// Frames as the networks of VBench take them (spec vbench.md, "Preprocessing"): resized so that the short side has `side`
// pixels and the long one int(side·long/short), /255, minus the mean and over the deviation of each channel.
#pragma once
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "io/video.h"
#include "tensor/tensor.h"

namespace megaslide {

enum class Preprocessing {
  kClipFloat,  // background_consistency, aesthetic_quality: bicubic a = −0.75, not antialiased, not clamped; centre square
  kClipUint8,  // overall_consistency, temporal_style: the same rounded to bytes, halves to even
  kClipPil,    // appearance_style: Pillow's bicubic a = −½ on bytes, antialiased; centre square
  kDino,       // subject_consistency: bilinear, not antialiased, the whole picture, mean and deviation of ImageNet
};

constexpr int64_t kClipPixels = 224, kDinoPixels = 224;

// F32 [3, h, w], h = w = side but for kDino. Throws Error for a picture whose long side has more than 32 times the short
// one's pixels. Results do not depend on the number of threads.
HostTensor preprocess(const Picture& picture, Preprocessing how, int64_t side, ThreadPool& pool);
// The same of several, F32 [N, 3, h, w]. Throws Error where their sizes differ.
HostTensor preprocess(std::span<const Picture> pictures, Preprocessing how, int64_t side, ThreadPool& pool);

}  // namespace megaslide
