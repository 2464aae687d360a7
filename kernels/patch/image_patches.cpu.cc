#include "kernels/patch/image_patches.h"

#include <algorithm>

namespace megaslide::cpu {

namespace {

void put(float* to, const float* from, int64_t n) { std::copy_n(from, n, to); }
void put(bf16* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_bf16(from[i]);
}

template <class T>
void gather(Stream& stream, T* patches, const float* images, const ImagePatches& s) {
  const int64_t down = s.rows_down(), across = s.across();
  stream.parallel_for(s.batch * down, 2, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t b = line / down, y = line % down;
      T* rows = patches + line * across * s.columns();
      for (int64_t c = 0; c < s.channels; ++c)
        for (int64_t i = 0; i < s.side; ++i) {
          const float* from = images + ((b * s.channels + c) * s.height + y * s.side + i) * s.width;
          for (int64_t x = 0; x < across; ++x) put(rows + x * s.columns() + (c * s.side + i) * s.side, from + x * s.side, s.side);
        }
    }
  });
}

}  // namespace

void image_patch_gather(Stream& stream, void* patches, const float* images, ImagePatches shape, DType dtype) {
  if (dtype == DType::kBF16)
    gather(stream, static_cast<bf16*>(patches), images, shape);
  else
    gather(stream, static_cast<float*>(patches), images, shape);
}

}  // namespace megaslide::cpu
