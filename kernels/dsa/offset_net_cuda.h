// What offset_net.h's CUDA entries share; they take up to 40,000 channels.
#pragma once
#include "kernels/attention/scratch.h"
#include "kernels/dsa/offset_net.h"

namespace megaslide {

constexpr int64_t kOffsetNetTaps = 27;
constexpr int64_t kOffsetNetChunk = 64;  // tokens whose sums over channels are one partial result

struct OffsetNetBackwardSpace {
  struct alignas(8) Stats {
    float x, y;  // mean, 1/σ
  };
  OffsetNetBackwardSpace(Carver& w, const OffsetNetShape& s)
      : rows(s.batch * s.tokens()), chunks((rows + kOffsetNetChunk - 1) / kOffsetNetChunk), planes(s.batch * s.frames),
        dy(w.take<float>(rows * s.channels)), stats(w.take<Stats>(rows)), partial(w.take<float>(chunks * 3 * s.channels)),
        taps(w.take<float>(planes * kOffsetNetTaps * s.channels)) {}
  int64_t rows, chunks, planes;  // planes: frames of all samples
  float* dy;                     // (B,N,C): gradient at the convolution's output
  Stats* stats;                  // (B,N)
  float* partial;                // (chunks, 3, C)
  float* taps;                   // (planes, 27, C)
};

}  // namespace megaslide
