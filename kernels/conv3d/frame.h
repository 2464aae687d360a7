// Frames of activations as the convolutions of a video autoencoder read them: rows of cells, channels innermost, with a
// border of one cell of zeros all round. Whoever writes a frame writes its inside alone, so that the border stays zero
// for the life of the memory and nothing is ever copied to be padded.
#pragma once
#include <cstdint>

#include "base/host_device.h"
#include "tensor/dtype.h"

namespace megaslide {

inline constexpr int64_t kConvPanel = 16;        // output channels that packed weights come in
inline constexpr int64_t kFrameSlackCells = 40;  // readable behind the last row: tiles of 16 cells end there

struct FrameLayout {
  int64_t height = 0, width = 0, channels = 0;
  DType dtype = DType::kF32;  // kF32 or kBF16
  int64_t border = 1;         // 0: rows follow one another, for frames that only 1×1 convolutions read

  // Channels a cell in memory: those beyond `channels` are zero, so that no loop over channels has a tail.
  MS_HOST_DEVICE int64_t stored() const {
    const int64_t unit = dtype == DType::kBF16 ? 32 : 16;
    return (channels + unit - 1) / unit * unit;
  }
  MS_HOST_DEVICE int64_t row() const { return (width + 2 * border) * stored(); }  // elements from one row to the next
  // The element where a cell starts; with a border (-1,-1) is the corner.
  MS_HOST_DEVICE int64_t cell(int64_t y, int64_t x) const { return (y + border) * row() + (x + border) * stored(); }
  int64_t elements() const { return (height + 2 * border) * row() + kFrameSlackCells * stored(); }
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }  // of zeroed, 64-byte aligned memory
};

}  // namespace megaslide
