// What MUSIQ reads of a frame (spec vbench-networks.md §2): the frame at three sizes, each cut into patches of 32×32 pixels.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "io/video.h"
#include "tensor/tensor.h"

namespace megaslide {

constexpr int64_t kMusiqPatch = 32;
constexpr int64_t kMusiqGrid = 10;  // places an axis of the table of positions
constexpr int64_t kMusiqScales = 3;

struct MusiqSize {
  int64_t height = 0, width = 0;
  int64_t rows() const { return (height + kMusiqPatch - 1) / kMusiqPatch; }
  int64_t columns() const { return (width + kMusiqPatch - 1) / kMusiqPatch; }
  bool operator==(const MusiqSize&) const = default;
};

// VBench's shrinking of frames with a side above 512: 512 over the longer side, in double, sizes cut. The longer side becomes
// 511 for some lengths.
MusiqSize musiq_frame_size(int64_t height, int64_t width);
// The longer side at 224, at 384, and the frame itself; halves to even.
std::array<MusiqSize, kMusiqScales> musiq_scales(MusiqSize frame);

// F32 (h, w, 3) in [0, 1] of musiq_frame_size: bilinear, not antialiased. Throws Error for a frame so narrow that one of its sizes
// would have no pixel.
HostTensor musiq_frame(const Picture& picture, ThreadPool& pool);

struct MusiqPatches {
  HostTensor pixels;                       // F32 (N, 32, 32, 3) in about [-1, 1]; 0 beyond the frame
  std::vector<int64_t> positions, scales;  // N each: row of the table of positions, of the table of scales
  int64_t count() const { return static_cast<int64_t>(positions.size()); }
};
// Scale by scale, row by row. The frame lies in the middle of its patches.
MusiqPatches musiq_patches(const HostTensor& frame, ThreadPool& pool);

}  // namespace megaslide
