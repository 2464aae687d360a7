// Images to tokens: a class token, then a linear map of each patch, row by row, both with a vector of their place.
#pragma once
#include <vector>

#include "tensor/tensor.h"
#include "vision/packed_linear.h"

namespace megaslide {

class PatchEmbedding {
 public:
  PatchEmbedding() = default;
  // kernel: F32 [width, channels, …, side, side], other extents 1; bias: F32 [width] or empty.
  PatchEmbedding(const Place& place, const HostTensor& kernel, const HostTensor& bias, Products products);

  int64_t side() const { return side_; }
  int64_t width() const { return linear_.outputs(); }
  // images: F32 (samples·frames, 3, height, width). places: F32 (1 + frames·patches, width), row 0 the whole class token. Gives
  // F32 (samples, 1 + frames·patches, width).
  PlacedTensor tokens(const Place& place, const HostTensor& images, int64_t samples, const PlacedTensor& places) const;

 private:
  int64_t side_ = 0, channels_ = 0;
  Products products_ = Products::kFloat;
  PackedLinear linear_;
};

// [3,H,W] or [N,3,H,W] as the number of images, H and W. CHECKs the shape: pictures come from our own preprocessing.
struct ImageSizes {
  int64_t count, height, width;
};
ImageSizes image_sizes(const HostTensor& pixels);

}  // namespace megaslide
