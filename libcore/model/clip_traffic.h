// Frames of a clip, planes of fp32 values [C, T, H, W], on their way into a network and out of it: in place on the
// processor; to a device and back through two slots each, so that a copy passes beside the frame that is computed and
// the host is never more than two frames ahead.
#pragma once
#include <array>
#include <vector>

#include "model/model_memory.h"

namespace megaslide {

// Rows [first, first + rows) of every frame of a clip, which stays until the last has been read.
class ClipReader {
 public:
  ClipReader(ModelMemory* memory, const TensorView& clip, int64_t first, int64_t rows);
  static int64_t device_bytes(int64_t channels, int64_t rows, int64_t width);

  // Those of frame `t` and elements from one plane to the next; until read() the stream's.
  const float* next(int64_t t);
  int64_t plane() const { return plane_; }
  // The stream has been given all that reads them.
  void read();

 private:
  ModelMemory* memory_;
  TensorView clip_;
  int64_t first_, plane_;
  std::array<ModelBuffer, 2> slots_;
  std::array<ModelMemory::Mark, 2> read_;
  size_t slot_ = 0;
};

// Writes the frames of a clip one after the other.
class ClipWriter {
 public:
  ClipWriter(ModelMemory* memory, int64_t frames) : memory_(memory), frames_(frames) {}
  static int64_t device_bytes(int64_t channels, int64_t height, int64_t width);

  // Where the next frame goes, all of one size, and elements from one plane to the next.
  float* next(int64_t channels, int64_t height, int64_t width);
  int64_t plane() const { return plane_; }
  // The stream has been given what writes it.
  void written();
  // The clip, when all of its frames are there.
  HostTensor finish();

 private:
  ModelMemory* memory_;
  int64_t frames_, done_ = 0, plane_ = 0;
  HostTensor out_;
  std::array<ModelBuffer, 2> slots_;
  std::array<ModelMemory::Mark, 2> there_;
};

}  // namespace megaslide
