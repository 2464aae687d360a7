// The CUDA entries of offset_net.h, with their own workspace. Up to 40,000 channels.
#pragma once
#include "kernels/dsa/offset_net.h"

namespace megaslide::cuda {

OffsetNetForward offset_net_forward;
OffsetNetBackward offset_net_backward;
int64_t offset_net_backward_workspace_bytes(const OffsetNetShape& shape);

}  // namespace megaslide::cuda
