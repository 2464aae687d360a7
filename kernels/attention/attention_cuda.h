// What the CUDA entries of attention.h take besides: heads of up to 256 channels, and workspaces of their own (forward
// needs none). bf16 heads of up to 128 channels run on tensor cores, where P and dS, and dout backward, are rounded to
// bf16 as operands.
#pragma once
#include "kernels/attention/attention.h"

namespace megaslide::cuda {

// rowsum(dO ⊙ O) of every query and head.
int64_t dense_attention_backward_workspace_bytes(const AttentionShape& shape, DType dtype);
int64_t window_attention_backward_workspace_bytes(const WindowShape& shape, DType dtype);

}  // namespace megaslide::cuda
