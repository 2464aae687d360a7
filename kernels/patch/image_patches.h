// Square patches of images as rows: the patch convolution of a vision transformer is then a product.
#pragma once
#include <cstdint>

#include "base/host_device.h"
#include "kernels/kernel.h"
#include "tensor/dtype.h"

namespace megaslide {

struct ImagePatches {
  int64_t batch = 1, channels = 3, height = 0, width = 0;  // of the images
  int64_t side = 1;                                        // of a patch; what is left over below and to the right is not read
  MS_HOST_DEVICE int64_t rows_down() const { return height / side; }
  MS_HOST_DEVICE int64_t across() const { return width / side; }
  int64_t rows() const { return batch * rows_down() * across(); }
  MS_HOST_DEVICE int64_t columns() const { return channels * side * side; }
};

// Row (b·rows_down + y)·across + x, column (c·side + i)·side + j: pixel (y·side + i, x·side + j) of channel c of image b, rounded to
// dtype (bf16 or fp32). Overwritten.
using ImagePatchGather = void(Stream&, void* patches /*(rows,columns) dtype*/, const float* images /*(B,C,H,W)*/, ImagePatches shape, DType dtype);

namespace cpu {
ImagePatchGather image_patch_gather;
}
namespace cuda {
MS_OPTIONAL ImagePatchGather image_patch_gather;
}

inline Cost image_patch_gather_cost(void*, const float*, ImagePatches s, DType dtype) {
  return {KernelClass::kVector, 0, static_cast<double>(s.rows() * s.columns() * (4 + dtype_bytes(dtype)))};
}

inline constexpr Kernel<ImagePatchGather> image_patch_gather{"image_patch_gather", &cpu::image_patch_gather, &cuda::image_patch_gather,
                                                             &image_patch_gather_cost};

}  // namespace megaslide
