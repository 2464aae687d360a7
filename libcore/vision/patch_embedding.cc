#include "vision/patch_embedding.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/memory/memory.h"
#include "kernels/patch/image_patches.h"

namespace megaslide {

PatchEmbedding::PatchEmbedding(const Place& place, const HostTensor& kernel, const HostTensor& bias, Products products)
    : side_(kernel.shape().back()), channels_(kernel.shape()[1]), products_(products) {
  HostTensor matrix(DType::kF32, {kernel.shape()[0], kernel.elements() / kernel.shape()[0]});
  std::copy_n(kernel.f32(), kernel.elements(), matrix.f32());
  linear_ = {place, matrix, bias, products};
}

PlacedTensor PatchEmbedding::tokens(const Place& place, const HostTensor& images, int64_t samples, const PlacedTensor& places) const {
  const ImageSizes n = image_sizes(images);
  const ImagePatches p{.batch = n.count, .channels = channels_, .height = n.height, .width = n.width, .side = side_};
  const int64_t w = width(), patches = p.rows() / samples;
  MS_CHECK(places.shape() == (Shape{1 + patches, w}), "{} places, {} patches", to_string(places.shape()), patches);
  const PlacedInput pixels(place, images);
  PlacedTensor gathered(place, dtype_of(products_), {p.rows(), p.columns()}), parts(place, DType::kU8, {parts_bytes(products_, p.rows(), p.columns())});
  PlacedTensor mapped(place, DType::kF32, {p.rows(), w}), x(place, DType::kF32, {samples, 1 + patches, w});
  image_patch_gather(place.stream(), gathered.data(), pixels.f32(), p, gathered.dtype());
  linear_.forward(place, mapped.f32(), operand_of(place, products_, gathered.data(), p.rows(), p.columns(), parts.data()), p.rows());
  for (int64_t i = 0; i < samples; ++i) {
    float* sample = x.f32() + i * places.elements();
    copy_memory(place.stream(), sample, places.f32(), places.bytes());
    add_in_place(place.stream(), sample + w, mapped.f32() + i * patches * w, patches * w);
  }
  return x;
}

ImageSizes image_sizes(const HostTensor& pixels) {
  const Shape& s = pixels.shape();
  MS_CHECK(pixels.dtype() == DType::kF32 && (s.size() == 3 || s.size() == 4) && s[s.size() - 3] == 3 && pixels.elements() > 0, "{}", to_string(s));
  return {s.size() == 3 ? 1 : s[0], s[s.size() - 2], s[s.size() - 1]};
}

}  // namespace megaslide
