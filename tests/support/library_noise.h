// How far a result in fp32 may lie from a golden of peers' libraries, as kFactor times their own distance from fp64, and kFloor.
#pragma once

namespace megaslide::testing_support {

// Another order of the same fp32 sums has noise of the same size, not the same noise: a few times the library's own
// distance from the fp64 truth, and never under a few roundings. The figure of a tensor is one draw: those of the
// cross-attention's query path, where gradients nearly cancel, differ threefold among tensors of one cause, and ours there by
// a fifth from one release of oneDNN to another (2.6: 5.6 times the library's distance, 3.7: 6.7 times).
constexpr double kFactor = 8, kFloor = 5e-7;

}  // namespace megaslide::testing_support
