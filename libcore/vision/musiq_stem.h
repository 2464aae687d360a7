// The convolutions in front of MUSIQ's transformer (spec vbench-networks.md §2), each patch by itself:
//   p = max 3×3 stride 2 of ReLU(norm(7×7 stride 2)),   r = ReLU(norm(1×1 p)),   s = ReLU(norm(3×3 r))
//   result = ReLU( norm(1×1 s) + norm(1×1 p) )
// Convolutions have standardised weights, w' = (w − mean)/(deviation with n − 1 + 1e-5) an output channel, and no bias; norms are
// of 32 groups, eps 1e-6 (the first), 1e-4. Padding is TensorFlow's "same".
#pragma once
#include <map>
#include <string>

#include "vision/musiq_patches.h"
#include "vision/network_weights.h"
#include "vision/packed_linear.h"

namespace megaslide {

class MusiqStem {
 public:
  struct Channels {
    int64_t inner = 0, outer = 0;  // of the first convolution, of the result
    // Throws Error where the file's convolutions are none, or not to a multiple of 32 channels.
    static Channels of(const NetworkWeights& file);
    void add_tensors(std::map<std::string, Shape>& expected) const;
  };
  MusiqStem() = default;
  // Reads the tensors, which have been required.
  MusiqStem(const Place& place, const NetworkWeights& file, const Channels& channels);

  static constexpr int64_t kResultSide = kMusiqPatch / 4;
  int64_t outputs() const { return kResultSide * kResultSide * channels_.outer; }
  // pixels: F32 (N,32,32,3). Gives F32 (N, 8, 8, outer). Some 5 MB beside it, for 16 patches at a time.
  PlacedTensor forward(const Place& place, const HostTensor& pixels) const;

 private:
  struct Norm {
    PlacedTensor weight, bias;
    float eps = 0;
  };
  struct Buffers;
  void forward_batch(const Place& place, const Buffers& b, float* out, const float* pixels, int64_t n) const;
  void norm(const Place& place, float* y, const float* x, const float* addend, const Norm& norm, int64_t n, int64_t side, bool relu) const;

  Channels channels_;
  PackedLinear root_, conv1_, conv2_, conv3_, shortcut_;
  Norm norm_root_, norm1_, norm2_, norm3_, norm_shortcut_;
};

}  // namespace megaslide
