// Workspaces of the CUDA entries, without CUDA.
#include "kernels/attention/attention.h"

namespace megaslide::cuda {

int64_t dense_attention_forward_workspace_bytes(const AttentionShape&, DType) { return 0; }
int64_t dense_attention_backward_workspace_bytes(const AttentionShape& s, DType) { return 4 * s.batch * s.queries * s.heads; }
int64_t dense_materialised_forward_workspace_bytes(const AttentionShape& s, DType dtype) {
  return megaslide::dense_materialised_forward_workspace_bytes(s, dtype);
}
int64_t dense_materialised_backward_workspace_bytes(const AttentionShape& s, DType dtype) {
  return megaslide::dense_materialised_backward_workspace_bytes(s, dtype);
}
int64_t window_attention_forward_workspace_bytes(const WindowShape&, DType) { return 0; }
int64_t window_attention_backward_workspace_bytes(const WindowShape& s, DType) { return 4 * s.batch * s.tokens() * s.heads; }

}  // namespace megaslide::cuda
