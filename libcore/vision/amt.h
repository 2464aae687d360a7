// AMT-S: the frame halfway between two others, which motion_smoothness of VBench compares with the one that is there (spec
// vbench-networks.md §3). The user's file holds the tensors of amt-s.pth, entry "state_dict", under their names.
// The published weights are under CC BY-NC 4.0: they may be bound to non-commercial use. None come with this program.
//
// fp32 throughout, pictures at their own scale (upstream's shrink factor is never applied by its own evaluation).
// Correlations are looked up where the flows point, and what has the picture's full resolution is computed in strips of
// rows: memory grows with the number of pixels, by some 250 bytes a pixel. Results have the same bits for any strips and
// number of threads.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "vision/frame_network.h"

namespace megaslide {

inline constexpr int64_t kAmtUnit = 16;
inline constexpr int64_t kAmtMinPadded = 128;  // below, a level of the correlations is one cell wide and upstream divides by zero
// Empty, or why pictures of this size have no frame between: "n/a: needs sides of at least 113 pixels, not 97x150".
std::string amt_not_applicable(int64_t width, int64_t height);

// Maps on the way, as [C,H,W]: "fmap0", "fmap1"; for stages 4, 3, 2 "flow_N" (flow0, then flow1; 4 channels) and
// "feature_N" after the stage's update, and "corr_N" [392,H/8,W/8].
using AmtObserver = std::function<void(const std::string& name, const HostTensor& map)>;

class Amt {
 public:
  // Reads and checks all tensors; throws Error where they are not this network's. strip_rows: of half the picture's
  // resolution, at once.
  Amt(const Place& place, const NetworkWeights& weights, int64_t strip_rows = 120);
  ~Amt();
  Amt(Amt&&) noexcept;

  // rgb: (height, width, 3) bytes. The frame between as [3,H,W], 0 … 1, on the size padded to multiples of kAmtUnit by
  // repetition, half of it before. Throws Error where the size is not applicable.
  HostTensor predict(const Place& place, const uint8_t* rgb0, const uint8_t* rgb1, int64_t width, int64_t height, const AmtObserver* observer = nullptr) const;
  // The same cropped, as bytes: 255·value cut towards zero. Throws Error where a value is not a number.
  std::vector<uint8_t> between(const Place& place, const uint8_t* rgb0, const uint8_t* rgb1, int64_t width, int64_t height) const;

 private:
  struct Weights;
  class Pass;
  std::unique_ptr<const Weights> weights_;
};

// Mean |a − b| of n bytes, from an integer sum.
double mean_byte_difference(const uint8_t* a, const uint8_t* b, int64_t n);
// (255 − mean of the differences)/255, at least one.
double motion_smoothness(const std::vector<double>& differences);

}  // namespace megaslide
