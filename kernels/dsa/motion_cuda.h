// The workspace of motion.h's CUDA entries: forward needs none.
#pragma once
#include "kernels/dsa/motion.h"

namespace megaslide::cuda {

int64_t motion_backward_workspace_bytes(const DsaShape& shape);

}  // namespace megaslide::cuda
