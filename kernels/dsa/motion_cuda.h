// What motion.h's CUDA entries share.
#pragma once
#include "kernels/attention/scratch.h"
#include "kernels/dsa/motion.h"

namespace megaslide {

constexpr int kMotionSide = 8;           // a block has a square of tokens
constexpr int kMotionGainTokens = 1024;  // of one partial sum of dgain

inline int tiles_of(int64_t n) { return static_cast<int>((n + kMotionSide - 1) / kMotionSide); }
inline int64_t blocks_of(const DsaShape& s) { return s.batch * s.frames * tiles_of(s.height) * tiles_of(s.width); }
inline int64_t gain_parts_of(const DsaShape& s) { return (s.batch * s.tokens() + kMotionGainTokens - 1) / kMotionGainTokens; }

struct MotionBackwardSpace {
  struct alignas(16) Slot {
    float x, y, z, w;
  };
  MotionBackwardSpace(Carver& w, const DsaShape& s)
      : slots(w.take<Slot>(s.batch * s.tokens() * s.kernel[0])), pull(w.take<float>(s.batch * s.tokens())),
        ds_part(w.take<double>(blocks_of(s))), gain_part(w.take<double>(gain_parts_of(s) * s.groups)) {}
  Slot* slots;
  float* pull;
  double *ds_part, *gain_part;
};

}  // namespace megaslide
