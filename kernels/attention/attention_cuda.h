// The CUDA entries of attention.h, with their own workspaces. Heads of up to 256 channels; bf16 heads of up to 128 on
// tensor cores, where P and dS, and dout backward, are rounded to bf16 as operands.
#pragma once
#include "kernels/attention/attention.h"

namespace megaslide::cuda {

AttentionForward dense_attention_forward;  // no workspace
AttentionBackward dense_attention_backward;
WindowForward window_attention_forward;  // no workspace
WindowBackward window_attention_backward;
// rowsum(dO ⊙ O) of every query and head.
int64_t dense_attention_backward_workspace_bytes(const AttentionShape& shape, DType dtype);
int64_t window_attention_backward_workspace_bytes(const WindowShape& shape, DType dtype);

}  // namespace megaslide::cuda
