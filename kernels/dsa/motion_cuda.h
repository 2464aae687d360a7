// The CUDA entries of motion.h, with their own workspace.
#pragma once
#include "kernels/dsa/motion.h"

namespace megaslide::cuda {

MotionForward motion_forward;  // no workspace
MotionBackward motion_backward;
int64_t motion_backward_workspace_bytes(const DsaShape& shape);

}  // namespace megaslide::cuda
