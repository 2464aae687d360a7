// The CUDA entries of pooled.h, with their own workspace. Heads of up to 256 channels.
#pragma once
#include "kernels/dsa/pooled.h"

namespace megaslide::cuda {

PooledForward pooled_forward;
PooledBackward pooled_backward;
int64_t pooled_workspace_bytes(const PooledShape& shape);

}  // namespace megaslide::cuda
