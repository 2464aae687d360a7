// The workspace of offset_net.h's CUDA entries, which take up to 40,000 channels.
#pragma once
#include "kernels/dsa/offset_net.h"

namespace megaslide::cuda {

int64_t offset_net_backward_workspace_bytes(const OffsetNetShape& shape);

}  // namespace megaslide::cuda
