// How the CPU kernel cuts a DSA call: blocks of up to 16 queries of one frame with their halo, and the arrays that hold
// where the samples of a block lie. Plain arithmetic, no SIMD.
#pragma once
#include <cstdint>

#include "kernels/attention/scratch.h"
#include "kernels/dsa/dsa.h"
#include "kernels/dsa/dsa_geometry.h"

namespace megaslide {

constexpr int64_t kDsaBlock = 16;

// Blocks of (1, block_h, block_w) queries; ragged at the ends of a frame.
struct DsaBlocking {
  explicit DsaBlocking(const DsaShape& s);
  int64_t block_h, block_w;
  int64_t count_h, count_w;  // blocks along h and w of a frame
  int64_t blocks;            // of one sample
};

// One block of one sample.
struct DsaBlock {
  DsaBlock(const DsaShape& s, const DsaBlocking& b, int64_t index);
  int64_t frame;
  int64_t active = 0;                      // queries
  int64_t h[kDsaBlock], w[kDsaBlock];      // of each lane; lanes past `active` repeat the last query
  int64_t token[kDsaBlock];
  DsaBounds bounds;
  int64_t slots;                           // that exist: k_eff product
  int64_t halo_lo[3], halo_n[3];           // every key a sample may touch
  int64_t halo;                            // keys of the halo
  int64_t step[3];                         // keys from corner i0 to i1, in halo rows; 0 on an idle axis
  bool idle[3];                            // R = 0, no such component, or one coordinate alone
  int64_t halo_token(int64_t row_t, int64_t row_h) const {  // first token of a run along w
    return ((halo_lo[0] + row_t) * height + halo_lo[1] + row_h) * width + halo_lo[2];
  }
  int64_t height, width;
};

// Sample positions of a block and group, [slot][16] each.
struct DsaPlaces {
  int32_t* cell;    // 16 · (halo row of corner 0) + lane
  float* f[3];      // interpolation weights of the upper corners; 0 on idle axes
  float* slope[3];  // d x/d o where the gradient passes, else 0; nullptr in the forward
  static void carve(Carver& c, const DsaShape& s, bool backward, DsaPlaces& p);
};

// True when a halo is so much larger than the window that interpolating vectors costs less.
bool dsa_prefers_literal(const DsaBlock& b);

}  // namespace megaslide
