// Where the layers' inputs wait between the forward and the backward pass (spec engine.md §3).
//
// Layers come in segments of k. Of each segment the input of its first layer is kept: on the device, or in host memory,
// where it goes over the download stream and comes back over the upload stream. The inputs of the other layers are those
// of the segment in hand; before its backward they are computed again. So the device holds, a microbatch,
//
//   kept on the device   ⌊L/k⌋ + 1 inputs, and k − 1 of the segment
//   kept on the host     2 on their way, and k − 1 of the segment
//
// The input of the head counts as that of a layer L. Order is by events alone.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "stream/host_memory.h"

namespace megaslide {

enum class StashPlace { kDevice, kHost };

struct StashOptions {
  StashPlace place = StashPlace::kDevice;
  int segment = 1;  // k
};

class ActivationStash {
 public:
  struct Sizes {
    int layers = 0, microbatches = 1;
    int64_t elements = 0;           // of an input, the largest that is trained
    int64_t elements_to_pass = 0;   // the largest of a pass without backward, which the first microbatch's places take
  };
  using Allocate = std::function<float*(int64_t elements, const char* name)>;
  ActivationStash(Device& device, const StashOptions& options, const Sizes& sizes, bool simulated, const Allocate& allocate);

  // Where the input of layer l of a microbatch lies while it is on the device; l = L: the head's.
  float* at(int microbatch, int l) const { return places_[static_cast<size_t>(microbatch)][static_cast<size_t>(place(l))]; }
  // Two places of the first microbatch between which a pass without backward goes to and fro.
  float* pass(int which) const { return places_[0][static_cast<size_t>(place(which))]; }

  // Before the call on the compute stream that writes the inputs of layer l: what is in their place has left it.
  void before_write(int l);
  // The inputs of layer l are written: they leave for the host where that is their place. elements: of each microbatch.
  void written(int l, std::span<const int64_t> elements);
  // Queues the return of layer l's inputs, unless they are on the device.
  void fetch(int l, std::span<const int64_t> elements);
  // The compute stream goes on when they are there.
  void wait(int l);
  // The compute stream's calls so far are the last ones that read the inputs of layer l.
  void release(int l);

  int64_t host_bytes() const { return host_bytes_; }

 private:
  // An input on its way: which layer's is there, when it is whole, when it may be overwritten.
  struct Transit {
    int layer = -1;
    Event arrived = {}, left = {}, released = {};
  };
  int place(int l) const;  // index into places_[a]
  bool kept(int l) const { return l % segment_ == 0; }
  // Only what later inputs overwrite leaves for the host.
  bool leaves(int l) const { return on_host_ && kept(l) && l / segment_ + kTransits <= last_kept_; }
  Transit& transit(int l) { return transits_[static_cast<size_t>(l / segment_ % kTransits)]; }

  static constexpr int kTransits = 2;
  Device& device_;
  bool on_host_;
  int segment_, last_kept_, kept_places_;
  std::vector<std::vector<float*>> places_;       // [microbatch][place]
  std::vector<std::vector<float*>> host_;         // [microbatch][kept input], those that leave
  std::vector<Transit> transits_;
  HostMemory memory_;
  PinnedMemory pinned_;  // after it, so that it goes first
  int64_t host_bytes_ = 0;
};

}  // namespace megaslide
