// What convolutional networks of frames are built from: frames with their memory, and convolutions as their kernels read
// them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/conv3d/conv3d.h"
#include "tensor/tensor.h"
#include "vision/network_weights.h"
#include "vision/place.h"

namespace megaslide {

// Repetitions of the border that make a side a multiple of `unit`: half of them, rounded down, before.
struct ReplicatePadding {
  int64_t left = 0, right = 0, top = 0, bottom = 0;
};
ReplicatePadding replicate_padding(int64_t width, int64_t height, int64_t unit);

// fp32 cells of zeros with their border.
class Frame {
 public:
  Frame() = default;
  Frame(const Place& place, int64_t height, int64_t width, int64_t channels, int64_t border = 1);
  // One channel of one value, border 0.
  static Frame constant(const Place& place, int64_t height, int64_t width, float value);
  bool empty() const { return memory_.empty(); }
  const FrameLayout& layout() const { return layout_; }
  float* data() { return memory_.f32(); }
  const float* data() const { return memory_.f32(); }
  int64_t bytes() const { return memory_.bytes(); }
  HostTensor planes(const Place& place) const;  // [C,H,W], on the processor

 private:
  FrameLayout layout_;
  PlacedTensor memory_;
};

// Weights (out,in,kh,kw) and bias (out) in fp32, on their way from a file to a convolution.
struct ConvWeights {
  ConvShape shape;
  std::vector<float> w, bias;

  // NAME.weight and NAME.bias, shapes as required before.
  static ConvWeights read(const NetworkWeights& weights, const std::string& name);
  // Output and input channels [first, first + count); the bias follows the outputs.
  ConvWeights outputs(int64_t first, int64_t count) const;
  ConvWeights inputs(int64_t first, int64_t count) const;
  // Output channels that give 0 are put behind the others.
  ConvWeights padded_outputs(int64_t count) const;
  // Input channels that are not read are put behind the others.
  ConvWeights padded_inputs(int64_t count) const;
  void drop_bias() { bias.clear(); }
};
// One after the other along the outputs.
ConvWeights stacked(const ConvWeights& a, const ConvWeights& b);
// One convolution of two frames: the sum of both. All but the values agree; a's bias counts.
ConvWeights of_two_frames(const ConvWeights& a, const ConvWeights& b);
// A k×k convolution of stride 2 and padding k/2, k odd, as one of stride 1 over blocks of 2×2 pixels (PictureCells of block 2).
ConvWeights over_blocks(const ConvWeights& a);
// A k×k convolution as one of k×1 over a frame unrolled along x (FlowStep::rows).
ConvWeights over_rows(const ConvWeights& a);

// Frames that join a convolution's sums, of the layout of its result, which may be one of them.
struct AddedFrames {
  const Frame* residual = nullptr;
  const Frame* residual2 = nullptr;
};

class FrameConvolution {
 public:
  FrameConvolution() = default;
  // slope: of negative results, one a channel or one for all; empty is none. Padding is half the kernel.
  FrameConvolution(const Place& place, const ConvWeights& weights, std::vector<float> slope = {}, int64_t stride = 1);

  void operator()(const Place& place, Frame& out, const Frame& in, const AddedFrames& added = {}) const;
  void operator()(const Place& place, Frame& out, const Frame& first, const Frame& second, const AddedFrames& added) const;
  int64_t out_channels() const { return shape_.out; }
  int64_t stride() const { return stride_; }
  int64_t bytes() const { return packed_.bytes(); }

 private:
  friend class TransposedConvolution;
  FrameConv call(Frame& out, const Frame& in, const AddedFrames& added) const;
  ConvShape shape_;
  int64_t stride_ = 1, dy_ = 0, dx_ = 0;
  int64_t step_ = 1, y_ = 0, x_ = 0;  // of results in their frame
  PlacedTensor packed_, bias_, slope_;
};

// A transposed 4×4 convolution of stride 2 and padding 1, weights (in,out,4,4): four of 2×2, one for each place in a 2×2
// block of results.
class TransposedConvolution {
 public:
  TransposedConvolution() = default;
  TransposedConvolution(const Place& place, const NetworkWeights& weights, const std::string& name);
  void operator()(const Place& place, Frame& out, const Frame& in) const;
  int64_t out_channels() const { return phases_.front().out_channels(); }

 private:
  std::vector<FrameConvolution> phases_;
};

// Extent `axis` of a tensor of that rank, 1 … 16384. Throws Error where the tensor is another.
int64_t width_of(const NetworkWeights& weights, const std::string& name, size_t rank = 4, size_t axis = 0);

}  // namespace megaslide
