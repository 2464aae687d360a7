// Where a clip cuts from one shot to the next: attention of the dsa kind never looks across a cut.
//
// Pictures are averaged over blocks, at most 32 on the longer side; s(a, b) is the mean absolute difference of two such
// pictures over blocks and colours, in units of 1/255. A shot begins with picture i where
//   s(i-1, i) >= 12,                                         more than noise and small motion,
//   s(i-1, i) >= 3 · mean of s over the two pairs before and the two pairs after, where they exist: more than this clip's
//                                                            own motion,
//   s(i-1, i+1) >= s(i-1, i) / 2 and s(i-2, i) >= s(i-1, i) / 2, where they exist: the new picture stays, which that of a
//                                                            flash does not.
// Hard cuts are found; dissolves and fades are not.
#pragma once
#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace megaslide {

// First pictures of all shots but the first, ascending. `video` F32 [3, F, H, W] in [-1, 1].
std::vector<int64_t> find_cuts(const TensorView& video);

// The same in latent frames: frame 0 holds picture 0, frame k the pictures stride·(k-1)+1 to stride·k. A latent frame that
// a cut runs through goes to the shot with more of its pictures, the later one of two halves. Shots that own no latent
// frame vanish.
std::vector<int64_t> latent_cuts(const std::vector<int64_t>& cuts, int64_t latent_frames, int64_t stride);

// Tables of dsa.h for a clip with these cuts: lo[t] and hi[t], first and last latent frame of t's shot.
void shot_tables(const std::vector<int64_t>& latent_cuts, int64_t latent_frames, int32_t* lo, int32_t* hi);

}  // namespace megaslide
