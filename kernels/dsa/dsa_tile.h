// Kernel B of spec dsa.md §3 on the CPU, its geometry: tiles of up to 32 queries of one frame with their halo. Scores
// and weights of a tile are [query][key] over the halo, so that the two corners of a sample along w are neighbours in
// memory and a query's weights are its own.
//
// Backward goes twice over a span of frames. The first sweep is query-stationary: dq, offsets, and the tiles' weights Π
// and Γ, which are kept as operands for as long as the span lasts. The second is key-stationary: a frame of keys sums
// over all tiles that read it. Spans whose keys meet take turns in a fixed order, so that there are no atomics and no
// sum depends on the threads; nothing of a span outlives it, so that memory does not grow with the tokens.
#pragma once
#include <cstdint>

#include "kernels/dsa/dsa.h"
#include "kernels/dsa/dsa_gather.h"
#include "kernels/dsa/dsa_geometry.h"
#include "kernels/dsa/dsa_halo.h"

namespace megaslide {

// Tiles of (1, tile_h, tile_w) queries, ragged at the ends of a frame. A band is a row of tiles.
struct DsaTiling {
  explicit DsaTiling(const DsaShape& s);
  int64_t tile_h, tile_w;
  int64_t bands, across;  // tiles along h and w of a frame
  DsaHalo largest;        // no halo has more planes, rows or columns
  int64_t padding() const { return padding_; }  // keys and queries multiplied, over those that are there, rounded down
  int64_t row;            // floats from a query's scores to the next's: all keys and one to spare, odd in cache lines
  // A piece walks through this many frames, so that it packs a frame of keys once for all the frames that read it; what
  // it keeps of their samples bounds the number.
  int64_t forward_frames, backward_frames;

 private:
  int64_t padding_;
};

// One tile of one sample.
struct DsaTile {
  DsaTile(const DsaShape& s, const DsaTiling& t, int64_t frame, int64_t band, int64_t index);
  int64_t frame, active, lanes;  // queries; the same rounded up to 16
  int64_t h[kDsaTileQueries], w[kDsaTileQueries], token[kDsaTileQueries];  // lanes past `active` repeat the last
  DsaBounds bounds;
  int64_t slots;                 // that exist
  int64_t lo[3], hi[3];          // coordinates of the halo, inclusive
  bool idle[3];                  // R = 0, no such component, or one coordinate alone
  DsaHalo halo;
  int64_t step_t, step_h;        // floats from corner i0 to i1; 0 where idle
  int64_t row;
};

// Backward pieces this many spans of frames, or bands, apart share no key of their halos.
struct DsaColours {
  explicit DsaColours(const DsaShape& s, const DsaTiling& t);
  int64_t spans, bands;
};

// Sample positions of a tile and group: [slot][32] and [slot][3][32], slots that exist in nominal order.
struct DsaTilePlaces {
  int32_t* cell;  // bytes from the tile's scores to corner 0
  float* f;       // weights of the upper corners; 0 on idle axes
  float* slope;   // d x/d o where the gradient passes, else 0; nullptr in the forward
};

// Numbers of one head's backward, a query each.
struct DsaTileStats {
  alignas(64) float lse[kDsaTileQueries], dot[kDsaTileQueries], live[kDsaTileQueries];  // D = Σ dO·O; 1 or 0
};

// The SIMD half, instruction set chosen at run time. Floats that dsa_tile_place works in:
int64_t dsa_tile_place_scratch(const DsaShape& s);
void dsa_tile_place(const DsaShape& s, const DsaTile& t, int64_t batch, int64_t group, const float* offsets,
                    const DsaTilePlaces& places, float* scratch);
// Softmax of the interpolated scores and its adjoint: adds exp(S − max) · w to pi, which holds zeros, and writes
// lse and 1/Σ exp of each query, NaN where a score is not finite. samples: [slot][16].
void dsa_tile_softmax(const DsaTile& t, const DsaTilePlaces& places, float scale, const float* scores, float* samples,
                      float* pi, float* lse, float* inverse);
// Rebuilds P and dS (with the scale), adds Π and Γ, and writes the gradient at the sample points, [slot][3][32], of this
// head. Clears live[i] of queries whose numbers are not finite; their weights and gradients are then of no use.
void dsa_tile_gradients(const DsaTile& t, const DsaTilePlaces& places, float scale, const float* scores,
                        const float* dp, DsaTileStats& stats, float* pi, float* gamma, float* partial);

// One tile column (forward) or band of tiles (backward) of a sample and group over a span of frames. Forward pieces write
// what no other writes. A backward piece overwrites dq and doffsets of its queries and adds to dk and dv of its halos'
// keys, of the group's heads: pieces that are DsaColours apart may run at once, others in a fixed order. Queries whose
// numbers are not finite take the literal path, with what it reads: a tile that holds a spoilt key gives its other
// queries their results all the same.
struct DsaPiece {
  int64_t batch, span, band, group;
};
void dsa_tile_forward_piece(const DsaForwardArgs& a, const DsaTiling& tiling, const DsaPiece& piece, int64_t column);
void dsa_tile_backward_piece(const DsaBackwardArgs& a, const DsaTiling& tiling, const DsaPiece& piece);
// Bytes that a thread works in.
int64_t dsa_tile_scratch_bytes(const DsaShape& s, const DsaTiling& tiling, DType dtype, bool backward);

}  // namespace megaslide
