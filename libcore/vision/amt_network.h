// The parts of AMT-S with their weights (spec vbench-networks.md §3.3).
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/flow/flow.h"
#include "vision/residual_encoder.h"

namespace megaslide {

inline constexpr int64_t kAmtRadius = 3, kAmtFlows = 4;  // two vectors a cell
inline constexpr int64_t kAmtCorrelations = 2 * kFlowLevels * (2 * kAmtRadius + 1) * (2 * kAmtRadius + 1);

// Widths that the file's shapes tell.
struct AmtWidths {
  int64_t features;                  // of the correlations
  std::array<int64_t, 4> channels;   // of the pyramid, H/2 … H/16
  int64_t candidates;                // frames that the prediction is the mean of
};

// Checks all names and shapes at once.
AmtWidths require_amt(const NetworkWeights& weights);

// Convolution and PReLU, weights NAME.0 and slopes NAME.1.
FrameConvolution prelu_convolution(const Place& place, const NetworkWeights& weights, const std::string& name, int64_t stride = 1);

// Maps of one picture at H/2, H/4, H/8, H/16.
class AmtPyramid {
 public:
  AmtPyramid(const Place& place, const NetworkWeights& weights);
  std::array<Frame, 4> forward(const Place& place, const Frame& blocks) const;

 private:
  std::vector<FrameConvolution> down_, same_;
};

// convblock: to twice the sides.
class AmtDecoder {
 public:
  AmtDecoder(const Place& place, const NetworkWeights& weights, int stage);
  // The result has no border.
  Frame forward(const Place& place, const Frame& in) const;
  int64_t in_channels() const { return in_; }
  int64_t out_channels() const { return up_.out_channels(); }

 private:
  int64_t in_, skip_;
  std::vector<FrameConvolution> convolutions_;  // convblock.0, then conv1 … conv5
  TransposedConvolution up_;
};

// One update of a feature and its flows from the correlations.
class AmtUpdate {
 public:
  AmtUpdate(const Place& place, const NetworkWeights& weights, int stage);
  // correlations at H/8, border 0; feature and flows (border 0) at d times its sides; both are replaced by themselves
  // plus their change. small: the flows at H/8, resize(flows, 1/d)/d; not changed.
  void forward(const Place& place, const Frame& correlations, Frame& small, Frame& feature, Frame& flows, int64_t d) const;

 private:
  FrameConvolution correlation_, flow1_, flow2_, motion_correlation_, motion_flow_, mix_motion_, mix_feature_, mix_, feature1_, feature2_, head1_, head2_;
  int64_t motion_;  // channels before the flows join
};

}  // namespace megaslide
