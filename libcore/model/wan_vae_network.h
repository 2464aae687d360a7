// One side of a Wan video autoencoder as a stream of frames: a frame goes in, as many as are ready come out. Every
// convolution along time keeps its last two input frames, in place, and nothing else is kept: the working set depends
// on the size of a frame alone. The closed form of spec wan.md C.4 holds frame by frame, so that streaming gives the
// bits of any other order.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/wan_vae_weights.h"

namespace megaslide {

// For tests: the output of a stage (WanVaeStep::stage), frame after frame, F32 [C, H, W].
using WanVaeObserver = std::function<void(const std::string& stage, const HostTensor& frame)>;

class WanVaeNetwork {
 public:
  // `height` and `width` are those of input frames in cells. The steps and weights must outlive the network. Its frames lie
  // where the weights do: in `memory`, or the processor's. It must not go while its stream works.
  WanVaeNetwork(const std::vector<WanVaeStep>& steps, const std::vector<WanVaeStepWeights>& weights, int64_t height,
                int64_t width, DType dtype, const WanVaeObserver* observer = nullptr, ModelMemory* memory = nullptr);
  ~WanVaeNetwork();

  // Where the next input frame is to be written; then push() takes it through. `sink` gets each output frame, F32.
  void* input();
  const FrameLayout& input_layout() const;
  void push(Stream& stream, const std::function<void(const void* frame, const FrameLayout& layout)>& sink);

  // Bytes of frames that such a network holds, of a device's memory where `device`.
  static int64_t working_bytes(const std::vector<WanVaeStep>& steps, int64_t height, int64_t width, DType dtype,
                               bool device = false);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megaslide
