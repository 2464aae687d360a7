// RAFT (raft-large, "raft-things"): the optical flow that dynamic_degree and the static filter of VBench measure (spec
// vbench-networks.md §4). The user's file holds the tensors of raft-things.pth under their names, with "module." or
// without. Its code is published under BSD-3-Clause; no weights come with this program.
//
// fp32 throughout. Correlations are looked up where the flow points (kernels/flow), never the volume of all pairs: memory
// grows with the number of pixels, by some 310 bytes a pixel. Results have the same bits for any number of threads.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "vision/frame_network.h"

namespace megaslide {

inline constexpr int64_t kRaftUnit = 8;
inline constexpr int64_t kRaftMinPadded = 128;  // below, a level of the pyramid is one cell wide and upstream divides by zero
inline constexpr int kRaftIterations = 20;
// Empty, or why frames of this size have no flow: "n/a: needs sides of at least 121 pixels, not 97x150".
std::string raft_not_applicable(int64_t width, int64_t height);

// What of a picture serves all pairs that it is in: its cells and its features. About 40 bytes a pixel.
class RaftFrame {
 public:
  int64_t width() const { return 2 * blocks_.layout().width; }  // padded
  int64_t height() const { return 2 * blocks_.layout().height; }
  // Features, and those pooled over 2×2 cells `level` times.
  const Frame& features(int level = 0) const { return levels_[level]; }
  int64_t bytes() const;

 private:
  friend class Raft;
  Frame blocks_;
  Frame levels_[4];
};

class Raft {
 public:
  // Reads and checks all tensors; throws Error where they are not this network's.
  Raft(const Place& place, const NetworkWeights& weights);
  ~Raft();
  // Opens `path` as NetworkWeights does, with the prefix "module.".
  static Raft open(const Place& place, const std::string& path);
  Raft(Raft&&) noexcept;

  // rgb: (height, width, 3) bytes. Throws Error where the size is not applicable.
  RaftFrame frame(const Place& place, const uint8_t* rgb, int64_t width, int64_t height) const;
  // The flow [2,H,W] (x, then y; pixels) on the padded size that takes each pixel of `a` to its place in `b`.
  // Throws Error where their sizes differ.
  HostTensor flow(const Place& place, const RaftFrame& a, const RaftFrame& b, int iterations = kRaftIterations) const;

 private:
  struct Weights;
  class Pass;
  std::unique_ptr<const Weights> weights_;
};

}  // namespace megaslide
