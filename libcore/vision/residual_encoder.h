// The trunk that networks of optical flow take features with: a 7×7 convolution of stride 2, then layers 1, 2, 3 of
// residual blocks, strides 1, 2, 2 (spec vbench-networks.md §3.3, §4). A block is two 3×3 convolutions (conv1, conv2) or a
// bottleneck of 1×1, 3×3, 1×1 (conv1 … conv3), each followed by a norm and a ReLU; its first 3×3 carries the stride; the
// shortcut is the identity, or a 1×1 convolution with a norm; ReLU of the sum. Norms are instance norms without
// parameters, eps 1e-5, or batch norms by running statistics, which are folded into the weights.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "vision/frame_network.h"

namespace megaslide {

enum class EncoderNorm { kInstance, kBatch };

class ResidualEncoder {
 public:
  // Adds the names under `prefix` ("fnet.") with the shapes that follow from the file's own widths, and names that may be
  // there. Throws Error where a name that tells a width is missing.
  static void expect(const NetworkWeights& weights, const std::string& prefix, EncoderNorm norm, std::map<std::string, Shape>& expected,
                     std::vector<std::string>& ignored);
  // Weights as required.
  ResidualEncoder(const Place& place, const NetworkWeights& weights, const std::string& prefix, EncoderNorm norm);

  // blocks: cells of 2×2 pixels, 12 channels, border 2. The result has a quarter of its sides (an eighth of the picture's)
  // and widths().back() channels. The frame's sides are multiples of 4.
  Frame forward(const Place& place, const Frame& blocks) const;
  int64_t width() const { return layers_.back().convolutions.back().out_channels(); }

 private:
  struct Block {
    std::vector<FrameConvolution> convolutions;
    std::vector<FrameConvolution> shortcut;  // one or none
  };
  class Pass;
  FrameConvolution stem_;
  std::vector<Block> layers_;  // blocks of all layers
  EncoderNorm norm_;
};

}  // namespace megaslide
