#include "kernels/patch/image_patches.h"

#include "kernels/elements.cuh"
#include "kernels/quads.cuh"

namespace megaslide {
namespace {

constexpr int kPatchThreads = 256;

// A block a patch, a thread kUnit neighbours of a line of it at a time.
template <int kUnit, class T>
__global__ void __launch_bounds__(kPatchThreads) image_patch_kernel(T* patches, const float* images, ImagePatches s) {
  const int side = static_cast<int>(s.side), columns = static_cast<int>(s.columns());
  const int64_t down = s.rows_down(), across = s.across(), row = blockIdx.x;
  const int64_t x = row % across, y = row / across % down, b = row / across / down;
  const float* corner = images + (b * s.channels * s.height + y * side) * s.width + x * side;
  T* to = patches + row * columns;
  for (int k = kUnit * static_cast<int>(threadIdx.x); k < columns; k += kUnit * kPatchThreads) {
    const int j = k % side, i = k / side % side, c = k / side / side;
    const float* from = corner + (c * s.height + i) * s.width + j;
    if constexpr (kUnit == 4)
      store_aligned_quad(to + k, load_aligned_quad(from));
    else
      store_one(to + k, *from);
  }
}

}  // namespace

namespace cuda {

void image_patch_gather(Stream& stream, void* patches, const float* images, ImagePatches s, DType dtype) {
  MS_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "{}", dtype_name(dtype));
  if (s.rows() == 0 || s.columns() == 0) return;
  count32(s.columns() + 4 * kPatchThreads, "elements of a patch");
  const dim3 grid(count32(s.rows(), "patches"));
  by_type(dtype, [&]<class T>(T*) {
    auto* to = static_cast<T*>(patches);
    const bool quads = s.side % 4 == 0 && quads_aligned(s.width, to, images);
    prim::launch(quads ? &image_patch_kernel<4, T> : &image_patch_kernel<1, T>, grid, dim3(kPatchThreads), 0, stream, to, images, s);
  });
}

}  // namespace cuda
}  // namespace megaslide
