// Entry points of the SIMD part of the DSA kernel on the CPU, one call a piece of work; instruction set chosen at run
// time. A piece writes memory that no other piece of its stage writes.
#pragma once
#include <cstdint>

#include "kernels/dsa/dsa_block.h"

namespace megaslide {

struct DsaForwardArgs {
  float *out, *lse;
  const void *q, *k, *v;
  const float* offsets;
  DsaShape shape;
  DType dtype;
  DsaBlocking blocking;
};

struct DsaBackwardArgs {
  float *dq, *dk, *dv, *doffsets;
  const void *q, *k, *v;
  const float *offsets, *out, *lse, *dout;
  DsaShape shape;
  DType dtype;
  DsaBlocking blocking;
};

// What the stages of a backward hand to each other, for a range of blocks (all samples of the batch in one row:
// index = batch·blocks + block).
struct DsaBand {
  explicit DsaBand(const DsaShape& s) : shape(s) {}
  static int64_t bytes_a_block(const DsaShape& s);
  std::byte* memory = nullptr;
  int64_t first = 0;  // of the band
  DsaShape shape;
  DsaPlaces places(int64_t index, int64_t group) const;
  float* partial(int64_t index, int64_t head) const;  // gradient at the sample points, [slot][3][16]
};

void dsa_forward_piece(const DsaForwardArgs& a, int64_t batch, int64_t block, int64_t group);
// Stage 1: sample positions. Stage 2: dq, dk, dv of blocks [begin, end) of one sample and head, and the partial offset
// gradients. Stage 3: sums those over the heads of a group, in order.
void dsa_place_piece(const DsaBackwardArgs& a, const DsaBand& band, int64_t index, int64_t group);
void dsa_backward_piece(const DsaBackwardArgs& a, const DsaBand& band, int64_t batch, int64_t head, int64_t begin,
                        int64_t end);
void dsa_reduce_piece(const DsaBackwardArgs& a, const DsaBand& band, int64_t index, int64_t group);

}  // namespace megaslide
