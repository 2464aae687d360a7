// The workspace of pooled.h's CUDA entries, which take heads of up to 256 channels: backward alone needs it.
#pragma once
#include "kernels/dsa/pooled.h"

namespace megaslide::cuda {

int64_t pooled_workspace_bytes(const PooledShape& shape);

}  // namespace megaslide::cuda
